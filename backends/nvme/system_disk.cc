// SystemDisk: the Disk of the operating system. Every name is opened relative to the directory's descriptor,
// so that a directory that is moved or replaced under the tier does not mix with another.
#include <dirent.h>
#include <fcntl.h>
#include <rocksdb/file_system.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cstdio>
#include <utility>

#include "backends/nvme/directory_lock.h"
#include "backends/nvme/disk.h"
#include "backends/nvme/file_descriptor.h"
#include "backends/nvme/private_file_system.h"
#include "lib/base/status_macros.h"

namespace terrace {
namespace {

constexpr int kDirectoryFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// The call again for as long as a signal interrupts it.
template <typename Call>
auto Uninterrupted(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

Status OpenedDirectory(int fd, const std::string& what, FileDescriptor* directory) {
  *directory = FileDescriptor(fd);
  if (*directory) return OkStatus();
  // With O_DIRECTORY the kernel may answer ENOTDIR for a link.
  return errno == ENOTDIR ? DataLossError(what + ": is a symbolic link or no directory")
                          : ErrnoStatus(what, errno);
}

Result<std::vector<std::string>> NamesIn(int directory, const std::string& what) {
  // A descriptor of its own: a duplicate would share the position in the listing.
  const int listing = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (listing < 0) return ErrnoStatus(what, errno);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(listing), closedir);
  if (!entries) {
    const int error = errno;
    close(listing);
    return ErrnoStatus(what, error);
  }
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  if (errno != 0) return ErrnoStatus(what, errno);
  return names;
}

// With all that it holds; links go as names, what they point to stays.
Status RemoveTree(int parent, const std::string& name, const std::string& what) {
  FileDescriptor directory;
  TERRACE_RETURN_IF_ERROR(OpenedDirectory(openat(parent, name.c_str(), kDirectoryFlags), what, &directory));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory.get(), what));
  for (const std::string& inner : names) {
    const std::string inner_path = what + "/" + inner;
    if (unlinkat(directory.get(), inner.c_str(), 0) == 0 || errno == ENOENT) continue;
    if (errno != EISDIR && errno != EPERM) return ErrnoStatus(inner_path, errno);
    TERRACE_RETURN_IF_ERROR(RemoveTree(directory.get(), inner, inner_path));
  }
  if (unlinkat(parent, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) return ErrnoStatus(what, errno);
  return OkStatus();
}

class SystemFile : public DiskFile {
 public:
  SystemFile(FileDescriptor file, std::string path, bool is_direct)
      : file_(std::move(file)), path_(std::move(path)), is_direct_(is_direct) {}

  int fd() const override { return file_.get(); }
  bool is_direct() const override { return is_direct_; }

  Result<uint64_t> Size() const override {
    struct stat facts {};
    if (fstat(fd(), &facts) != 0) return ErrnoStatus(path_, errno);
    return static_cast<uint64_t>(facts.st_size);
  }

  Status Allocate(uint64_t size_bytes) override {
    const auto length = static_cast<off_t>(size_bytes);
    if (Uninterrupted([&] { return fallocate(fd(), 0, 0, length); }) == 0) return OkStatus();
    if (errno != EOPNOTSUPP && errno != ENOSYS) return ErrnoStatus(path_, errno);
    TERRACE_ASSIGN_OR_RETURN(const uint64_t present, Size());
    return present < size_bytes ? Truncate(size_bytes) : OkStatus();
  }

  Status Truncate(uint64_t size_bytes) override {
    const auto length = static_cast<off_t>(size_bytes);
    if (Uninterrupted([&] { return ftruncate(fd(), length); }) != 0) return ErrnoStatus(path_, errno);
    return OkStatus();
  }

  Result<uint64_t> WrittenBytes() const override {
    const off_t hole = lseek(fd(), 0, SEEK_HOLE);
    if (hole >= 0) return static_cast<uint64_t>(hole);
    if (errno == ENXIO) return uint64_t{0};  // an empty file
    return ErrnoStatus(path_, errno);
  }

  Status Sync() override {
    if (Uninterrupted([&] { return fdatasync(fd()); }) != 0) return ErrnoStatus("sync of " + path_, errno);
    return OkStatus();
  }

  Result<uint64_t> ReadAt(uint64_t offset, MutableBytes to) const override {
    uint64_t done = 0;
    while (done < to.size()) {
      const auto at = static_cast<off_t>(offset + done);
      const ssize_t n = Uninterrupted([&] { return pread(fd(), to.data() + done, to.size() - done, at); });
      if (n < 0) return ErrnoStatus("read of " + path_, errno);
      if (n == 0) break;
      done += static_cast<uint64_t>(n);
    }
    return done;
  }

  Status WriteAt(uint64_t offset, Bytes from) override {
    for (uint64_t done = 0; done < from.size();) {
      const auto at = static_cast<off_t>(offset + done);
      const ssize_t n =
          Uninterrupted([&] { return pwrite(fd(), from.data() + done, from.size() - done, at); });
      if (n <= 0) return ErrnoStatus("write of " + path_, n < 0 ? errno : ENOSPC);
      done += static_cast<uint64_t>(n);
    }
    return OkStatus();
  }

 private:
  FileDescriptor file_;
  std::string path_;
  bool is_direct_;
};

class SystemDisk : public Disk {
 public:
  SystemDisk(std::string path, IoEngineKind engine, IoEngineFactory factory)
      : path_(std::move(path)), engine_(engine), factory_(std::move(factory)) {
    while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  }

  const std::string& path() const override { return path_; }

