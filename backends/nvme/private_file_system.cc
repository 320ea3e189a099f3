#include "backends/nvme/private_file_system.h"

#include <sys/stat.h>

#include <cerrno>
#include <string>

namespace terrace {
namespace {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

class PrivateFileSystem : public rocksdb::FileSystemWrapper {
 public:
  using FileSystemWrapper::FileSystemWrapper;

  const char* Name() const override { return "TerracePrivateFileSystem"; }

  IOStatus NewWritableFile(const std::string& name, const FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* file, IODebugContext* debug) override {
    IOStatus status = target()->NewWritableFile(name, options, file, debug);
    return status.ok() ? MakePrivate(name) : status;
  }
  IOStatus ReopenWritableFile(const std::string& name, const FileOptions& options,
                              std::unique_ptr<rocksdb::FSWritableFile>* file,
                              IODebugContext* debug) override {
    IOStatus status = target()->ReopenWritableFile(name, options, file, debug);
    return status.ok() ? MakePrivate(name) : status;
  }
  IOStatus ReuseWritableFile(const std::string& name, const std::string& old_name, const FileOptions& options,
                             std::unique_ptr<rocksdb::FSWritableFile>* file, IODebugContext* debug) override {
    IOStatus status = target()->ReuseWritableFile(name, old_name, options, file, debug);
    return status.ok() ? MakePrivate(name) : status;
  }
  IOStatus NewRandomRWFile(const std::string& name, const FileOptions& options,
                           std::unique_ptr<rocksdb::FSRandomRWFile>* file, IODebugContext* debug) override {
    IOStatus status = target()->NewRandomRWFile(name, options, file, debug);
    return status.ok() ? MakePrivate(name) : status;
  }
  IOStatus NewLogger(const std::string& name, const IOOptions& options,
                     std::shared_ptr<rocksdb::Logger>* logger, IODebugContext* debug) override {
    IOStatus status = target()->NewLogger(name, options, logger, debug);
    return status.ok() ? MakePrivate(name) : status;
  }
  IOStatus LockFile(const std::string& name, const IOOptions& options, rocksdb::FileLock** lock,
                    IODebugContext* debug) override {
    IOStatus status = target()->LockFile(name, options, lock, debug);
    return status.ok() ? MakePrivate(name) : status;
  }

 private:
  static IOStatus MakePrivate(const std::string& name) {
    if (chmod(name.c_str(), 0600) != 0)
      return IOStatus::IOError("mode 0600 of " + name, std::to_string(errno));
    return IOStatus::OK();
  }
};

}  // namespace

std::shared_ptr<rocksdb::FileSystem> MakePrivateFileSystem(std::shared_ptr<rocksdb::FileSystem> base) {
  return std::make_shared<PrivateFileSystem>(std::move(base));
}

}  // namespace terrace
