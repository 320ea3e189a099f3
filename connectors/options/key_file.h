// Key file: the keys of encryption at rest, one per line, for the programs of this tree.
//
//   # made with: printf '1 %s\n' "$(openssl rand -hex 32)" > keys; chmod 600 keys
//   1 8f0e...   (the id, above 0, and 64 hex digits; spaces or tabs between)
//   2 77ab...   (the highest id encrypts, all decrypt: a rotation adds a line)
//
// Empty lines and lines that begin with # say nothing. The file is its owner's alone (mode 0600 or 0400).
// No message holds a key.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "terrace/nvme_backend.h"
#include "terrace/status.h"

namespace terrace::options {

// kInvalidArgument with everything that is wrong, by line.
Result<std::vector<EncryptionKey>> ParseKeys(std::string_view text);

// kPermissionDenied where others than the owner may read or write the file, or this user may not; kNotFound;
// kInvalidArgument for what is no regular file, is longer than 64 KiB, or is not as drawn above.
Result<std::vector<EncryptionKey>> ReadKeyFile(const std::string& path);

}  // namespace terrace::options
