// What RocksDB sees of a SimulatedWorld.
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <cerrno>
#include <cstring>

#include "backends/nvme/tests/simulated_disk.h"

namespace terrace {
namespace {

using rocksdb::DirFsyncOptions;
using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

using WorldRef = std::shared_ptr<SimulatedWorld>;
using Caller = SimulatedWorld::Caller;
using File = SimulatedWorld::File;

IOStatus StatusOf(const std::string& what, int error) {
  switch (error) {
    case 0:
      return IOStatus::OK();
    case ENOENT:
      return IOStatus::PathNotFound(what, "no such file");
    case ENOSPC: {
      IOStatus status = IOStatus::NoSpace(what, std::strerror(error));
      status.SetRetryable(true);
      return status;
    }
    default:
      return IOStatus::IOError(what, std::strerror(error));
  }
}

struct OpenFile {
  WorldRef world;
  Caller who;
  std::string name;
  File file;

  IOStatus Read(uint64_t offset, size_t n, Slice* result, char* scratch) const {
    uint64_t done = 0;
    const MutableBytes to(reinterpret_cast<std::byte*>(scratch), n);
    const int error = world->Read(who, file, offset, to, &done);
    *result = Slice(scratch, done);
    return StatusOf(name, error);
  }
};

class SequentialFile : public rocksdb::FSSequentialFile {
 public:
  explicit SequentialFile(OpenFile file) : file_(std::move(file)) {}
  IOStatus Read(size_t n, const IOOptions&, Slice* result, char* scratch, IODebugContext*) override {
    IOStatus status = file_.Read(at_, n, result, scratch);
    at_ += result->size();
    return status;
  }
  IOStatus Skip(uint64_t n) override {
    at_ += n;
    return IOStatus::OK();
  }
  IOStatus InvalidateCache(size_t, size_t) override { return IOStatus::OK(); }

 private:
  const OpenFile file_;
  uint64_t at_ = 0;
};

class RandomAccessFile : public rocksdb::FSRandomAccessFile {
 public:
  explicit RandomAccessFile(OpenFile file) : file_(std::move(file)) {}
  IOStatus Read(uint64_t offset, size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) const override {
    return file_.Read(offset, n, result, scratch);
  }
  IOStatus InvalidateCache(size_t, size_t) override { return IOStatus::OK(); }

 private:
  const OpenFile file_;
};

class WritableFile : public rocksdb::FSWritableFile {
 public:
  WritableFile(OpenFile file, const FileOptions& options) : FSWritableFile(options), file_(std::move(file)) {}

  IOStatus Append(const Slice& bytes, const IOOptions&, IODebugContext*) override {
    const Bytes from(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
    return StatusOf(file_.name, file_.world->Append(file_.who, file_.file, from));
  }
  IOStatus Append(const Slice& bytes, const IOOptions& options, const rocksdb::DataVerificationInfo&,
                  IODebugContext* debug) override {
    return Append(bytes, options, debug);
  }
  IOStatus Truncate(uint64_t size, const IOOptions&, IODebugContext*) override {
    return StatusOf(file_.name, file_.world->Truncate(file_.who, file_.file, size));
  }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    return StatusOf("sync of " + file_.name, file_.world->Sync(file_.who, file_.file));
  }
  bool IsSyncThreadSafe() const override { return true; }
  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override {
    uint64_t bytes = 0;
    return file_.world->Size(file_.who, file_.file, &bytes) == 0 ? bytes : 0;
  }
  IOStatus InvalidateCache(size_t, size_t) override { return IOStatus::OK(); }
  // It starts the writing and waits for nothing: what is volatile stays so.
  IOStatus RangeSync(uint64_t, uint64_t, const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();
  }

