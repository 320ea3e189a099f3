// TokenHasher: the chain of chunk keys of a prompt that grows. Chunks start at multiples of
// tokens_per_chunk; only full chunks have children. Appending hashes only the new tokens.
//
// key = SHA-256("terrace-key-1\0" | parent[32] | u32 n_tokens | u32 token[n_tokens] | u32 n_items |
//               { u32 position | u32 length | bytes }[n_items]), little-endian, positions in the chunk.
// Examples for every language: tests/golden/keys.json.
//
// Not thread safe; copyable by Clone. SHA-256 is OpenSSL's, its method fetched once per process.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "terrace/export.h"
#include "terrace/object_id.h"
#include "terrace/tokens.h"

namespace terrace {

class TERRACE_API TokenHasher {
 public:
  // The empty prefix of `root`. tokens_per_chunk is 1..4,096.
  TokenHasher(const ChunkKey& root, uint32_t tokens_per_chunk);
  ~TokenHasher();
  TokenHasher(TokenHasher&&) noexcept;
  TokenHasher& operator=(TokenHasher&&) noexcept;

  // Appends tokens; item positions count from the beginning of the prompt, are at or after
  // num_tokens() and strictly increasing. kInvalidArgument leaves the hasher as it was.
  Status Append(const TokenView& more);

  uint64_t num_tokens() const;
  // Keys of the full chunks, in prefix order. Valid until the next Append.
  std::span<const ChunkKey> full_keys() const;
  // Parent of the chunk that is being filled: the last full key, or the root.
  const ChunkKey& parent() const;
  // Tokens and items after the last full chunk (positions in the chunk); empty at a boundary.
  const ChunkContent& tail() const;
  // The key of the tail as a partial chunk; the root or last full key where the tail is empty.
  ChunkKey TailKey() const;

  // The key of one chunk.
  static ChunkKey KeyOf(const ChunkKey& parent, const ChunkContent& content);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace
