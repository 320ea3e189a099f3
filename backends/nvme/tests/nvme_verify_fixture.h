// NvmeVerifyTest: a closed tier, ways to damage its files, and the question what verify says of it. Whoever
// plants uses the formats and RocksDB's files as the tier leaves them.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <rocksdb/file_system.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backends/nvme/file_descriptor.h"
#include "backends/nvme/manifest.h"
#include "backends/nvme/private_file_system.h"
#include "backends/nvme/tests/nvme_test_store.h"
#include "lib/wire/frame.h"
#include "terrace/nvme_verify.h"

namespace terrace {

namespace fs = std::filesystem;

inline constexpr uint64_t kFrame = 64 * kKiB;
inline constexpr uint64_t kRun = kTierPageBytes + kFrame;

class NvmeVerifyTest : public ::testing::Test {
 protected:
  // A closed tier with `n` objects, which lie one after another.
  void Make(size_t n, uint64_t frame_bytes = kFrame) {
    store_.Open();
    for (size_t i = 0; i < n; ++i) {
      objects_.push_back(MakeNvmeObject(i + 1, frame_bytes));
      ASSERT_TRUE(store_.Put(objects_.back()).ok());
    }
    ASSERT_TRUE(store_.Flush().ok());
    store_.Close();
  }
  std::string Read(int segment, uint64_t offset, size_t n) {
    FileDescriptor file(open(store_.segment(segment).c_str(), O_RDONLY));
    std::string bytes(n, '\0');
    EXPECT_EQ(pread(file.get(), bytes.data(), n, static_cast<off_t>(offset)), static_cast<ssize_t>(n));
    return bytes;
  }
  void Write(int segment, uint64_t offset, const std::string& bytes) {
    FileDescriptor file(open(store_.segment(segment).c_str(), O_WRONLY));
    EXPECT_EQ(pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
  }
  void FlipBit(uint64_t offset) {
    std::string byte = Read(0, offset, 1);
    byte[0] = static_cast<char>(byte[0] ^ 16);
    Write(0, offset, byte);
  }
  NvmeVerifyOptions Options(bool repair = false) {
    return {.directory = store_.path().string(), .repair = repair, .keys = store_.keys};
  }
  NvmeVerifyReport Verify(bool repair = false) {
    const Result<NvmeVerifyReport> report = VerifyNvmeDirectory(Options(repair));
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    if (!report.ok()) return {};
    EXPECT_EQ(report->live_bytes + report->free_bytes + report->quarantined_bytes, report->segment_bytes);
    return *report;
  }
  std::string KeyOf(size_t i) const { return EncodeRecordKey(objects_[i].id); }
  // Writes a record as it is, or removes it, in a family that the tier has.
  void Plant(const std::string& family, const std::string& key, const std::optional<std::string>& value) {
    std::vector<std::string> names;
    const std::string path = (store_.path() / "manifest").string();
    ASSERT_TRUE(rocksdb::DB::ListColumnFamilies({}, path, &names).ok());
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const std::string& name : names) families.emplace_back(name, rocksdb::ColumnFamilyOptions());
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open({}, path, families, &handles, &raw).ok());
    const std::unique_ptr<rocksdb::DB> db(raw);
    for (rocksdb::ColumnFamilyHandle* handle : handles) {
      if (handle->GetName() == family) {
        EXPECT_TRUE((value ? db->Put({}, handle, key, *value) : db->Delete({}, handle, key)).ok());
      }
      EXPECT_TRUE(db->DestroyColumnFamilyHandle(handle).ok());
    }
    ASSERT_TRUE(db->Close().ok());
  }
  std::unique_ptr<Manifest> OpenManifest() {
    return Manifest::Open((store_.path() / "manifest").string(), ManifestReserve(128 * kMiB),
                          MakePrivateFileSystem(rocksdb::FileSystem::Default()))
        .value();
  }
  std::map<ObjectId, ObjectRecord> Records() {
    const std::unique_ptr<Manifest> manifest = OpenManifest();
    std::map<ObjectId, ObjectRecord> records;
    std::vector<std::string> broken;
    const auto take = [&](std::span<LoadedRecord> loaded) {
      for (const LoadedRecord& one : loaded) records[one.id] = one.record;
    };
    EXPECT_TRUE(manifest->LoadPlaces(take, &broken).ok());
    EXPECT_TRUE(manifest->Close().ok());
    return records;
  }
  // The numbers of the objects whose content the open tier has.
  std::vector<size_t> WithContent() {
    std::vector<size_t> numbers;
    const ScanPage page = store_.backend().Scan({}, 1000, ScanDetail::kContents).value();
    for (size_t i = 0; i < objects_.size(); ++i) {
      for (const auto& one : page.objects) {
        if (one.id == objects_[i].id && one.meta.content != nullptr) numbers.push_back(i);
      }
    }
    return numbers;
  }
  // Exactly `count` of this kind and of nothing else; --repair drops `dropped` records, after which there is
  // nothing to be found, and the tier has the other objects.
  void ExpectOnly(NvmeFindingKind kind, uint64_t count, const std::vector<size_t>& lost, uint64_t dropped) {
    const NvmeVerifyReport found = Verify();
    for (size_t i = 0; i < kNumNvmeFindingKinds; ++i) {
      const auto other = static_cast<NvmeFindingKind>(i);
      EXPECT_EQ(found.counts[i].count, other == kind ? count : 0) << NvmeFindingKindName(other);
    }
    EXPECT_FALSE(found.IsClean());
    EXPECT_EQ(found.dropped_records, 0u);
    EXPECT_EQ(found.findings.size(), count);
    const NvmeVerifyReport repaired = Verify(true);
    EXPECT_EQ(repaired.count(kind).count, count) << "it was repaired without being asked";
    EXPECT_EQ(repaired.dropped_records, dropped);
    const NvmeVerifyReport again = Verify(true);
    EXPECT_TRUE(again.IsClean()) << again.findings.front().reason;
    EXPECT_EQ(again.dropped_records, 0u);
    EXPECT_EQ(again.live_bytes, repaired.live_bytes);
    EXPECT_EQ(again.quarantined_bytes, found.quarantined_bytes);
    store_.Open();
    for (size_t i = 0; i < objects_.size(); ++i) {
      if (std::find(lost.begin(), lost.end(), i) == lost.end())
        store_.ExpectHas(objects_[i]);
      else
        EXPECT_EQ(store_.GetCode(objects_[i]), StatusCode::kNotFound) << i;
    }
    EXPECT_EQ(store_.Metric("terrace_nvme_dropped_records_total"), 0) << "verify left something to the start";
  }

  NvmeTestStore store_;
  std::vector<TestObject> objects_;
};

}  // namespace terrace