 private:
  const OpenFile file_;
};

class OpenDirectory : public rocksdb::FSDirectory {
 public:
  OpenDirectory(WorldRef world, Caller who, std::string path)
      : world_(std::move(world)), who_(who), path_(std::move(path)) {}
  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    return StatusOf("sync of " + path_, world_->SyncNames(who_, path_));
  }
  IOStatus FsyncWithDirOptions(const IOOptions& options, IODebugContext* debug,
                               const DirFsyncOptions&) override {
    return Fsync(options, debug);
  }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

 private:
  const WorldRef world_;
  const Caller who_;
  const std::string path_;
};

class HeldLock : public rocksdb::FileLock {
 public:
  explicit HeldLock(std::string held_path) : path(std::move(held_path)) {}
  const std::string path;
};

class SilentLogger : public rocksdb::Logger {
 public:
  using Logger::Logv;
  void Logv(const char*, va_list) override {}
  size_t GetLogFileSize() const override { return 0; }
};

class SimulatedFileSystem : public rocksdb::FileSystem {
 public:
  explicit SimulatedFileSystem(WorldRef world)
      : world_(std::move(world)), who_{SimulatedPart::kManifest, world_->life()} {}

  const char* Name() const override { return "TerraceSimulatedFileSystem"; }

  IOStatus NewSequentialFile(const std::string& name, const FileOptions&,
                             std::unique_ptr<rocksdb::FSSequentialFile>* result, IODebugContext*) override {
    OpenFile file;
    IOStatus status = Open(name, terrace::FileOpen::kExisting, &file);
    if (status.ok()) *result = std::make_unique<SequentialFile>(std::move(file));
    return status;
  }
  IOStatus NewRandomAccessFile(const std::string& name, const FileOptions&,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                               IODebugContext*) override {
    OpenFile file;
    IOStatus status = Open(name, terrace::FileOpen::kExisting, &file);
    if (status.ok()) *result = std::make_unique<RandomAccessFile>(std::move(file));
    return status;
  }
  IOStatus NewWritableFile(const std::string& name, const FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* result, IODebugContext*) override {
    OpenFile file;
    IOStatus status = Open(name, terrace::FileOpen::kOpenOrCreate, &file);
    if (status.ok()) status = StatusOf(name, world_->Truncate(who_, file.file, 0));
    if (status.ok()) *result = std::make_unique<WritableFile>(std::move(file), options);
    return status;
  }
  IOStatus ReopenWritableFile(const std::string& name, const FileOptions& options,
                              std::unique_ptr<rocksdb::FSWritableFile>* result, IODebugContext*) override {
    OpenFile file;
    IOStatus status = Open(name, terrace::FileOpen::kOpenOrCreate, &file);
    if (status.ok()) *result = std::make_unique<WritableFile>(std::move(file), options);
    return status;
  }
  IOStatus NewDirectory(const std::string& name, const IOOptions&,
                        std::unique_ptr<rocksdb::FSDirectory>* result, IODebugContext*) override {
    IOStatus status = IsADirectory(name);
    if (status.ok()) *result = std::make_unique<OpenDirectory>(world_, who_, name);
    return status;
  }

