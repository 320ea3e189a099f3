// What the tests of the index share: made-up keys, contents as queries.
#pragma once

#include <cstring>
#include <string_view>
#include <vector>

#include "lib/core/chunk_index.h"

namespace terrace {

// Tests of a million entries are this much smaller under sanitizers.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr size_t kScale = 20;
#else
inline constexpr size_t kScale = 1;
#endif

inline std::vector<std::byte> Bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// A key that no content has: for tests in which the content does not matter.
inline ChunkKey KeyNumber(uint64_t n) {
  ChunkKey key;
  uint64_t state = n;
  for (size_t i = 0; i < 4; ++i) {  // splitmix64
    uint64_t word = state += 0x9e3779b97f4a7c15ull;
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ull;
    word = (word ^ word >> 27) * 0x94d049bb133111ebull;
    word ^= word >> 31;
    std::memcpy(key.bytes.data() + 8 * i, &word, sizeof(word));
    state = word + n;
  }
  return key;
}

inline PromptSlice Whole(const ChunkContent& content) {
  return PromptSlice({content.tokens, content.items}, {0, content.tokens.size()});
}

inline IndexEntry& Add(ChunkIndex& index, const ChunkKey& key, const ChunkKey& parent,
                       const ChunkContent& content) {
  return index.Add({.key = key, .parent = parent, .root_number = 3, .first_token = 256},
                   PackedContent::Make(content));
}

}  // namespace terrace
