// The names of what is stored: ChunkKey (a chunk with its whole prefix) and ObjectId (the KV of one
// chunk, one group, one shard). Plain values, safe everywhere.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "terrace/export.h"
#include "terrace/status.h"

namespace terrace {

// 256 bits: SHA-256 of what DESIGN section 3 lists. Never a process-seeded hash.
struct TERRACE_API Digest {
  std::array<std::byte, 32> bytes{};

  // In one step each: tables that are keyed by digests live from it.
  friend bool operator==(const Digest& a, const Digest& b) {
    return std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0;
  }
  friend std::strong_ordering operator<=>(const Digest& a, const Digest& b) {
    return std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) <=> 0;
  }
  // 64 lower-case hex digits.
  std::string ToHex() const;
  // kInvalidArgument unless exactly 64 hex digits.
  static Result<Digest> FromHex(std::string_view hex);
  // The first eight bytes: the digest is uniform, so they serve as the hash of a table.
  uint64_t Prefix64() const {
    uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof(word));
    return word;
  }
};

// The key of a chunk; the key of the empty prefix is the root.
using ChunkKey = Digest;

// One part of a chunk: which group of layers, which tensor- or pipeline-parallel range.
struct ObjectPart {
  uint16_t group = 0;
  uint16_t shard = 0;
  friend auto operator<=>(const ObjectPart&, const ObjectPart&) = default;
};

struct ObjectId {
  ChunkKey key;
  ObjectPart part;
  friend auto operator<=>(const ObjectId&, const ObjectId&) = default;
};

struct DigestHash {
  size_t operator()(const Digest& digest) const { return digest.Prefix64(); }
};

struct ObjectIdHash {
  size_t operator()(const ObjectId& id) const {
    const uint64_t part = (uint64_t{id.part.group} << 16) | id.part.shard;
    return id.key.Prefix64() ^ (part * 0x9e3779b97f4a7c15ull);
  }
};

}  // namespace terrace
