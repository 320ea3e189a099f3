#include "backends/nvme/manifest.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/options.h>
#include <rocksdb/transaction_log.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <mutex>

#include "backends/nvme/manifest_rocks.h"
#include "lib/base/status_macros.h"
#include "lib/wire/byte_codec.h"

namespace terrace {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr size_t kLoadBatch = 512;
constexpr char kNextGenerationKey[] = "next_generation";
constexpr char kIdentityKey[] = "identity";
constexpr char kNewLogKey[] = "new_log";  // means nothing; see ReplaceLog
constexpr std::string_view kQuarantinePrefix = "quarantine/";

std::string EncodeIdentity(const ManifestIdentity& identity) {
  ByteWriter out;
  out.WriteBytes(Bytes(identity.directory));
  out.WriteBytes(Bytes(identity.secret_tag));
  out.Write<uint64_t>(identity.floor);
  return out.Take();
}

Result<ManifestIdentity> DecodeIdentity(std::string_view bytes) {
  ByteReader in(bytes);
  ManifestIdentity identity;
  const std::string_view directory = in.ReadBytes(identity.directory.size());
  const std::string_view tag = in.ReadBytes(identity.secret_tag.size());
  identity.floor = in.Read<uint64_t>();
  if (!in.ok() || in.remaining() != 0) return DataLossError("manifest: identity is malformed");
  std::memcpy(identity.directory.data(), directory.data(), directory.size());
  std::memcpy(identity.secret_tag.data(), tag.data(), tag.size());
  return identity;
}

std::string QuarantineKey(const Extent& extent) {
  std::string key(kQuarantinePrefix);
  for (int shift = 24; shift >= 0; shift -= 8) key.push_back(static_cast<char>(extent.segment >> shift));
  for (int shift = 56; shift >= 0; shift -= 8) key.push_back(static_cast<char>(extent.offset >> shift));
  return key;
}

// What an object of unknown content is counted with: a record of a former build.
uint64_t ContentBytes(const ObjectRecord& record) {
  return record.content_bytes ? *record.content_bytes : record.header_bytes;
}

// Where the threads of a LoadPlaces give what they read.
struct PlaceSink {
  std::mutex mutex;  // guards both
  const std::function<void(std::span<LoadedRecord>)>& each;
  std::vector<std::string>* broken;
};

class RocksManifest : public Manifest {
 public:
  RocksManifest(std::shared_ptr<rocksdb::FileSystem> files, const RecordCipher* cipher)
      : cipher_(cipher), env_(rocksdb::NewCompositeEnv(std::move(files))) {}
  ~RocksManifest() override { Close().IgnoreError(); /* a destructor does not fail */ }

  Status OpenDatabase(const std::string& path, uint64_t reserve_bytes) {
    const rocksdb::ColumnFamilyOptions family = FamilyOptions(reserve_bytes);
    const rocksdb::ColumnFamilyOptions records = RecordFamilyOptions(reserve_bytes);
    const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
        {rocksdb::kDefaultColumnFamilyName, family},
        {"places", records},
        {"contents", records},
        {"roots", family}};
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* db = nullptr;
    TERRACE_RETURN_IF_ERROR(FromRocksOpen(
        rocksdb::DB::Open(DatabaseOptions(reserve_bytes, env_.get()), path, families, &handles, &db)));
    db_.reset(db);
    std::copy(handles.begin(), handles.end(), handles_.begin());
    return OkStatus();
  }

  Status Apply(std::span<const RecordChange> changes, RecordWrite write) override {
    return Guarded([&] {
      rocksdb::WriteBatch batch;
      for (const RecordChange& change : changes) {
        Status added = Add(change, batch);
        if (!added.ok()) return added;
      }
      return Write(batch, write);
    });
  }

