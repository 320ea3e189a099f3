#include "lib/core/child_treap.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "lib/base/check.h"

namespace terrace {
namespace {

// The first four bytes as a big-endian number, zeros for those that lack: an item that is before another
// never has the larger one.
uint32_t FirstBytes(std::span<const std::byte> item) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value = value << 8 | (i < item.size() ? std::to_integer<uint32_t>(item[i]) : 0);
  }
  return value;
}

// Of a chunk's content or of a slice that has tokens.
template <typename Content>
ChildOrder PlaceOf(const Content& content, uint32_t& first) {
  const std::span<const std::byte> item = content.ItemAtStart();
  first = item.empty() ? content.tokens()[0] : FirstBytes(item);
  return item.empty() ? ChildOrder::kPlain : ChildOrder::kItemFirst;
}

int CompareChildren(const IndexEntry& a, const IndexEntry& b) {
  if (a.order != b.order) return a.order < b.order ? -1 : 1;
  if (a.order == ChildOrder::kNoContent) return std::memcmp(&a.key, &b.key, sizeof(a.key));
  if (a.first != b.first) return a.first < b.first ? -1 : 1;
  return &a == &b ? 0 : a.content->Compare(*b.content);
}

}  // namespace

void ChildTreap::SetPlace(IndexEntry& child, const PackedContent* content) {
  child.first = 0;
  child.order = content == nullptr ? ChildOrder::kNoContent : PlaceOf(*content, child.first);
}

uint64_t ChildTreap::PriorityOf(const IndexEntry& entry) const {
  uint64_t words[4];
  std::memcpy(words, entry.key.bytes.data(), sizeof(words));
  uint64_t mixed = seed_;
  for (const uint64_t word : words) {
    mixed = (mixed ^ word) * 0x9e3779b97f4a7c15ull;
    mixed ^= mixed >> 32;
  }
  return mixed;
}

void ChildTreap::Insert(IndexEntry& parent, IndexEntry& child) const {
  const uint64_t priority = PriorityOf(child);
  EntryHandle* link = &parent.children;
  while (*link != 0) {
    IndexEntry& at = entries_.At(*link);
    PrefetchBelow(at);
    if (PriorityOf(at) < priority) break;
    const int order = CompareChildren(child, at);
    TERRACE_CHECK(order != 0) << "two keys for one content under one parent";
    link = order < 0 ? &at.left : &at.right;
  }
  // What hangs there is cut in two, around the child.
  EntryHandle rest = *link;
  *link = child.handle;
  EntryHandle* before = &child.left;
  EntryHandle* after = &child.right;
  while (rest != 0) {
    IndexEntry& at = entries_.At(rest);
    const int order = CompareChildren(child, at);
    TERRACE_CHECK(order != 0) << "two keys for one content under one parent";
    EntryHandle*& side = order < 0 ? after : before;
    *side = rest;
    side = order < 0 ? &at.left : &at.right;
    rest = *side;
  }
  *before = 0;
  *after = 0;
}

void ChildTreap::Erase(IndexEntry& parent, IndexEntry& child) const {
  EntryHandle* link = &parent.children;
  while (*link != child.handle) {
    TERRACE_CHECK(*link != 0) << "a child that its parent does not have";
    IndexEntry& at = entries_.At(*link);
    PrefetchBelow(at);
    link = CompareChildren(child, at) < 0 ? &at.left : &at.right;
  }
  EntryHandle before = child.left;
  EntryHandle after = child.right;
  while (before != 0 && after != 0) {
    IndexEntry& last = entries_.At(before);
    IndexEntry& next = entries_.At(after);
    if (PriorityOf(last) >= PriorityOf(next)) {
      *link = before;
      link = &last.right;
      before = *link;
    } else {
      *link = after;
      link = &next.left;
      after = *link;
    }
  }
  *link = before != 0 ? before : after;
  child.left = 0;
  child.right = 0;
}

ChildTreap::Query::Query(const PromptSlice& slice) : slice_(slice), order_(ChildOrder::kPlain) {
  if (!slice.tokens().empty()) order_ = PlaceOf(slice, first_);
}

int ChildTreap::Query::Compare(const IndexEntry& child) const {
  if (child.order != order_) return child.order < order_ ? -1 : 1;
  if (child.first != first_) return child.first < first_ ? -1 : 1;
  return child.content->Compare(slice_);
}

const IndexEntry* ChildTreap::LastUpTo(const IndexEntry& parent, const Query& query) const {
  const IndexEntry* last = nullptr;
  for (EntryHandle at = parent.children; at != 0;) {
    const IndexEntry& child = entries_.At(at);
    PrefetchBelow(child);
    const bool is_up_to = query.IsAtOrAfter(child);
    if (is_up_to) last = &child;
    at = is_up_to ? child.right : child.left;
  }
  return last;
}

void ChildTreap::PushLeft(EntryHandle at, Stack& stack) const {
  while (at != 0) {
    stack.push_back(&entries_.At(at));
    at = stack.back()->left;
  }
}

void ChildTreap::PushRight(EntryHandle at, Stack& stack) const {
  while (at != 0) {
    stack.push_back(&entries_.At(at));
    at = stack.back()->right;
  }
}

}  // namespace terrace