  IOStatus FileExists(const std::string& name, const IOOptions&, IODebugContext*) override {
    bool is_directory = false;
    const int error = world_->IsDirectory(who_, name, &is_directory);
    return error == ENOENT ? IOStatus::NotFound() : StatusOf(name, error);
  }
  IOStatus GetChildren(const std::string& path, const IOOptions&, std::vector<std::string>* names,
                       IODebugContext*) override {
    const int error = world_->List(who_, path, names);
    return error == ENOENT ? IOStatus::NotFound() : StatusOf(path, error);
  }
  IOStatus DeleteFile(const std::string& name, const IOOptions&, IODebugContext*) override {
    return StatusOf(name, world_->Remove(who_, name));
  }
  IOStatus Truncate(const std::string& name, size_t size, const IOOptions&, IODebugContext*) override {
    OpenFile file;
    IOStatus status = Open(name, terrace::FileOpen::kExisting, &file);
    return status.ok() ? StatusOf(name, world_->Truncate(who_, file.file, size)) : status;
  }
  IOStatus CreateDir(const std::string& path, const IOOptions&, IODebugContext*) override {
    return StatusOf(path, world_->MakeDirectory(who_, path));
  }
  IOStatus CreateDirIfMissing(const std::string& path, const IOOptions&, IODebugContext*) override {
    const int error = world_->MakeDirectory(who_, path);
    return error == EEXIST ? IsADirectory(path) : StatusOf(path, error);
  }
  IOStatus DeleteDir(const std::string& path, const IOOptions&, IODebugContext*) override {
    std::vector<std::string> names;
    int error = world_->List(who_, path, &names);
    if (error == 0) error = names.empty() ? world_->RemoveDirectory(who_, path) : ENOTEMPTY;
    return StatusOf(path, error);
  }
  IOStatus GetFileSize(const std::string& name, const IOOptions&, uint64_t* size, IODebugContext*) override {
    OpenFile file;
    IOStatus status = Open(name, terrace::FileOpen::kExisting, &file);
    return status.ok() ? StatusOf(name, world_->Size(who_, file.file, size)) : status;
  }
  IOStatus GetFileModificationTime(const std::string&, const IOOptions&, uint64_t* time,
                                   IODebugContext*) override {
    *time = 0;
    return IOStatus::OK();
  }
  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions&,
                      IODebugContext*) override {
    return StatusOf(from, world_->Rename(who_, from, to));
  }
  IOStatus LockFile(const std::string& name, const IOOptions&, rocksdb::FileLock** lock,
                    IODebugContext*) override {
    *lock = nullptr;
    OpenFile file;
    IOStatus status = Open(name, terrace::FileOpen::kOpenOrCreate, &file);
    if (status.ok()) status = StatusOf("lock " + name, world_->Lock(who_, name));
    if (status.ok()) *lock = new HeldLock(name);
    return status;
  }
  IOStatus UnlockFile(rocksdb::FileLock* lock, const IOOptions&, IODebugContext*) override {
    const std::unique_ptr<HeldLock> held(static_cast<HeldLock*>(lock));
    world_->Unlock(who_, held->path);
    return IOStatus::OK();
  }
  IOStatus GetTestDirectory(const IOOptions&, std::string* path, IODebugContext*) override {
    *path = "/test";
    return IOStatus::OK();
  }
  IOStatus NewLogger(const std::string&, const IOOptions&, std::shared_ptr<rocksdb::Logger>* logger,
                     IODebugContext*) override {
    *logger = std::make_shared<SilentLogger>();
    return IOStatus::OK();
  }
  IOStatus GetAbsolutePath(const std::string& path, const IOOptions&, std::string* absolute,
                           IODebugContext*) override {
    *absolute = path;
    return IOStatus::OK();
  }
  IOStatus GetFreeSpace(const std::string& path, const IOOptions&, uint64_t* bytes,
                        IODebugContext*) override {
    return StatusOf(path, world_->FreeBytes(who_, bytes));
  }
  IOStatus IsDirectory(const std::string& path, const IOOptions&, bool* is_directory,
                       IODebugContext*) override {
    return StatusOf(path, world_->IsDirectory(who_, path, is_directory));
  }

 private:
  IOStatus Open(const std::string& name, terrace::FileOpen how, OpenFile* file) const {
    *file = {world_, who_, name, nullptr};
    return StatusOf(name, world_->Open(who_, name, how, &file->file));
  }
  IOStatus IsADirectory(const std::string& path) const {
    bool is_directory = false;
    IOStatus status = StatusOf(path, world_->IsDirectory(who_, path, &is_directory));
    if (status.ok() && !is_directory) return IOStatus::IOError(path, "is not a directory");
    return status;
  }

  const WorldRef world_;
  const Caller who_;
};

}  // namespace

std::shared_ptr<rocksdb::FileSystem> MakeSimulatedFileSystem(std::shared_ptr<SimulatedWorld> world) {
  return std::make_shared<SimulatedFileSystem>(std::move(world));
}

}  // namespace terrace
