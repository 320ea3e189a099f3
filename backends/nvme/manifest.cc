#include "backends/nvme/manifest.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "backends/nvme/private_file_system.h"
#include "lib/base/status_macros.h"
#include "lib/wire/byte_codec.h"

namespace terrace {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr char kNextGenerationKey[] = "next_generation";
// Record and root keys have 36 and 32 bytes: this one is behind them all.
const std::string kBehindAllKeys(64, '\xff');

Status FromRocks(const rocksdb::Status& status) {
  if (status.ok()) return OkStatus();
  const std::string text = "manifest: " + status.ToString();
  if (status.IsNoSpace()) return ResourceExhaustedError(text);
  if (status.IsCorruption()) return DataLossError(text);
  if (status.IsIOError() || status.IsBusy() || status.IsTryAgain() || status.IsTimedOut()) {
    return UnavailableError(text);
  }
  return InternalError(text);
}

// Runs one use of RocksDB; what it throws becomes a Status.
template <typename Use>
auto Guarded(Use&& use) -> decltype(use()) {
  try {
    return use();
  } catch (const std::exception& error) {
    return InternalError(std::string("manifest: ") + error.what());
  }
}

rocksdb::Slice SliceOf(std::string_view bytes) { return {bytes.data(), bytes.size()}; }
std::string_view ViewOf(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

rocksdb::ColumnFamilyOptions FamilyOptions(uint64_t reserve_bytes) {
  rocksdb::ColumnFamilyOptions options;
  options.write_buffer_size = std::clamp(reserve_bytes / 16, 64 * kKiB, 4 * kMiB);
  options.arena_block_size = options.write_buffer_size / 16;
  options.max_write_buffer_number = 2;
  options.compression = rocksdb::kNoCompression;  // digests and random tokens
  options.level_compaction_dynamic_level_bytes = true;
  options.level0_file_num_compaction_trigger = 2;
  options.target_file_size_base = std::clamp(reserve_bytes / 32, 64 * kKiB, 8 * kMiB);
  options.max_bytes_for_level_base = std::clamp(reserve_bytes / 8, 256 * kKiB, 64 * kMiB);
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;  // the index is in memory; records are read by scans
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

rocksdb::DBOptions DatabaseOptions(uint64_t reserve_bytes, rocksdb::Env* env) {
  rocksdb::DBOptions options;
  options.env = env;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.db_write_buffer_size = std::clamp(reserve_bytes / 8, 256 * kKiB, 16 * kMiB);
  options.max_total_wal_size = std::clamp(reserve_bytes / 8, 128 * kKiB, 16 * kMiB);
  // Nothing is allocated ahead: the reserve is counted in physical bytes.
  options.allow_fallocate = false;
  options.manifest_preallocation_size = 4 * kKiB;
  options.max_manifest_file_size = std::clamp(reserve_bytes / 32, 32 * kKiB, 4 * kMiB);
  options.keep_log_file_num = 1;
  options.max_log_file_size = 64 * kKiB;
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.max_background_jobs = 2;
  return options;
}

class RocksManifest : public Manifest {
 public:
  RocksManifest() : env_(rocksdb::NewCompositeEnv(MakePrivateFileSystem(rocksdb::FileSystem::Default()))) {}
  ~RocksManifest() override { Close().IgnoreError(); /* a destructor does not fail */ }

  Status OpenDatabase(const std::string& path, uint64_t reserve_bytes) {
    const rocksdb::ColumnFamilyOptions family = FamilyOptions(reserve_bytes);
    const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
        {rocksdb::kDefaultColumnFamilyName, family},
        {"places", family},
        {"contents", family},
        {"roots", family}};
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* db = nullptr;
    TERRACE_RETURN_IF_ERROR(FromRocks(
        rocksdb::DB::Open(DatabaseOptions(reserve_bytes, env_.get()), path, families, &handles, &db)));
    db_.reset(db);
    std::copy(handles.begin(), handles.end(), handles_.begin());
    return OkStatus();
  }

  Status Apply(std::span<const RecordChange> changes, bool sync) override {
    return Guarded([&] {
      rocksdb::WriteBatch batch;
      for (const RecordChange& change : changes) {
        Status added = FromRocks(Add(change, batch));
        if (!added.ok()) return added;
      }
      return Write(batch, sync);
    });
  }

  Status DropAll() override {
    return Guarded([&] {
      rocksdb::WriteBatch batch;
      for (rocksdb::ColumnFamilyHandle* family : {places(), contents(), roots()}) {
        Status added = FromRocks(batch.DeleteRange(family, "", kBehindAllKeys));
        if (!added.ok()) return added;
      }
      return Write(batch, true);
    });
  }

  Status Sync() override {
    return Guarded([&] { return FromRocks(db_->SyncWAL()); });
  }

  Status Load(const std::function<void(LoadedRecord)>& each, std::vector<std::string>* broken) override;
  Result<uint64_t> ReserveGenerations(uint64_t count) override;
  Result<ScanPage> Scan(std::string_view cursor, size_t limit) override;
  Status PutRoot(const RootRecord& record) override;
  Result<std::vector<RootRecord>> ScanRoots() override;

  Status Close() override {
    if (!db_) return OkStatus();
    return Guarded([&] {
      Status status;
      for (rocksdb::ColumnFamilyHandle*& handle : handles_) {
        Status destroyed = FromRocks(db_->DestroyColumnFamilyHandle(handle));
        if (status.ok()) status = destroyed;
        handle = nullptr;
      }
      Status closed = FromRocks(db_->Close());
      if (status.ok()) status = closed;
      db_.reset();
      return status;
    });
  }

 private:
  rocksdb::ColumnFamilyHandle* places() const { return handles_[1]; }
  rocksdb::ColumnFamilyHandle* contents() const { return handles_[2]; }
  rocksdb::ColumnFamilyHandle* roots() const { return handles_[3]; }

  rocksdb::Status Add(const RecordChange& change, rocksdb::WriteBatch& batch) const {
    if (change.is_delete) {
      rocksdb::Status status = batch.Delete(places(), change.key);
      return status.ok() ? batch.Delete(contents(), change.key) : status;
    }
    rocksdb::Status status = batch.Put(places(), change.key, change.place);
    if (!status.ok()) return status;
    return change.content.empty() ? batch.Delete(contents(), change.key)
                                  : batch.Put(contents(), change.key, change.content);
  }

  Status Write(rocksdb::WriteBatch& batch, bool sync) {
    rocksdb::WriteOptions options;
    options.sync = sync;
    const rocksdb::Status status = db_->Write(options, &batch);
    if (!status.ok()) {
      // After a failed write RocksDB refuses all further ones until it is told to go on. Whether that works
      // shows in the next write.
      db_->Resume().PermitUncheckedError();
    }
    return FromRocks(status);
  }

  std::unique_ptr<rocksdb::Env> env_;
  std::unique_ptr<rocksdb::DB> db_;
  std::array<rocksdb::ColumnFamilyHandle*, 4> handles_{};
};

Status RocksManifest::Load(const std::function<void(LoadedRecord)>& each, std::vector<std::string>* broken) {
  return Guarded([&]() -> Status {
    const rocksdb::ReadOptions options;
    const std::unique_ptr<rocksdb::Iterator> place(db_->NewIterator(options, places()));
    const std::unique_ptr<rocksdb::Iterator> content(db_->NewIterator(options, contents()));
    content->SeekToFirst();
    // Both are in the order of the keys: one pass over the two.
    for (place->SeekToFirst(); place->Valid(); place->Next()) {
      const std::string_view key = ViewOf(place->key());
      for (; content->Valid() && ViewOf(content->key()) < key; content->Next()) {
        broken->emplace_back(ViewOf(content->key()));
      }
      size_t content_bytes = 0;
      bool whole = true;
      if (content->Valid() && ViewOf(content->key()) == key) {
        content_bytes = content->value().size();
        whole = DecodeRecordContent(ViewOf(content->value())).ok();
        content->Next();
      }
      const Result<ObjectId> id = DecodeRecordKey(key);
      Result<ObjectRecord> record = DecodePlace(ViewOf(place->value()));
      if (!whole || !id.ok() || !record.ok()) {
        broken->emplace_back(key);
        continue;
      }
      each({*id, std::move(*record), RecordBytes(place->value().size(), content_bytes)});
    }
    for (; content->Valid(); content->Next()) broken->emplace_back(ViewOf(content->key()));
    TERRACE_RETURN_IF_ERROR(FromRocks(place->status()));
    return FromRocks(content->status());
  });
}

Result<uint64_t> RocksManifest::ReserveGenerations(uint64_t count) {
  return Guarded([&]() -> Result<uint64_t> {
    std::string stored;
    const rocksdb::Status found = db_->Get(rocksdb::ReadOptions(), kNextGenerationKey, &stored);
    if (!found.ok() && !found.IsNotFound()) return FromRocks(found);
    uint64_t next = 1;
    if (stored.size() == sizeof(next)) std::memcpy(&next, stored.data(), sizeof(next));
    const uint64_t after = next + count;
    rocksdb::WriteBatch batch;
    TERRACE_RETURN_IF_ERROR(FromRocks(
        batch.Put(kNextGenerationKey, rocksdb::Slice(reinterpret_cast<const char*>(&after), sizeof(after)))));
    TERRACE_RETURN_IF_ERROR(Write(batch, true));
    return next;
  });
}

Result<ScanPage> RocksManifest::Scan(std::string_view cursor, size_t limit) {
  return Guarded([&]() -> Result<ScanPage> {
    rocksdb::ManagedSnapshot snapshot(db_.get());
    rocksdb::ReadOptions options;
    options.snapshot = snapshot.snapshot();
    const std::unique_ptr<rocksdb::Iterator> place(db_->NewIterator(options, places()));
    const std::unique_ptr<rocksdb::Iterator> content(db_->NewIterator(options, contents()));
    ScanPage page;
    place->Seek(SliceOf(cursor));
    if (place->Valid() && ViewOf(place->key()) == cursor) place->Next();
    content->Seek(SliceOf(cursor));
    for (; place->Valid(); place->Next()) {
      const std::string_view key = ViewOf(place->key());
      if (page.objects.size() == limit) {
        page.next_cursor = EncodeRecordKey(page.objects.back().id);
        break;
      }
      while (content->Valid() && ViewOf(content->key()) < key) content->Next();
      const Result<ObjectId> id = DecodeRecordKey(key);
      Result<ObjectRecord> record = DecodePlace(ViewOf(place->value()));
      if (!id.ok() || !record.ok()) continue;  // the next start drops it
      if (content->Valid() && ViewOf(content->key()) == key) {
        Result<ChunkContent> decoded = DecodeRecordContent(ViewOf(content->value()));
        if (!decoded.ok()) continue;
        record->meta.content = std::make_shared<const ChunkContent>(std::move(*decoded));
      }
      page.objects.push_back({*id, std::move(record->meta)});
    }
    TERRACE_RETURN_IF_ERROR(FromRocks(place->status()));
    TERRACE_RETURN_IF_ERROR(FromRocks(content->status()));
    return page;
  });
}

Status RocksManifest::PutRoot(const RootRecord& record) {
  return Guarded([&]() -> Status {
    const std::string_view key(reinterpret_cast<const char*>(record.root.bytes.data()),
                               record.root.bytes.size());
    const std::string value = EncodeRootRecord(record);
    std::string stored;
    const rocksdb::Status found = db_->Get(rocksdb::ReadOptions(), roots(), SliceOf(key), &stored);
    if (found.ok() && stored == value) return OkStatus();
    if (!found.ok() && !found.IsNotFound()) return FromRocks(found);
    rocksdb::WriteBatch batch;
    TERRACE_RETURN_IF_ERROR(FromRocks(batch.Put(roots(), SliceOf(key), value)));
    return Write(batch, false);
  });
}

Result<std::vector<RootRecord>> RocksManifest::ScanRoots() {
  return Guarded([&]() -> Result<std::vector<RootRecord>> {
    std::vector<RootRecord> records;
    const std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions(), roots()));
    for (at->SeekToFirst(); at->Valid(); at->Next()) {
      ChunkKey root;
      if (at->key().size() != root.bytes.size()) continue;
      std::memcpy(root.bytes.data(), at->key().data(), root.bytes.size());
      Result<RootRecord> record = DecodeRootRecord(root, ViewOf(at->value()));
      if (record.ok()) records.push_back(std::move(*record));
    }
    TERRACE_RETURN_IF_ERROR(FromRocks(at->status()));
    return records;
  });
}

}  // namespace

uint64_t ManifestReserve(uint64_t capacity_bytes) {
  return std::min(capacity_bytes, std::max(kMiB, capacity_bytes / 32));
}

uint64_t RecordBudget(uint64_t reserve_bytes) { return reserve_bytes / 2; }

uint64_t RecordBytes(size_t place_bytes, size_t content_bytes) {
  constexpr uint64_t kKeyBytes = 36;
  constexpr uint64_t kPerEntryBytes = 16;  // sequence number, lengths, the block's share of the index
  return place_bytes + content_bytes + 2 * (kKeyBytes + kPerEntryBytes);
}

Result<std::unique_ptr<Manifest>> Manifest::Open(const std::string& path, uint64_t reserve_bytes) {
  return Guarded([&]() -> Result<std::unique_ptr<Manifest>> {
    auto manifest = std::make_unique<RocksManifest>();
    TERRACE_RETURN_IF_ERROR(manifest->OpenDatabase(path, reserve_bytes));
    return std::unique_ptr<Manifest>(std::move(manifest));
  });
}

}  // namespace terrace
