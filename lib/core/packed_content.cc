#include "lib/core/packed_content.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "lib/base/check.h"

namespace terrace {
namespace {

struct PlacedItem {
  uint64_t position = UINT64_MAX;  // in the chunk; UINT64_MAX: no more items
  std::span<const std::byte> bytes;
};

constexpr size_t kItemHeadBytes = 2 * sizeof(uint32_t);

size_t PaddedBytes(size_t length) { return (length + 3) / 4 * 4; }

// The items of a packed content, one after the other.
class PackedItemReader {
 public:
  PackedItemReader(const std::byte* at, uint32_t num_items) : at_(at), left_(num_items) {}
  PlacedItem Next() {
    if (left_ == 0) return {};
    --left_;
    uint32_t head[2];
    std::memcpy(head, at_, sizeof(head));
    const PlacedItem item{head[0], {at_ + kItemHeadBytes, head[1]}};
    at_ += kItemHeadBytes + PaddedBytes(head[1]);
    return item;
  }

 private:
  const std::byte* at_;
  uint32_t left_;
};

// The same of a prompt's slice.
class SliceItemReader {
 public:
  SliceItemReader(std::span<const Item> items, uint64_t begin) : items_(items), begin_(begin) {}
  PlacedItem Next() {
    if (next_ == items_.size()) return {};
    const Item& item = items_[next_++];
    return {item.position - begin_, item.bytes};
  }

 private:
  std::span<const Item> items_;
  uint64_t begin_;
  size_t next_ = 0;
};

// Blocks by memcmp, which the C library does in vectors, then token by token in the block that differs.
uint64_t CommonTokens(std::span<const Token> a, std::span<const Token> b) {
  constexpr size_t kBlock = 32;
  const size_t n = std::min(a.size(), b.size());
  size_t i = 0;
  while (i + kBlock <= n && std::memcmp(&a[i], &b[i], kBlock * sizeof(Token)) == 0) i += kBlock;
  while (i < n && a[i] == b[i]) ++i;
  return i;
}

int CompareBytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  const size_t n = std::min(a.size(), b.size());
  const int order = n == 0 ? 0 : std::memcmp(a.data(), b.data(), n);
  if (order != 0) return order < 0 ? -1 : 1;
  return a.size() < b.size() ? -1 : a.size() > b.size() ? 1 : 0;
}

// The first position below `limit` at which the items differ, else `limit`. `sign`: a against b there, where
// absent is less than present.
template <typename ReaderA, typename ReaderB>
uint64_t FirstItemDifference(ReaderA a, ReaderB b, uint64_t limit, int& sign) {
  while (true) {
    const PlacedItem item_a = a.Next();
    const PlacedItem item_b = b.Next();
    const uint64_t at = std::min(item_a.position, item_b.position);
    if (at >= limit) return limit;
    if (item_a.position != item_b.position) {
      sign = item_a.position < item_b.position ? 1 : -1;
      return at;
    }
    if (const int order = CompareBytes(item_a.bytes, item_b.bytes); order != 0) {
      sign = order;
      return at;
    }
  }
}

template <typename ReaderA, typename ReaderB>
int CompareWith(std::span<const Token> a, ReaderA items_a, std::span<const Token> b, ReaderB items_b) {
  const uint64_t common = CommonTokens(a, b);
  const uint64_t shorter = std::min(a.size(), b.size());
  // An item at the position of the first differing token comes before that token in the order.
  const uint64_t limit = std::min(common + 1, shorter);
  int sign = 0;
  if (FirstItemDifference(items_a, items_b, limit, sign) < limit) return sign;
  if (common < shorter) return a[common] < b[common] ? -1 : 1;
  return a.size() < b.size() ? -1 : a.size() > b.size() ? 1 : 0;
}

}  // namespace

PackedContentRef::PackedContentRef(const PackedContentRef& other) : content_(other.content_) {
  if (content_ != nullptr) content_->references_.fetch_add(1, std::memory_order_relaxed);
}

