// ChildTreap: the children of one entry in order of their content, those without content last, by key. A
// treap whose links lie in the children. Two children never have equal content: they would have equal keys.
//
// Threads: every call under the lock of the parent's shard. No allocation in Insert and Erase.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "lib/core/entry_slab.h"
#include "lib/core/index_entry.h"

namespace terrace {

class ChildTreap {
 public:
  // `seed`: priorities come from it and the keys, so that nobody who chooses keys can choose the shape.
  ChildTreap(const EntrySlabs& entries, uint64_t seed) : entries_(entries), seed_(seed) {}

  // `child.order` and `child.first` from its content, or for none.
  static void SetPlace(IndexEntry& child, const PackedContent* content);
  // With its place set.
  void Insert(IndexEntry& parent, IndexEntry& child) const;
  // `child` is in the treap, its place as at Insert.
  void Erase(IndexEntry& parent, IndexEntry& child) const;

  // A query, with its own place in the order.
  class Query {
   public:
    explicit Query(const PromptSlice& slice);
    const PromptSlice& slice() const { return slice_; }
    // Whether `child` stands before it (equal: no), or at or before it.
    bool IsAfter(const IndexEntry& child) const { return Compare(child) < 0; }
    bool IsAtOrAfter(const IndexEntry& child) const { return Compare(child) <= 0; }

   private:
    int Compare(const IndexEntry& child) const;
    PromptSlice slice_;
    ChildOrder order_;
    uint32_t first_ = 0;
  };

  // `visit(child, is_before)` of the children nearest to the query: up to `limit` before it, nearest first,
  // then up to `limit` from it on, those with content alone. False ends a side.
  template <typename F>
  void VisitNearest(const IndexEntry& parent, const Query& query, size_t limit, F&& visit) const;
  // The last child at or before the query; null where there is none.
  const IndexEntry* LastUpTo(const IndexEntry& parent, const Query& query) const;
  // In order, until `visit(child)` returns false. Whether it never did.
  template <typename F>
  bool VisitAll(const IndexEntry& parent, F&& visit) const;

 private:
  // Deep enough without an allocation, as a treap of 2^32 is expected to be 60 deep at a typical leaf.
  using Stack = absl::InlinedVector<IndexEntry*, 64>;

  uint64_t PriorityOf(const IndexEntry& entry) const;
  // Of both children, one of which is met next: their place and links, and where their content is.
  void PrefetchBelow(const IndexEntry& at) const {
    for (const EntryHandle handle : {at.left, at.right}) {
      if (handle == 0) continue;
      const IndexEntry& child = entries_.At(handle);
      __builtin_prefetch(&child.left);
      __builtin_prefetch(&child.content);
    }
  }
  // Pushes the children on the way from `at` to the first (or last) below it.
  void PushLeft(EntryHandle at, Stack& stack) const;
  void PushRight(EntryHandle at, Stack& stack) const;

  const EntrySlabs& entries_;
  uint64_t seed_;
};

template <typename F>
void ChildTreap::VisitNearest(const IndexEntry& parent, const Query& query, size_t limit, F&& visit) const {
  Stack before;
  Stack from;
  for (EntryHandle at = parent.children; at != 0;) {
    IndexEntry& child = entries_.At(at);
    PrefetchBelow(child);
    const bool is_before = query.IsAfter(child);
    (is_before ? before : from).push_back(&child);
    at = is_before ? child.right : child.left;
  }
  for (size_t n = 0; n < limit && !before.empty(); ++n) {
    const IndexEntry& child = *before.back();
    before.pop_back();
    if (!visit(child, true)) break;
    PushRight(child.left, before);
  }
  for (size_t n = 0; n < limit && !from.empty(); ++n) {
    const IndexEntry& child = *from.back();
    from.pop_back();
    if (child.order == ChildOrder::kNoContent || !visit(child, false)) break;
    PushLeft(child.right, from);
  }
}

template <typename F>
bool ChildTreap::VisitAll(const IndexEntry& parent, F&& visit) const {
  Stack stack;
  PushLeft(parent.children, stack);
  while (!stack.empty()) {
    IndexEntry& child = *stack.back();
    stack.pop_back();
    if (!visit(child)) return false;
    PushLeft(child.right, stack);
  }
  return true;
}

}  // namespace terrace
