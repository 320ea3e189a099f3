#include "backends/nvme/manifest_reader.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <array>

#include "backends/nvme/manifest_rocks.h"
#include "backends/nvme/tier_directory.h"
#include "lib/base/status_macros.h"

namespace terrace {
namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

constexpr std::array<const char*, 4> kFamilyNames = {"places", "contents", "roots", "default"};
constexpr size_t kDropsPerWrite = 1024;

// Refuses whatever would make, change or remove a file.
class ReadOnlyFileSystem : public rocksdb::FileSystemWrapper {
 public:
  using FileSystemWrapper::FileSystemWrapper;
  const char* Name() const override { return "TerraceReadOnlyFileSystem"; }

  IOStatus NewWritableFile(const std::string& name, const FileOptions&,
                           std::unique_ptr<rocksdb::FSWritableFile>*, IODebugContext*) override {
    return Refusal(name);
  }
  IOStatus ReopenWritableFile(const std::string& name, const FileOptions&,
                              std::unique_ptr<rocksdb::FSWritableFile>*, IODebugContext*) override {
    return Refusal(name);
  }
  IOStatus ReuseWritableFile(const std::string& name, const std::string&, const FileOptions&,
                             std::unique_ptr<rocksdb::FSWritableFile>*, IODebugContext*) override {
    return Refusal(name);
  }
  IOStatus NewRandomRWFile(const std::string& name, const FileOptions&,
                           std::unique_ptr<rocksdb::FSRandomRWFile>*, IODebugContext*) override {
    return Refusal(name);
  }
  IOStatus DeleteFile(const std::string& name, const IOOptions&, IODebugContext*) override {
    return Refusal(name);
  }
  IOStatus CreateDir(const std::string& name, const IOOptions&, IODebugContext*) override {
    return Refusal(name);
  }
  IOStatus CreateDirIfMissing(const std::string& name, const IOOptions&, IODebugContext*) override {
    return Refusal(name);
  }
  IOStatus DeleteDir(const std::string& name, const IOOptions&, IODebugContext*) override {
    return Refusal(name);
  }
  IOStatus RenameFile(const std::string& name, const std::string&, const IOOptions&,
                      IODebugContext*) override {
    return Refusal(name);
  }
  IOStatus LinkFile(const std::string& name, const std::string&, const IOOptions&, IODebugContext*) override {
    return Refusal(name);
  }
  IOStatus Truncate(const std::string& name, size_t, const IOOptions&, IODebugContext*) override {
    return Refusal(name);
  }
  IOStatus NewLogger(const std::string& name, const IOOptions&, std::shared_ptr<rocksdb::Logger>*,
                     IODebugContext*) override {
    return Refusal(name);
  }

 private:
  static IOStatus Refusal(const std::string& name) {
    return IOStatus::NotSupported("opened for reading only", name);
  }
};

// Of reading: what is not the device's is damage.
Status FromReading(const rocksdb::Status& status) {
  if (status.ok()) return OkStatus();
  const std::string text = "manifest: " + status.ToString();
  if (status.IsNoSpace()) return ResourceExhaustedError(text);
  if (status.IsIOError() || status.IsBusy() || status.IsTryAgain()) return UnavailableError(text);
  return DataLossError(text);
}

std::string PathOf(const Disk& disk) { return disk.path() + "/" + kManifestDirectoryName; }

bool HasDatabase(rocksdb::FileSystem& files, const std::string& path) {
  return files.FileExists(path + "/CURRENT", IOOptions(), nullptr).ok();
}

// A database with all the families that it has, and those of ours among them.
struct Database {
  std::unique_ptr<rocksdb::Env> env;
  std::unique_ptr<rocksdb::DB> db;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;

  Database() = default;
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database() { Close().IgnoreError(); /* what had to be durable is synced */ }

