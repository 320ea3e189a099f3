// Tokens and items: what a prefix is made of. An item is the content hash of an image, an audio
// clip or the like that stands at a token position (engines put equal placeholder tokens there, so
// the tokens alone would match another image). Wherever tokens are kept or sent, items are too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "terrace/export.h"
#include "terrace/status.h"

namespace terrace {

using Token = uint32_t;

inline constexpr size_t kMaxItemBytes = 64;

struct Item {
  // In a TokenView: the position in the whole prompt. In a ChunkContent: in the chunk.
  uint64_t position = 0;
  std::vector<std::byte> bytes;  // 1 to kMaxItemBytes
  friend bool operator==(const Item&, const Item&) = default;
};

// A prompt, or the beginning of one. Borrowed: the caller keeps both arrays alive during the call.
struct TokenView {
  std::span<const Token> tokens;
  std::span<const Item> items;  // positions strictly increasing, below tokens.size()

  TokenView() = default;
  TokenView(std::span<const Token> t) : tokens(t) {}     // NOLINT: a prompt without items
  TokenView(const std::vector<Token>& t) : tokens(t) {}  // NOLINT: the same
  TokenView(std::span<const Token> t, std::span<const Item> i) : tokens(t), items(i) {}

  // kInvalidArgument with the first position or length that is wrong.
  TERRACE_API Status Validate() const;
};

// What one chunk holds. Immutable once shared: index, manifest and operations refer to one copy.
struct ChunkContent {
  std::vector<Token> tokens;
  std::vector<Item> items;  // positions in the chunk
  friend bool operator==(const ChunkContent&, const ChunkContent&) = default;
};
using ChunkContentRef = std::shared_ptr<const ChunkContent>;

// Half open, in tokens of the prompt.
struct TokenRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// The content of tokens [begin, end) of `view`, item positions counted from `begin`.
TERRACE_API ChunkContent SliceContent(const TokenView& view, TokenRange range);

// Order and match of chunk contents. The order is lexicographic over the sequence of
// (token, item at that position or none); in it the longest common prefix of a query with any
// member of a sorted set is found at one of the query's two neighbours. (Ordering whole token
// lists first and items second would not have that property: an early item decides a match.)
TERRACE_API int CompareContent(const ChunkContent& a, const ChunkContent& b);
// The largest m such that tokens [0, m) are equal and all items before m are equal byte for byte.
TERRACE_API uint32_t CommonPrefixTokens(const ChunkContent& a, const ChunkContent& b);

}  // namespace terrace
