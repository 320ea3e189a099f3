// Superblock: what makes a directory a Terrace tier. One file, replaced as a whole (temporary file, fsync,
// rename, fsync of the directory), so that a reader sees the old one or the new one.
//
// Version 2, 4,096 bytes, little-endian (a directory of version 1 is read, and becomes one of version 2 when
// its superblock is replaced):
//
//   offset  size
//   0       8     magic "TERRDIR1"
//   8       4     u32 version = 2
//   12      4     u32 reserved = 0
//   16      16    directory id, random, for ever the same
//   32      32    secret, random, the key of the tier pages' codes; Clear replaces it
//   64      8     u64 segment_bytes
//   72      8     u64 rebuild_floor: a rebuild adopts no frame with a generation below it
//   80      4     u32 number of keys; 0 = not encrypted
//   84      4     u32 reserved = 0
//   88      192   keys, 8 x { u32 id | u32 reserved = 0 | check[16] }, ids rising, unused zero
//   280     16    XXH3-128 of bytes [0, 280): low, high
//   296     3800  zeros
//
// Version 1 ended after segment_bytes: its XXH3-128 of bytes [0, 72) is at offset 72.
//
// check = first 16 bytes of HMAC-SHA-256(key, "terrace-key-check-1\0" || directory id): tells a wrong key
// from the right one and nothing else of it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/wire/tier_page.h"
#include "terrace/status.h"

namespace terrace {

inline constexpr uint32_t kSuperblockVersion = 2;
inline constexpr size_t kSuperblockBytes = 4096;

inline constexpr size_t kMaxKeys = 8;

struct KeyCheck {
  uint32_t id = 0;
  std::array<std::byte, 16> check{};
  friend bool operator==(const KeyCheck&, const KeyCheck&) = default;
};

struct Superblock {
  DirectoryId directory{};
  DirectorySecret secret{};
  uint64_t segment_bytes = 0;
  uint64_t rebuild_floor = 0;
  std::vector<KeyCheck> keys;  // at most kMaxKeys, ids above 0 and rising
};

std::string EncodeSuperblock(const Superblock& superblock);
// kDataLoss with the reason: not a superblock, a newer version, a wrong checksum, fields that no writer
// makes.
Result<Superblock> DecodeSuperblock(std::string_view bytes);

// From the system's random source.
Result<Superblock> NewSuperblock(uint64_t segment_bytes);
Result<DirectorySecret> NewSecret();

}  // namespace terrace
