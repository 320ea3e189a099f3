// Files that a program reads as a whole at start: bounded, and, where they hold secrets, their owner's alone.
#pragma once

#include <cstddef>
#include <string>

#include "terrace/status.h"

namespace terrace::options {

// The whole file. `name` is what messages call it ("key file \"/etc/keys\""). kPermissionDenied: this user
// may not read it; kNotFound; kInvalidArgument: no regular file, or longer than `max_bytes`; kUnavailable:
// the device failed.
Result<std::string> ReadWholeFile(const std::string& name, const std::string& path, size_t max_bytes);

// The same, and kPermissionDenied where others than the owner may read or write it. The caller wipes the text
// when it has what it needs of it.
Result<std::string> ReadPrivateFile(const std::string& name, const std::string& path, size_t max_bytes);

}  // namespace terrace::options
