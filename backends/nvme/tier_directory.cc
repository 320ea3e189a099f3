#include "backends/nvme/tier_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <memory>
#include <optional>

#include "lib/base/status_macros.h"

namespace terrace {

Result<TierDirectory> TierDirectory::Open(const std::string& path, uint64_t segment_bytes) {
  TierDirectory directory;
  TERRACE_RETURN_IF_ERROR(directory.MakeAndOpen(path));
  // Looked at before the lock file is made: a foreign directory stays untouched.
  TERRACE_ASSIGN_OR_RETURN(std::optional<Superblock> found, directory.ReadSuperblock());
  if (!found) TERRACE_RETURN_IF_ERROR(directory.CheckNothingForeign());
  if (fchmod(directory.fd(), 0700) != 0) return ErrnoStatus("mode 0700 of " + path, errno);
  TERRACE_ASSIGN_OR_RETURN(directory.lock_, DirectoryLock::Acquire(directory.fd(), path));
  // Again under the lock: another process may have made it meanwhile.
  TERRACE_ASSIGN_OR_RETURN(found, directory.ReadSuperblock());
  if (!found) {
    TERRACE_ASSIGN_OR_RETURN(const Superblock made, NewSuperblock(segment_bytes));
    TERRACE_RETURN_IF_ERROR(directory.ReplaceSuperblock(made));
  } else {
    directory.superblock_ = *found;
  }
  if (mkdirat(directory.fd(), kManifestDirectoryName, 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(directory.manifest_path(), errno);
  }
  FileDescriptor manifest(
      openat(directory.fd(), kManifestDirectoryName, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!manifest) {
    const int error = errno;
    // With O_DIRECTORY the kernel may answer ENOTDIR for a link.
    return error == ENOTDIR
               ? DataLossError(directory.manifest_path() + ": is a symbolic link or no directory")
               : ErrnoStatus(directory.manifest_path(), error);
  }
  if (fchmod(manifest.get(), 0700) != 0)
    return ErrnoStatus("mode 0700 of " + directory.manifest_path(), errno);
  return directory;
}

Status TierDirectory::MakeAndOpen(const std::string& path) {
  path_ = path;
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus("directory " + path_, errno);
  fd_ = FileDescriptor(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd_) return OkStatus();
  const int error = errno;
  if (error == ENOTDIR) return DataLossError("directory " + path_ + ": is a symbolic link or no directory");
  return ErrnoStatus("directory " + path_, error);
}

Result<std::optional<Superblock>> TierDirectory::ReadSuperblock() const {
  const std::string name = path_ + "/" + kSuperblockFileName;
  FileDescriptor file(openat(fd(), kSuperblockFileName, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT) return std::optional<Superblock>();
    return ErrnoStatus(name, errno);
  }
  struct stat facts {};
  if (fstat(file.get(), &facts) != 0) return ErrnoStatus(name, errno);
  if (!S_ISREG(facts.st_mode)) return DataLossError(name + ": is not a regular file");
  std::array<char, kSuperblockBytes + 1> raw;  // one more, so that a longer file is seen
  const ssize_t got = pread(file.get(), raw.data(), raw.size(), 0);
  if (got < 0) return ErrnoStatus(name, errno);
  Result<Superblock> superblock = DecodeSuperblock({raw.data(), static_cast<size_t>(got)});
  if (!superblock.ok()) return superblock.status().WithContext("directory " + path_);
  return std::optional<Superblock>(*superblock);
}

Status TierDirectory::CheckNothingForeign() const {
  FileDescriptor listing(openat(fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!listing) return ErrnoStatus("directory " + path_, errno);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(dup(listing.get())), closedir);
  if (!entries) return ErrnoStatus("directory " + path_, errno);
  while (const dirent* entry = readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    // A process that died while it made the directory leaves no more than these.
    if (name == "." || name == ".." || name == kLockFileName || name == kSuperblockTemporaryName) continue;
    return DataLossError("directory " + path_ + " holds \"" + std::string(name) +
                         "\" and no superblock: it is not a Terrace directory, and stays as it is");
  }
  return OkStatus();
}

Status TierDirectory::ReplaceSuperblock(const Superblock& superblock) {
  const std::string name = path_ + "/" + kSuperblockTemporaryName;
  if (unlinkat(fd(), kSuperblockTemporaryName, 0) != 0 && errno != ENOENT) return ErrnoStatus(name, errno);
  FileDescriptor file(
      openat(fd(), kSuperblockTemporaryName, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return ErrnoStatus(name, errno);
  const std::string bytes = EncodeSuperblock(superblock);
  if (fchmod(file.get(), 0600) != 0) return ErrnoStatus(name, errno);
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = pwrite(file.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return ErrnoStatus(name, n < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(n);
  }
  if (fsync(file.get()) != 0) return ErrnoStatus(name, errno);
  if (renameat(fd(), kSuperblockTemporaryName, fd(), kSuperblockFileName) != 0)
    return ErrnoStatus(name, errno);
  if (fsync(fd()) != 0) return ErrnoStatus("directory " + path_, errno);
  superblock_ = superblock;
  return OkStatus();
}

}  // namespace terrace