  Status Open(std::shared_ptr<rocksdb::FileSystem> files, const std::string& path, bool read_only);
  Status Close();
  // Null where the database does not have it.
  rocksdb::ColumnFamilyHandle* Family(RecordFamily family) const {
    const auto is_it = [&](const rocksdb::ColumnFamilyHandle* handle) {
      return handle->GetName() == kFamilyNames[static_cast<size_t>(family)];
    };
    const auto at = std::find_if(handles.begin(), handles.end(), is_it);
    return at == handles.end() ? nullptr : *at;
  }
};

Status Database::Open(std::shared_ptr<rocksdb::FileSystem> files, const std::string& path, bool read_only) {
  if (read_only) files = std::make_shared<ReadOnlyFileSystem>(std::move(files));
  env = rocksdb::NewCompositeEnv(std::move(files));
  rocksdb::DBOptions options;
  options.env = env.get();
  options.info_log = std::make_shared<NullLogger>();
  options.allow_fallocate = false;
  options.manifest_preallocation_size = 4096;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  rocksdb::ColumnFamilyOptions family;
  family.compression = rocksdb::kNoCompression;
  family.level_compaction_dynamic_level_bytes = true;
  family.disable_auto_compactions = true;  // the tier's own options shape the files
  std::vector<std::string> names;
  TERRACE_RETURN_IF_ERROR(FromReading(rocksdb::DB::ListColumnFamilies(options, path, &names)));
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const std::string& name : names) families.emplace_back(name, family);
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status =
      read_only ? rocksdb::DB::OpenForReadOnly(options, path, families, &handles, &opened)
                : rocksdb::DB::Open(options, path, families, &handles, &opened);
  db.reset(opened);
  return FromReading(status);
}

Status Database::Close() {
  if (!db) return OkStatus();
  Status status;
  for (rocksdb::ColumnFamilyHandle* handle : handles) {
    const Status destroyed = FromReading(db->DestroyColumnFamilyHandle(handle));
    if (status.ok()) status = destroyed;
  }
  handles.clear();
  const Status closed = FromReading(db->Close());
  db.reset();
  return status.ok() ? closed : status;
}

class RocksManifestReader : public ManifestReader {
 public:
  Status OpenDatabase(Disk& disk) {
    const std::shared_ptr<rocksdb::FileSystem> files = disk.RocksFileSystem();
    if (!HasDatabase(*files, PathOf(disk))) return NotFoundError("manifest: there is no database");
    return database_.Open(files, PathOf(disk), true);
  }

  Status ForEach(RecordFamily family, const Record& record) override {
    return Guarded([&]() -> Status {
      const std::unique_ptr<rocksdb::Iterator> at = IteratorOf(family);
      if (!at) return OkStatus();
      for (at->SeekToFirst(); at->Valid(); at->Next()) record(ViewOf(at->key()), ViewOf(at->value()));
      return FromReading(at->status());
    });
  }

  Status ForEachObject(const Pair& pair) override {
    return Guarded([&]() -> Status {
      const std::unique_ptr<rocksdb::Iterator> place = IteratorOf(RecordFamily::kPlaces);
      const std::unique_ptr<rocksdb::Iterator> content = IteratorOf(RecordFamily::kContents);
      if (!place || !content) return DataLossError("manifest: a column family is missing");
      place->SeekToFirst();
      content->SeekToFirst();
      while (place->Valid() || content->Valid()) {
        // A scan that ended early must not make the other family's records look like halves.
        TERRACE_RETURN_IF_ERROR(FromReading(place->status()));
        TERRACE_RETURN_IF_ERROR(FromReading(content->status()));
        const int order = !content->Valid() ? -1 : !place->Valid() ? 1 : place->key().compare(content->key());
        const std::string_view place_value = order <= 0 ? ViewOf(place->value()) : std::string_view();
        const std::string_view content_value = order >= 0 ? ViewOf(content->value()) : std::string_view();
        pair(ViewOf(order <= 0 ? place->key() : content->key()), order <= 0 ? &place_value : nullptr,
             order >= 0 ? &content_value : nullptr);
        if (order <= 0) place->Next();
        if (order >= 0) content->Next();
      }
      TERRACE_RETURN_IF_ERROR(FromReading(place->status()));
      return FromReading(content->status());
    });
  }

