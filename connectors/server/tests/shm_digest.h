// What two processes compare bytes by.
#pragma once

#include <string>

#include "terrace/bytes.h"

namespace terrace {

inline std::string DigestOf(Bytes bytes) {
  uint64_t digest = 0xcbf29ce484222325;  // FNV-1a
  for (const std::byte byte : bytes) digest = (digest ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  return std::to_string(digest);
}

}  // namespace terrace
