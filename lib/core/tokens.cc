#include "terrace/tokens.h"

#include <algorithm>
#include <string>

namespace terrace {
namespace {

// Items compare as byte strings; absent is less than present.
int CompareBytes(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  const auto order = std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(), b.end());
  return order < 0 ? -1 : order > 0 ? 1 : 0;
}

// The first position at which the item lists differ within [0, limit); `limit` where they do not. `sign`: a
// against b there.
uint64_t FirstItemDifference(const ChunkContent& a, const ChunkContent& b, uint64_t limit, int& sign) {
  size_t i = 0;
  for (;; ++i) {
    const uint64_t at_a = i < a.items.size() ? a.items[i].position : UINT64_MAX;
    const uint64_t at_b = i < b.items.size() ? b.items[i].position : UINT64_MAX;
    const uint64_t at = std::min(at_a, at_b);
    if (at >= limit) return limit;
    if (at_a != at_b) {
      sign = at_a < at_b ? 1 : -1;
      return at;
    }
    if (const int order = CompareBytes(a.items[i].bytes, b.items[i].bytes); order != 0) {
      sign = order;
      return at;
    }
  }
}

uint64_t CommonTokens(const ChunkContent& a, const ChunkContent& b) {
  const size_t n = std::min(a.tokens.size(), b.tokens.size());
  return static_cast<uint64_t>(
      std::mismatch(a.tokens.begin(), a.tokens.begin() + static_cast<ptrdiff_t>(n), b.tokens.begin()).first -
      a.tokens.begin());
}

}  // namespace

Status TokenView::Validate() const {
  uint64_t next = 0;
  for (const Item& item : items) {
    if (item.position < next || item.position >= tokens.size()) {
      return InvalidArgumentError("item position " + std::to_string(item.position) +
                                  "; allowed: strictly increasing, below the number of tokens (" +
                                  std::to_string(tokens.size()) + ")");
    }
    if (item.bytes.empty() || item.bytes.size() > kMaxItemBytes) {
      return InvalidArgumentError("item at position " + std::to_string(item.position) + " has " +
                                  std::to_string(item.bytes.size()) + " bytes; allowed: 1..64");
    }
    next = item.position + 1;
  }
  return OkStatus();
}

ChunkContent SliceContent(const TokenView& view, TokenRange range) {
  ChunkContent content;
  const auto part = view.tokens.subspan(range.begin, range.end - range.begin);
  content.tokens.assign(part.begin(), part.end());
  const auto first =
      std::lower_bound(view.items.begin(), view.items.end(), range.begin,
                       [](const Item& item, uint64_t position) { return item.position < position; });
  for (auto it = first; it != view.items.end() && it->position < range.end; ++it) {
    content.items.push_back({it->position - range.begin, it->bytes});
  }
  return content;
}

int CompareContent(const ChunkContent& a, const ChunkContent& b) {
  const uint64_t tokens = CommonTokens(a, b);
  const uint64_t shorter = std::min(a.tokens.size(), b.tokens.size());
  // An item at the position of the first differing token comes before that token in the order.
  int sign = 0;
  const uint64_t limit = std::min(tokens + 1, shorter);
  if (FirstItemDifference(a, b, limit, sign) < limit) return sign;
  if (tokens < shorter) return a.tokens[tokens] < b.tokens[tokens] ? -1 : 1;
  if (a.tokens.size() != b.tokens.size()) return a.tokens.size() < b.tokens.size() ? -1 : 1;
  return 0;
}

uint32_t CommonPrefixTokens(const ChunkContent& a, const ChunkContent& b) {
  int sign = 0;
  return static_cast<uint32_t>(FirstItemDifference(a, b, CommonTokens(a, b), sign));
}

}  // namespace terrace
