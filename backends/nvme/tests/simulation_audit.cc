#include "backends/nvme/tests/simulation_audit.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "backends/nvme/superblock.h"
#include "lib/wire/frame.h"
#include "lib/wire/object_record.h"
#include "lib/wire/tier_page.h"

namespace terrace {
namespace {

struct FoundRecord {
  ObjectId id;
  ObjectRecord record;
};

std::string_view ViewOf(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// Every record of the family, decoded; the first error in `wrong`.
std::vector<FoundRecord> ReadRecords(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* places,
                                     std::string* wrong) {
  std::vector<FoundRecord> records;
  const std::unique_ptr<rocksdb::Iterator> at(db.NewIterator(rocksdb::ReadOptions(), places));
  for (at->SeekToFirst(); at->Valid(); at->Next()) {
    const Result<ObjectId> id = DecodeRecordKey(ViewOf(at->key()));
    Result<ObjectRecord> record = DecodePlace(ViewOf(at->value()));
    if (!id.ok() || !record.ok()) {
      *wrong = "a record does not decode";
      return {};
    }
    records.push_back({*id, std::move(*record)});
  }
  if (!at->status().ok()) *wrong = at->status().ToString();
  return records;
}

std::vector<FoundRecord> ReadManifest(Disk& disk, std::string* wrong) {
  const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(disk.RocksFileSystem());
  rocksdb::DBOptions options;
  options.env = env.get();
  const std::string path = disk.path() + "/manifest";
  std::vector<std::string> names;
  rocksdb::Status status = rocksdb::DB::ListColumnFamilies(options, path, &names);
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const std::string& name : names) families.emplace_back(name, rocksdb::ColumnFamilyOptions());
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* opened = nullptr;
  if (status.ok()) status = rocksdb::DB::OpenForReadOnly(options, path, families, &handles, &opened);
  if (!status.ok()) {
    *wrong = "the manifest does not open: " + status.ToString();
    return {};
  }
  const std::unique_ptr<rocksdb::DB> db(opened);
  std::vector<FoundRecord> records;
  for (rocksdb::ColumnFamilyHandle* handle : handles) {
    if (handle->GetName() == "places") records = ReadRecords(*db, handle, wrong);
    db->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  }
  return records;
}

std::vector<std::byte> ReadFile(Disk& disk, const std::string& name, uint64_t offset, size_t n) {
  const Result<std::unique_ptr<DiskFile>> file = disk.OpenFile(name, FileOpen::kExisting, false);
  std::vector<std::byte> bytes(n);
  if (!file.ok() || (*file)->ReadAt(offset, bytes).value() != n) return {};
  return bytes;
}

std::string SegmentName(uint32_t segment) {
  const std::string digits = std::to_string(segment);
  return "seg-" + std::string(6 - digits.size(), '0') + digits;
}

std::string WhatIsWrongWithPlace(Disk& disk, const FoundRecord& found, const Superblock& superblock) {
  const ObjectRecord& record = found.record;
  std::vector<std::byte> run;
  for (const Extent& extent : record.extents) {
    const std::vector<std::byte> part =
        ReadFile(disk, SegmentName(extent.segment), extent.offset, extent.length);
    run.insert(run.end(), part.begin(), part.end());
  }
  if (run.size() < kTierPageBytes + record.header_bytes) return "a place is shorter than its header";
  const Bytes bytes(run);
  const Result<TierPage> page = ParseTierPage(
      bytes.first(kTierPageBytes), bytes.subspan(kTierPageBytes, record.header_bytes), superblock.secret);
  if (!page.ok()) return page.status().ToString();
  if (page->generation != record.meta.generation) return "a place holds another generation";
  if (page->directory != superblock.directory) return "a place is of another directory";
  return "";
}

}  // namespace

TierAudit AuditTier(Disk& disk) {
  TierAudit audit;
  const std::vector<std::byte> raw = ReadFile(disk, "superblock", 0, kSuperblockBytes);
  const Result<Superblock> superblock =
      DecodeSuperblock({reinterpret_cast<const char*>(raw.data()), raw.size()});
  if (!superblock.ok()) {
    audit.wrong = superblock.status().ToString();
    return audit;
  }
  std::map<uint32_t, uint64_t> lengths;
  const std::vector<std::string> names = std::move(disk.List()).value();
  for (const std::string& name : names) {
    if (!name.starts_with("seg-")) continue;
    const uint64_t bytes = disk.OpenFile(name, FileOpen::kExisting, false).value()->Size().value();
    lengths[static_cast<uint32_t>(std::stoul(name.substr(4)))] = bytes;
    audit.segment_bytes += bytes;
  }
  const std::vector<FoundRecord> records = ReadManifest(disk, &audit.wrong);
  audit.records = records.size();
  std::vector<Extent> extents;
  for (const FoundRecord& found : records) {
    if (audit.wrong.empty()) audit.wrong = WhatIsWrongWithPlace(disk, found, *superblock);
    extents.insert(extents.end(), found.record.extents.begin(), found.record.extents.end());
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.segment, a.offset) < std::tie(b.segment, b.offset);
  });
  for (size_t i = 0; i < extents.size(); ++i) {
    const Extent& extent = extents[i];
    audit.live_bytes += extent.length;
    if (extent.offset + extent.length > lengths[extent.segment])
      audit.wrong = "an extent is beyond its segment";
    const bool follows = i > 0 && extents[i - 1].segment == extent.segment;
    if (follows && extents[i - 1].offset + extents[i - 1].length > extent.offset)
      audit.wrong = "extents overlap";
  }
  return audit;
}

}  // namespace terrace