PackedContentRef::~PackedContentRef() {
  if (content_ == nullptr || content_->references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  content_->~PackedContent();
  std::free(content_);
}

PromptSlice::PromptSlice(const TokenView& prompt, TokenRange range)
    : tokens_(prompt.tokens.subspan(range.begin, range.end - range.begin)), begin_(range.begin) {
  const auto is_before = [](const Item& item, uint64_t position) { return item.position < position; };
  const auto first = std::lower_bound(prompt.items.begin(), prompt.items.end(), range.begin, is_before);
  items_ = {first, std::lower_bound(first, prompt.items.end(), range.end, is_before)};
}

PromptSlice PromptSlice::Head(uint64_t num_tokens) const {
  PromptSlice head = *this;
  head.tokens_ = tokens_.first(num_tokens);
  while (!head.items_.empty() && head.items_.back().position - begin_ >= num_tokens) {
    head.items_ = head.items_.first(head.items_.size() - 1);
  }
  return head;
}

std::span<const std::byte> PromptSlice::ItemAtStart() const {
  if (items_.empty() || items_[0].position != begin_) return {};
  return items_[0].bytes;
}

PackedContentRef PackedContent::Make(const PromptSlice& slice) {
  size_t item_bytes = 0;
  for (const Item& item : slice.items()) item_bytes += kItemHeadBytes + PaddedBytes(item.bytes.size());
  TERRACE_CHECK(slice.tokens().size() <= UINT32_MAX && item_bytes <= UINT32_MAX) << slice.tokens().size();
  void* memory = std::malloc(sizeof(PackedContent) + slice.tokens().size_bytes() + item_bytes);
  TERRACE_CHECK(memory != nullptr) << "out of memory";
  auto* content = new (memory) PackedContent();
  content->num_tokens_ = static_cast<uint32_t>(slice.tokens().size());
  content->num_items_ = static_cast<uint32_t>(slice.items().size());
  content->item_bytes_ = static_cast<uint32_t>(item_bytes);
  auto* at = reinterpret_cast<std::byte*>(content + 1);
  if (!slice.tokens().empty()) std::memcpy(at, slice.tokens().data(), slice.tokens().size_bytes());
  at += slice.tokens().size_bytes();
  for (const Item& item : slice.items()) {
    const uint32_t head[2] = {static_cast<uint32_t>(item.position - slice.begin()),
                              static_cast<uint32_t>(item.bytes.size())};
    std::memcpy(at, head, sizeof(head));
    std::copy(item.bytes.begin(), item.bytes.end(), at + kItemHeadBytes);
    at += kItemHeadBytes + PaddedBytes(item.bytes.size());
  }
  return PackedContentRef(content);
}

PackedContentRef PackedContent::Make(const ChunkContent& content) {
  return Make(PromptSlice({content.tokens, content.items}, {0, content.tokens.size()}));
}

std::span<const Token> PackedContent::tokens() const {
  return {reinterpret_cast<const Token*>(this + 1), num_tokens_};
}

std::span<const std::byte> PackedContent::ItemAtStart() const {
  const PlacedItem item = PackedItemReader(packed_items(), num_items_).Next();
  return item.position == 0 ? item.bytes : std::span<const std::byte>();
}

ChunkContent PackedContent::Unpack() const {
  ChunkContent content;
  content.tokens.assign(tokens().begin(), tokens().end());
  content.items.reserve(num_items_);
  PackedItemReader items(packed_items(), num_items_);
  for (uint32_t i = 0; i < num_items_; ++i) {
    const PlacedItem item = items.Next();
    content.items.push_back({item.position, {item.bytes.begin(), item.bytes.end()}});
  }
  return content;
}

bool PackedContent::Equals(const ChunkContent& content) const {
  return Compare(PromptSlice({content.tokens, content.items}, {0, content.tokens.size()})) == 0;
}

int PackedContent::Compare(const PromptSlice& slice) const {
  return CompareWith(tokens(), PackedItemReader(packed_items(), num_items_), slice.tokens(),
                     SliceItemReader(slice.items(), slice.begin()));
}

int PackedContent::Compare(const PackedContent& other) const {
  return CompareWith(tokens(), PackedItemReader(packed_items(), num_items_), other.tokens(),
                     PackedItemReader(other.packed_items(), other.num_items_));
}

uint32_t PackedContent::CommonPrefix(const PromptSlice& slice) const {
  int sign = 0;
  return static_cast<uint32_t>(FirstItemDifference(PackedItemReader(packed_items(), num_items_),
                                                   SliceItemReader(slice.items(), slice.begin()),
                                                   CommonTokens(tokens(), slice.tokens()), sign));
}

}  // namespace terrace