  Status DropAll() override {
    return Guarded([&]() -> Status {
      // No DeleteRange: RocksDB ends the process (an assertion) where the memtable of one cannot be replaced
      // twice, as on a device with errors.
      constexpr uint32_t kDeletesPerWrite = 4096;
      rocksdb::WriteBatch batch;
      for (rocksdb::ColumnFamilyHandle* family : {places(), contents(), roots()}) {
        const std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(ScanOptions(), family));
        for (at->SeekToFirst(); at->Valid(); at->Next()) {
          TERRACE_RETURN_IF_ERROR(FromRocks(batch.Delete(family, at->key())));
          if (batch.Count() < kDeletesPerWrite) continue;
          TERRACE_RETURN_IF_ERROR(Write(batch, RecordWrite::kLogged));
          batch.Clear();
        }
        TERRACE_RETURN_IF_ERROR(FromRocks(at->status()));
      }
      // Never empty: it makes those before it durable.
      TERRACE_RETURN_IF_ERROR(FromRocks(batch.Delete(places(), rocksdb::Slice())));
      return Write(batch, RecordWrite::kSynced);
    });
  }

  Status Sync() override {
    return Guarded([&]() -> Status {
      const std::lock_guard lock(write_mutex_);
      if (failed_log_) TERRACE_RETURN_IF_ERROR(ReplaceLog());
      const bool has_unlogged = std::exchange(has_unlogged_, false);
      Status status = has_unlogged ? FlushMemtables() : OkStatus();
      if (status.ok()) status = FromRocks(db_->SyncWAL());
      if (status.ok()) return status;
      has_unlogged_ |= has_unlogged;
      NoteFailedLog();
      ReplaceLog().IgnoreError();  // the first error is the one to tell
      return status;
    });
  }

  Status Load(const std::function<void(LoadedRecord)>& each, std::vector<std::string>* broken) override;
  Result<uint64_t> ReserveGenerations(uint64_t count, uint64_t at_least,
                                      const ManifestIdentity& identity) override;
  Result<bool> HasGenerations() override {
    return Guarded([&]() -> Result<bool> {
      std::string stored;
      TERRACE_ASSIGN_OR_RETURN(const bool found, GetOwn(kNextGenerationKey, &stored));
      return found;
    });
  }
  Result<std::optional<ManifestIdentity>> Identity() override;
  Status SetIdentity(const ManifestIdentity& identity) override {
    return Guarded([&] {
      rocksdb::WriteBatch batch;
      Status added = FromRocks(batch.Put(kIdentityKey, EncodeIdentity(identity)));
      return added.ok() ? Write(batch, RecordWrite::kSynced) : added;
    });
  }
  Status LoadPlaces(const std::function<void(std::span<LoadedRecord>)>& each,
                    std::vector<std::string>* broken) override;
  Status PutQuarantine(std::span<const Extent> extents) override;
  Result<std::vector<Extent>> LoadQuarantine() override;
  Result<ScanPage> Scan(std::string_view cursor, size_t limit, ScanDetail detail) override;
  Status PutRoot(const RootRecord& record) override;
  Result<std::vector<RootRecord>> ScanRoots() override;

  Status Close() override {
    if (!db_) return OkStatus();
    // RocksDB writes what was not logged when it is closed, and says nothing where it cannot.
    const Status written = has_unlogged_ ? Sync() : OkStatus();
    return Guarded([&] {
      Status status = written;
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
  // Places with keys in [begin, end).
  Status LoadRange(std::string_view begin, std::string_view end, PlaceSink& sink);

  rocksdb::ColumnFamilyHandle* places() const { return handles_[1]; }
  rocksdb::ColumnFamilyHandle* contents() const { return handles_[2]; }
  rocksdb::ColumnFamilyHandle* roots() const { return handles_[3]; }

  // A value of the default column family; false without one.
  Result<bool> GetOwn(const char* key, std::string* value) const {
    const rocksdb::Status found = db_->Get(rocksdb::ReadOptions(), key, value);
    if (!found.ok() && !found.IsNotFound()) return FromRocks(found);
    return found.ok();
  }

  Status Add(const RecordChange& change, rocksdb::WriteBatch& batch) const {
    if (change.is_delete) {
      TERRACE_RETURN_IF_ERROR(FromRocks(batch.Delete(places(), change.key)));
      return FromRocks(batch.Delete(contents(), change.key));
    }
    TERRACE_RETURN_IF_ERROR(FromRocks(batch.Put(places(), change.key, change.place)));
    if (change.content.empty()) return FromRocks(batch.Delete(contents(), change.key));
    TERRACE_ASSIGN_OR_RETURN(const std::string stored, ToStored(change.key, change.content));
    return FromRocks(batch.Put(contents(), change.key, stored));
  }

  // A value of contents or roots as it lies on disk.
  Result<std::string> ToStored(std::string_view key, std::string_view value) const {
    if (cipher_ == nullptr) return std::string(value);
    return cipher_->Seal(key, value);
  }
  Result<std::string> FromStored(std::string_view key, std::string_view stored) const {
    if (cipher_ == nullptr) return std::string(stored);
    return cipher_->Open(key, stored);
  }
  Result<ChunkContent> ReadContent(std::string_view key, std::string_view stored) const {
    TERRACE_ASSIGN_OR_RETURN(const std::string value, FromStored(key, stored));
    return DecodeRecordContent(value);
  }

  // Of the record with that key, which the iterator moves up to; null where there is none, or it is broken.
  ChunkContentRef ContentAt(rocksdb::Iterator& content, std::string_view key) const {
    while (content.Valid() && ViewOf(content.key()) < key) content.Next();
    if (!content.Valid() || ViewOf(content.key()) != key) return nullptr;
    Result<ChunkContent> decoded = ReadContent(key, ViewOf(content.value()));
    return decoded.ok() ? std::make_shared<const ChunkContent>(std::move(*decoded)) : nullptr;
  }

  Status Write(rocksdb::WriteBatch& batch, RecordWrite write) {
    const std::lock_guard lock(write_mutex_);
    if (failed_log_) TERRACE_RETURN_IF_ERROR(ReplaceLog());
    rocksdb::WriteOptions options;
    options.sync = write == RecordWrite::kSynced;
    options.disableWAL = write == RecordWrite::kUnlogged;
    if (options.disableWAL) has_unlogged_ = true;
    const rocksdb::Status status = db_->Write(options, &batch);
    if (!status.ok()) {
      NoteFailedLog();
      ReplaceLog().IgnoreError();  // what is to be told is why the write failed
    }
    return FromRocks(status);
  }

  // RocksDB ends the process (an assertion) where a log is written or synced that failed before, and does not
  // always refuse to: until there is another log, nothing is written.
  void NoteFailedLog() { failed_log_ = CurrentLog().value_or(kUnknownLog); }
  // Its number takes a look at its file, which fails where the directory does.
  std::optional<uint64_t> CurrentLog() {
    std::unique_ptr<rocksdb::LogFile> log;
    if (!db_->GetCurrentWalFile(&log).ok() || !log) return std::nullopt;
    return log->LogNumber();
  }
  Status ReplaceLog() {
    Status resumed = ResumeWithin(*db_, kResumeLimit);
    if (!resumed.ok()) return resumed;
    const std::optional<uint64_t> before = CurrentLog();
    if (before && *failed_log_ != kUnknownLog && *before != *failed_log_) {
      failed_log_.reset();
      return OkStatus();
    }
    // Nothing was to be flushed, or nobody was told of the error. A flush begins a new log.
    rocksdb::WriteOptions unlogged;
    unlogged.disableWAL = true;
    db_->Put(unlogged, kNewLogKey, rocksdb::Slice()).PermitUncheckedError();
    FlushMemtables().IgnoreError();  // shows in the log's number
    TERRACE_RETURN_IF_ERROR(ResumeWithin(*db_, kResumeLimit));
    const std::optional<uint64_t> after = CurrentLog();
    if (!before || !after || *after == *before) return UnavailableError("manifest: its log failed");
    failed_log_.reset();
    return OkStatus();
  }
  Status FlushMemtables() {
    const std::vector<rocksdb::ColumnFamilyHandle*> families(handles_.begin(), handles_.end());
    return FromRocks(db_->Flush(rocksdb::FlushOptions(), families));
  }

  const RecordCipher* const cipher_;
  std::unique_ptr<rocksdb::Env> env_;
  std::unique_ptr<rocksdb::DB> db_;
  std::array<rocksdb::ColumnFamilyHandle*, 4> handles_{};
  std::mutex write_mutex_;  // of what follows, and of all that writes
  bool has_unlogged_ = false;
  static constexpr std::chrono::milliseconds kResumeLimit{2000};
  static constexpr uint64_t kUnknownLog = 0;  // no log has it
  std::optional<uint64_t> failed_log_;        // which has not been replaced
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
        whole = ReadContent(key, ViewOf(content->value())).ok();
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

Status RocksManifest::LoadPlaces(const std::function<void(std::span<LoadedRecord>)>& each,
                                 std::vector<std::string>* broken) {
  PlaceSink sink{.each = each, .broken = broken};
  constexpr std::string_view kMiddle = "\x80";  // keys are digests
  // Not on a thread of its own where the system has none left.
  std::future<Status> upper = std::async([&] { return LoadRange(kMiddle, {}, sink); });
  const Status lower = LoadRange({}, kMiddle, sink);
  const Status rest = upper.get();
  return lower.ok() ? rest : lower;
}

Status RocksManifest::LoadRange(std::string_view begin, std::string_view end, PlaceSink& sink) {
  return Guarded([&]() -> Status {
    rocksdb::ReadOptions options = ScanOptions();
    const rocksdb::Slice bound = SliceOf(end);
    if (!end.empty()) options.iterate_upper_bound = &bound;
    const std::unique_ptr<rocksdb::Iterator> place(db_->NewIterator(options, places()));
    std::vector<LoadedRecord> batch(kLoadBatch);
    std::vector<std::string> broken;
    size_t filled = 0;
    const auto give = [&] {
      const std::lock_guard lock(sink.mutex);
      sink.each(std::span(batch).first(filled));
      sink.broken->insert(sink.broken->end(), broken.begin(), broken.end());
      broken.clear();
      filled = 0;
    };
    for (place->Seek(SliceOf(begin)); place->Valid(); place->Next()) {
      const Result<ObjectId> id = DecodeRecordKey(ViewOf(place->key()));
      LoadedRecord& loaded = batch[filled];
      if (!id.ok() || !DecodePlace(ViewOf(place->value()), loaded.record).ok()) {
        broken.emplace_back(ViewOf(place->key()));
        continue;
      }
      loaded.id = *id;
      loaded.record_bytes = RecordBytes(place->value().size(), ContentBytes(loaded.record));
      if (++filled == batch.size()) give();
    }
    give();
    return FromRocks(place->status());
  });
}

Result<uint64_t> RocksManifest::ReserveGenerations(uint64_t count, uint64_t at_least,
                                                   const ManifestIdentity& identity) {
  return Guarded([&]() -> Result<uint64_t> {
    std::string stored;
    TERRACE_RETURN_IF_ERROR(GetOwn(kNextGenerationKey, &stored).status());
    uint64_t next = 1;
    if (stored.size() == sizeof(next)) std::memcpy(&next, stored.data(), sizeof(next));
    next = std::max(next, at_least);
    const uint64_t after = next + count;
    rocksdb::WriteBatch batch;
    TERRACE_RETURN_IF_ERROR(FromRocks(
        batch.Put(kNextGenerationKey, rocksdb::Slice(reinterpret_cast<const char*>(&after), sizeof(after)))));
    TERRACE_RETURN_IF_ERROR(FromRocks(batch.Put(kIdentityKey, EncodeIdentity(identity))));
    TERRACE_RETURN_IF_ERROR(Write(batch, RecordWrite::kSynced));
    // Out of the log: one that is lost later must not take the reservation with it.
    TERRACE_RETURN_IF_ERROR(FromRocks(db_->Flush(rocksdb::FlushOptions())));
    return next;
  });
}

Result<std::optional<ManifestIdentity>> RocksManifest::Identity() {
  return Guarded([&]() -> Result<std::optional<ManifestIdentity>> {
    std::string stored;
    TERRACE_ASSIGN_OR_RETURN(const bool found, GetOwn(kIdentityKey, &stored));
    if (!found) return std::optional<ManifestIdentity>();
    TERRACE_ASSIGN_OR_RETURN(ManifestIdentity identity, DecodeIdentity(stored));
    return std::optional<ManifestIdentity>(identity);
  });
}

Status RocksManifest::PutQuarantine(std::span<const Extent> extents) {
  return Guarded([&]() -> Status {
    rocksdb::WriteBatch batch;
    for (const Extent& extent : extents) {
      const std::string key = QuarantineKey(extent);
      const rocksdb::Slice length(reinterpret_cast<const char*>(&extent.length), sizeof(extent.length));
      TERRACE_RETURN_IF_ERROR(FromRocks(batch.Put(key, length)));
    }
    return Write(batch, RecordWrite::kSynced);
  });
}

Result<std::vector<Extent>> RocksManifest::LoadQuarantine() {
  return Guarded([&]() -> Result<std::vector<Extent>> {
    std::vector<Extent> extents;
    const std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions()));
    for (at->Seek(SliceOf(kQuarantinePrefix)); at->Valid(); at->Next()) {
      std::string_view key = ViewOf(at->key());
      if (!key.starts_with(kQuarantinePrefix)) break;
      key.remove_prefix(kQuarantinePrefix.size());
      if (key.size() != sizeof(uint32_t) + sizeof(uint64_t) || at->value().size() != sizeof(uint64_t))
        continue;
      Extent extent;
      for (size_t i = 0; i < sizeof(uint32_t); ++i) {
        extent.segment = extent.segment << 8 | static_cast<uint8_t>(key[i]);
      }
      for (size_t i = sizeof(uint32_t); i < key.size(); ++i) {
        extent.offset = extent.offset << 8 | static_cast<uint8_t>(key[i]);
      }
      std::memcpy(&extent.length, at->value().data(), sizeof(extent.length));
      extents.push_back(extent);
    }
    TERRACE_RETURN_IF_ERROR(FromRocks(at->status()));
    return extents;
  });
}

Result<ScanPage> RocksManifest::Scan(std::string_view cursor, size_t limit, ScanDetail detail) {
  return Guarded([&]() -> Result<ScanPage> {
    rocksdb::ManagedSnapshot snapshot(db_.get());
    rocksdb::ReadOptions options = ScanOptions();
    options.snapshot = snapshot.snapshot();
    const std::unique_ptr<rocksdb::Iterator> place(db_->NewIterator(options, places()));
    std::unique_ptr<rocksdb::Iterator> content;
    if (detail == ScanDetail::kContents) {
      content.reset(db_->NewIterator(options, contents()));
      content->Seek(SliceOf(cursor));
    }
    ScanPage page;
    ObjectRecord record;
    place->Seek(SliceOf(cursor));
    if (place->Valid() && ViewOf(place->key()) == cursor) place->Next();
    for (; place->Valid(); place->Next()) {
      const std::string_view key = ViewOf(place->key());
      if (page.objects.size() == limit) {
        page.next_cursor = EncodeRecordKey(page.objects.back().id);
        break;
      }
      const Result<ObjectId> id = DecodeRecordKey(key);
      // What is wrong is dropped by the next start.
      if (!id.ok() || !DecodePlace(ViewOf(place->value()), record).ok()) continue;
      page.objects.push_back({*id, record.meta});
      if (content) page.objects.back().meta.content = ContentAt(*content, key);
    }
    TERRACE_RETURN_IF_ERROR(FromRocks(place->status()));
    if (content) TERRACE_RETURN_IF_ERROR(FromRocks(content->status()));
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
    if (!found.ok() && !found.IsNotFound()) return FromRocks(found);
    if (found.ok()) {
      const Result<std::string> before = FromStored(key, stored);
      if (before.ok() && *before == value) return OkStatus();
    }
    TERRACE_ASSIGN_OR_RETURN(const std::string to_store, ToStored(key, value));
    rocksdb::WriteBatch batch;
    TERRACE_RETURN_IF_ERROR(FromRocks(batch.Put(roots(), SliceOf(key), to_store)));
    return Write(batch, RecordWrite::kLogged);
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
      const Result<std::string> value = FromStored(ViewOf(at->key()), ViewOf(at->value()));
      if (!value.ok()) continue;
      Result<RootRecord> record = DecodeRootRecord(root, *value);
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

Result<bool> Manifest::Exists(const std::string& path, rocksdb::FileSystem& files) {
  return Guarded([&]() -> Result<bool> {
    const rocksdb::IOStatus found = files.FileExists(path + "/CURRENT", rocksdb::IOOptions(), nullptr);
    if (found.ok()) return true;
    if (found.IsNotFound() || found.IsPathNotFound()) return false;
    return FromRocks(found);
  });
}

Result<std::unique_ptr<Manifest>> Manifest::Open(const std::string& path, uint64_t reserve_bytes,
                                                 std::shared_ptr<rocksdb::FileSystem> files,
                                                 const RecordCipher* cipher) {
  return Guarded([&]() -> Result<std::unique_ptr<Manifest>> {
    auto manifest = std::make_unique<RocksManifest>(std::move(files), cipher);
    TERRACE_RETURN_IF_ERROR(manifest->OpenDatabase(path, reserve_bytes));
    return std::unique_ptr<Manifest>(std::move(manifest));
  });
}

}  // namespace terrace
