// PackedContent: tokens and items of one chunk in one allocation, counted. What the index keeps of a chunk,
// and what leases and writes hold of it. Immutable.
//
//   | u32 references | u32 n_tokens | u32 n_items | u32 bytes of items | u32 tokens[n_tokens] |
//   { u32 position | u32 length | bytes }[n_items], each padded to 4 |
//
// Order and match are those of terrace/tokens.h (CompareContent, CommonPrefixTokens), here against a slice of
// a prompt that is not copied.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "terrace/tokens.h"

namespace terrace {

class PackedContent;

// Counted reference; null is allowed. Copied and dropped on any thread.
class PackedContentRef {
 public:
  PackedContentRef() = default;
  PackedContentRef(const PackedContentRef& other);
  PackedContentRef(PackedContentRef&& other) noexcept : content_(std::exchange(other.content_, nullptr)) {}
  PackedContentRef& operator=(PackedContentRef other) noexcept {
    std::swap(content_, other.content_);
    return *this;
  }
  ~PackedContentRef();

  // Adopts the reference that a new PackedContent starts with.
  explicit PackedContentRef(PackedContent* adopted) : content_(adopted) {}
  explicit operator bool() const { return content_ != nullptr; }
  const PackedContent& operator*() const { return *content_; }
  const PackedContent* operator->() const { return content_; }
  PackedContent* get() const { return content_; }
  PackedContent* release() { return std::exchange(content_, nullptr); }

 private:
  PackedContent* content_ = nullptr;
};

// Tokens [begin, end) of a prompt with the items at them; borrowed. Positions count from `begin`.
class PromptSlice {
 public:
  PromptSlice(const TokenView& prompt, TokenRange range);
  std::span<const Token> tokens() const { return tokens_; }
  std::span<const Item> items() const { return items_; }  // positions in the prompt
  uint64_t begin() const { return begin_; }
  // Its first `num_tokens` tokens, with the items at them.
  PromptSlice Head(uint64_t num_tokens) const;
  // The bytes of the item at the first token; empty where there is none.
  std::span<const std::byte> ItemAtStart() const;

 private:
  std::span<const Token> tokens_;
  std::span<const Item> items_;
  uint64_t begin_;
};

class PackedContent {
 public:
  static PackedContentRef Make(const PromptSlice& slice);
  static PackedContentRef Make(const ChunkContent& content);

  uint32_t num_tokens() const { return num_tokens_; }
  std::span<const Token> tokens() const;
  // The bytes of the item at the first token; empty where there is none.
  std::span<const std::byte> ItemAtStart() const;
  // What it occupies of the heap, the allocator's own words left out.
  size_t size_bytes() const { return sizeof(PackedContent) + num_tokens_ * sizeof(Token) + item_bytes_; }
  ChunkContent Unpack() const;
  bool Equals(const ChunkContent& content) const;
  // As CompareContent and CommonPrefixTokens.
  int Compare(const PromptSlice& slice) const;
  int Compare(const PackedContent& other) const;
  uint32_t CommonPrefix(const PromptSlice& slice) const;

 private:
  friend class PackedContentRef;
  PackedContent() = default;
  ~PackedContent() = default;  // through the last reference only

  const std::byte* packed_items() const {
    return reinterpret_cast<const std::byte*>(this + 1) + num_tokens_ * sizeof(Token);
  }

  std::atomic<uint32_t> references_{1};
  uint32_t num_tokens_ = 0;
  uint32_t num_items_ = 0;
  uint32_t item_bytes_ = 0;
  // The tokens and items follow in the same allocation.
};

}  // namespace terrace
