// ErrnoStatus: what a failed system call means to a caller; and FileDescriptor.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

#include "lib/wire/file_descriptor.h"
#include "terrace/status.h"

namespace terrace {

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
