#include "connectors/options/private_file.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace terrace::options {
namespace {

struct FileCloser {
  ~FileCloser() {
    if (fd >= 0) close(fd);
  }
  int fd;
};

Result<std::string> Read(const std::string& name, const std::string& path, size_t max_bytes,
                         bool must_be_private) {
  const auto denied = [&](const std::string& why) {
    return Status(StatusCode::kPermissionDenied, name + ": " + why);
  };
  // Not held up by a pipe that nobody writes.
  const FileCloser file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) {
    const int error = errno;
    if (error == EACCES || error == EPERM) return denied("this user may not read it");
    if (error == ENOENT) return NotFoundError(name + ": is not there");
    return InvalidArgumentError(name + ": " + std::strerror(error));
  }
  struct stat facts {};
  if (fstat(file.fd, &facts) != 0) return UnavailableError(name + ": " + std::strerror(errno));
  if (!S_ISREG(facts.st_mode)) return InvalidArgumentError(name + ": is not a regular file");
  if (must_be_private && (facts.st_mode & 077) != 0) {
    return denied("others than its owner may use it; needed: chmod 600");
  }
  std::string text(max_bytes + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = read(file.fd, text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return UnavailableError(name + ": " + std::strerror(errno));
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  if (size > max_bytes) {
    explicit_bzero(text.data(), text.size());
    return InvalidArgumentError(name + ": longer than " + std::to_string(max_bytes >> 10) + " KiB");
  }
  text.resize(size);  // downwards: the buffer stays, so that one wipe of it is enough
  return text;
}

}  // namespace

Result<std::string> ReadWholeFile(const std::string& name, const std::string& path, size_t max_bytes) {
  return Read(name, path, max_bytes, false);
}

Result<std::string> ReadPrivateFile(const std::string& name, const std::string& path, size_t max_bytes) {
  return Read(name, path, max_bytes, true);
}

}  // namespace terrace::options