  Status OpenDirectory() override {
    if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus("directory " + path_, errno);
    return OpenedDirectory(open(path_.c_str(), kDirectoryFlags), "directory " + path_, &directory_);
  }

  Status ProtectDirectory() override {
    if (fchmod(directory_.get(), 0700) != 0) return ErrnoStatus("mode 0700 of " + path_, errno);
    return OkStatus();
  }

  Result<std::vector<std::string>> List() const override {
    return NamesIn(directory_.get(), "directory " + path_);
  }

  Result<std::unique_ptr<DiskLock>> Lock() override { return AcquireDirectoryLock(directory_.get(), path_); }

  Result<std::unique_ptr<DiskFile>> OpenFile(const std::string& name, FileOpen how, bool direct) override;

  Status Remove(const std::string& name) override {
    if (unlinkat(directory_.get(), name.c_str(), 0) != 0 && errno != ENOENT) {
      return ErrnoStatus(PathOf(name), errno);
    }
    return OkStatus();
  }

  Status Rename(const std::string& from, const std::string& to) override {
    if (renameat(directory_.get(), from.c_str(), directory_.get(), to.c_str()) != 0) {
      return ErrnoStatus(PathOf(from), errno);
    }
    return OkStatus();
  }

  Status MakeDirectory(const std::string& name) override {
    const std::string path = PathOf(name);
    if (mkdirat(directory_.get(), name.c_str(), 0700) != 0 && errno != EEXIST)
      return ErrnoStatus(path, errno);
    FileDescriptor made;
    TERRACE_RETURN_IF_ERROR(
        OpenedDirectory(openat(directory_.get(), name.c_str(), kDirectoryFlags), path, &made));
    if (fchmod(made.get(), 0700) != 0) return ErrnoStatus("mode 0700 of " + path, errno);
    return OkStatus();
  }

  Status RemoveDirectory(const std::string& name) override {
    Status removed = RemoveTree(directory_.get(), name, PathOf(name));
    return removed.code() == StatusCode::kNotFound ? OkStatus() : removed;
  }

  Status SyncNames() override {
    if (Uninterrupted([&] { return fsync(directory_.get()); }) != 0) {
      return ErrnoStatus("sync of directory " + path_, errno);
    }
    return OkStatus();
  }

  Result<uint64_t> FreeBytes() const override {
    struct statvfs facts {};
    if (fstatvfs(directory_.get(), &facts) != 0) return ErrnoStatus("directory " + path_, errno);
    return uint64_t{facts.f_bavail} * facts.f_frsize;
  }

  Result<std::unique_ptr<IoEngine>> MakeEngine(uint32_t depth) override;

  std::shared_ptr<rocksdb::FileSystem> RocksFileSystem() override {
    return MakePrivateFileSystem(rocksdb::FileSystem::Default());
  }

 private:
  std::string PathOf(const std::string& name) const { return path_ + "/" + name; }

  std::string path_;
  IoEngineKind engine_;
  IoEngineFactory factory_;
  FileDescriptor directory_;
};

Result<std::unique_ptr<DiskFile>> SystemDisk::OpenFile(const std::string& name, FileOpen how, bool direct) {
  const std::string path = PathOf(name);
  int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;  // the last: a FIFO must not hold us
  if (how != FileOpen::kExisting) flags |= O_CREAT;
  if (how == FileOpen::kNew) flags |= O_EXCL;
  FileDescriptor file(openat(directory_.get(), name.c_str(), flags, 0600));
  if (!file) {
    if (errno == EISDIR || errno == ENXIO) return DataLossError(path + ": is not a regular file");
    // Of a file to be made it is the directory that is gone.
    if (errno == ENOENT && how != FileOpen::kExisting) {
      return UnavailableError("directory " + path_ + ": was removed");
    }
    return ErrnoStatus(path, errno);
  }
  struct stat facts {};
  if (fstat(file.get(), &facts) != 0) return ErrnoStatus(path, errno);
  if (!S_ISREG(facts.st_mode)) return DataLossError(path + ": is not a regular file");
  if (how != FileOpen::kExisting && fchmod(file.get(), 0600) != 0) {
    return ErrnoStatus("mode 0600 of " + path, errno);
  }
  // Asked for only now: some file systems make the file first and refuse the flag then. Both take O_NONBLOCK
  // away, under which io_uring would answer EAGAIN instead of waiting.
  const bool is_direct = direct && fcntl(file.get(), F_SETFL, O_DIRECT) == 0;
  if (!is_direct && fcntl(file.get(), F_SETFL, 0) != 0) return ErrnoStatus(path, errno);
  return std::unique_ptr<DiskFile>(std::make_unique<SystemFile>(std::move(file), path, is_direct));
}

Result<std::unique_ptr<IoEngine>> SystemDisk::MakeEngine(uint32_t depth) {
  if (engine_ == IoEngineKind::kThreads) return MakeThreadsEngine(depth, "threads are what was asked for");
  Result<std::unique_ptr<IoEngine>> engine = factory_ ? factory_(depth) : MakeUringEngine(depth);
  if (engine.status().code() != StatusCode::kUnavailable || engine_ == IoEngineKind::kIoUring) return engine;
  return MakeThreadsEngine(depth, std::string(engine.status().message()));
}

}  // namespace

std::unique_ptr<Disk> MakeSystemDisk(std::string path, IoEngineKind engine, IoEngineFactory factory) {
  return std::make_unique<SystemDisk>(std::move(path), engine, std::move(factory));
}

}  // namespace terrace
