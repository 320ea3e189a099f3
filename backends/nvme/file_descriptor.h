// FileDescriptor: owns one descriptor. ErrnoStatus: what a failed system call means to a caller.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "terrace/status.h"

namespace terrace {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// "what: text of the error". A name that is absent is kNotFound, one that is taken kFailedPrecondition;
// ENOSPC and EDQUOT are kResourceExhausted, refusals kPermissionDenied, a symbolic link kDataLoss (somebody
// else made it), the rest kUnavailable.
inline Status ErrnoStatus(const std::string& what, int error) {
  const std::string text = what + ": " + std::strerror(error);
  switch (error) {
    case ENOENT:
      return NotFoundError(text);
    case EEXIST:
      return FailedPreconditionError(text);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ResourceExhaustedError(text);
    case EACCES:
    case EPERM:
    case EROFS:
      return Status(StatusCode::kPermissionDenied, text);
    case ELOOP:
      return DataLossError(what + ": is a symbolic link");
    default:
      return UnavailableError(text);
  }
}

}  // namespace terrace
