// Superblock: what makes a directory a Terrace tier. One file, replaced as a whole (temporary file, fsync,
// rename, fsync of the directory), so that a reader sees the old one or the new one.
//
// Version 1, 4,096 bytes, little-endian:
//
//   offset  size
//   0       8     magic "TERRDIR1"
//   8       4     u32 version = 1
//   12      4     u32 reserved = 0
//   16      16    directory id, random, for ever the same
//   32      32    secret, random, the key of the tier pages' codes; Clear replaces it
//   64      8     u64 segment_bytes
//   72      16    XXH3-128 of bytes [0, 72): low, high
//   88      4008  zeros
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lib/wire/tier_page.h"
#include "terrace/status.h"

namespace terrace {

inline constexpr uint32_t kSuperblockVersion = 1;
inline constexpr size_t kSuperblockBytes = 4096;

struct Superblock {
  DirectoryId directory{};
  DirectorySecret secret{};
  uint64_t segment_bytes = 0;
};

std::string EncodeSuperblock(const Superblock& superblock);
// kDataLoss with the reason: not a superblock, a newer version, a wrong checksum.
Result<Superblock> DecodeSuperblock(std::string_view bytes);

// From the system's random source.
Result<Superblock> NewSuperblock(uint64_t segment_bytes);
Result<DirectorySecret> NewSecret();

}  // namespace terrace