  Result<std::optional<std::string>> Get(RecordFamily family, std::string_view key) override {
    return Guarded([&]() -> Result<std::optional<std::string>> {
      std::string value;
      rocksdb::ColumnFamilyHandle* handle = database_.Family(family);
      if (handle == nullptr) return std::optional<std::string>();
      const rocksdb::Status status = database_.db->Get(rocksdb::ReadOptions(), handle, SliceOf(key), &value);
      if (status.IsNotFound()) return std::optional<std::string>();
      TERRACE_RETURN_IF_ERROR(FromReading(status));
      return std::optional<std::string>(std::move(value));
    });
  }

 private:
  std::unique_ptr<rocksdb::Iterator> IteratorOf(RecordFamily family) {
    rocksdb::ColumnFamilyHandle* handle = database_.Family(family);
    if (handle == nullptr) return nullptr;
    rocksdb::ReadOptions options;
    options.fill_cache = false;
    options.readahead_size = size_t{1} << 20;
    return std::unique_ptr<rocksdb::Iterator>(database_.db->NewIterator(options, handle));
  }

  Database database_;
};

}  // namespace

Result<std::unique_ptr<ManifestReader>> ManifestReader::Open(Disk& disk) {
  return Guarded([&]() -> Result<std::unique_ptr<ManifestReader>> {
    auto reader = std::make_unique<RocksManifestReader>();
    TERRACE_RETURN_IF_ERROR(reader->OpenDatabase(disk));
    return std::unique_ptr<ManifestReader>(std::move(reader));
  });
}

uint64_t ManifestFileBytes(Disk& disk) {
  const std::shared_ptr<rocksdb::FileSystem> files = disk.RocksFileSystem();
  std::vector<rocksdb::FileAttributes> attributes;
  if (!files->GetChildrenFileAttributes(PathOf(disk), IOOptions(), &attributes, nullptr).ok()) return 0;
  uint64_t bytes = 0;
  for (const rocksdb::FileAttributes& one : attributes) bytes += one.size_bytes;
  return bytes;
}

Status DropRecords(Disk& disk, const RecordDrops& drops) {
  return Guarded([&]() -> Status {
    Database database;
    TERRACE_RETURN_IF_ERROR(database.Open(disk.RocksFileSystem(), PathOf(disk), false));
    rocksdb::WriteBatch batch;
    const auto write = [&](size_t at_least) {
      if (static_cast<size_t>(batch.Count()) < at_least) return OkStatus();
      rocksdb::WriteOptions options;
      options.sync = true;
      const rocksdb::Status status = database.db->Write(options, &batch);
      batch.Clear();
      return FromReading(status);
    };
    const auto drop = [&](RecordFamily family, const std::string& key) {
      rocksdb::ColumnFamilyHandle* handle = database.Family(family);
      return handle == nullptr ? OkStatus() : FromReading(batch.Delete(handle, key));
    };
    for (const std::string& key : drops.objects) {
      TERRACE_RETURN_IF_ERROR(drop(RecordFamily::kPlaces, key));
      TERRACE_RETURN_IF_ERROR(drop(RecordFamily::kContents, key));
      TERRACE_RETURN_IF_ERROR(write(kDropsPerWrite));
    }
    for (const auto& [key, place] : drops.contents) {
      rocksdb::ColumnFamilyHandle* places = database.Family(RecordFamily::kPlaces);
      if (places == nullptr) return DataLossError("manifest: a column family is missing");
      TERRACE_RETURN_IF_ERROR(FromReading(batch.Put(places, key, place)));
      TERRACE_RETURN_IF_ERROR(drop(RecordFamily::kContents, key));
      TERRACE_RETURN_IF_ERROR(write(kDropsPerWrite));
    }
    for (const std::string& key : drops.roots) {
      TERRACE_RETURN_IF_ERROR(drop(RecordFamily::kRoots, key));
      TERRACE_RETURN_IF_ERROR(write(kDropsPerWrite));
    }
    TERRACE_RETURN_IF_ERROR(write(1));
    return database.Close();
  });
}

}  // namespace terrace
