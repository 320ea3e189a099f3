// ChunkIndex: which chunks are known, which of their objects lie in which tier, and the longest token-exact
// match of a prompt among the children of a key. One entry per key.
//
// Threads. The index is cut into shards by key, a mutex each. Its owner has a mutex of its own (the owner's
// lock) under which it changes what lies where; readers go without it:
//   - Find, Add, Remove, Change, ForEach, children in full: with the owner's lock (different keys may be
//   added and
//     removed by different threads at once, but nobody touches one key twice at a time);
//   - Visit, Neighbours, WholePrefixes, Unhold: by every thread, without the owner's lock.
// So an entry's facts and objects may be read with the owner's lock or inside Visit; they are written with
// both held. Pins are read and written inside Visit, Change or Unhold alone. Entries are stable in memory
// until RemoveIfUnused; an entry with holds is not removed. Add may take the content of any other entry, so
// where several threads add at once, `content` too is read inside Visit or Change alone.
//
// Lock order: the owner's lock, then one shard at a time, never two.
//
// A key that is named as a parent and is not known has an entry too, a placeholder without content and
// objects, which goes with its last child: the children of a key hang on its entry, in order of their
// content. Roots are such placeholders.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lib/core/child_treap.h"
#include "lib/core/entry_slab.h"
#include "lib/core/handle_table.h"
#include "lib/core/index_entry.h"
#include "lib/core/packed_content.h"
#include "terrace/metrics.h"
#include "terrace/object_id.h"
#include "terrace/tokens.h"

namespace terrace {

struct ChunkIndexOptions {
  uint64_t content_budget_bytes = UINT64_MAX;  // above it the coldest entries lose their content
  Counter* content_drops = nullptr;            // may be null
};

class ChunkIndex {
 public:
  explicit ChunkIndex(const ChunkIndexOptions& options = {});
  ~ChunkIndex();
  ChunkIndex(const ChunkIndex&) = delete;
  ChunkIndex& operator=(const ChunkIndex&) = delete;

  // --- With the owner's lock.

  // Null for unknown keys; placeholders are found.
  IndexEntry* Find(const ChunkKey& key);
  const IndexEntry* Find(const ChunkKey& key) const { return const_cast<ChunkIndex*>(this)->Find(key); }
  struct Facts {
    ChunkKey key;
    ChunkKey parent;
    uint32_t root_number = 0;
    uint32_t first_token = 0;
  };
  // The entry of facts.key; made, with this content, if there is none (or a placeholder alone). An entry that
  // lost its content gets it back. Null: it comes later, by another Add; until then nothing inside the chunk
  // is matched.
  IndexEntry& Add(const Facts& facts, const PackedContentRef& content);
  // `change(entry)` with the shard locked: the way to write an entry's objects and to read its pins.
  template <typename F>
  auto Change(IndexEntry& entry, F&& change) {
    std::lock_guard lock(ShardOf(entry.key).mutex);
    return change(entry);
  }
  // Takes the entry out, where all its objects are gone, it has no holds and no children; then its parent
  // too, where this child alone kept that, and so on. So whatever hangs below a chunk is found from it, also
  // over chunks of which nothing is left. Whether the entry is gone; the reference may dangle then.
  bool RemoveIfUnused(IndexEntry& entry);
  // Children in order of content; those without content last.
  std::vector<IndexEntry*> Children(const IndexEntry& parent) const;
  // `is_wanted(child)` in that order with the parent's shard locked, so it may not call the index.
  template <typename F>
  bool AnyChild(const IndexEntry& parent, F&& is_wanted) const {
    std::lock_guard lock(ShardOf(parent.key).mutex);
    return !treap_.VisitAll(parent, [&](const IndexEntry& child) { return !is_wanted(child); });
  }
  // Children whose content is a strict prefix of the entry's own, siblings of it; longest first.
  std::vector<IndexEntry*> StrictPrefixes(const IndexEntry& entry) const;
  // Every chunk, placeholders left out, without a shard locked: `visit` may call the index, and remove
  // entries.
  void ForEach(const std::function<void(IndexEntry&)>& visit);
  // The same from a place on, until `visit` says no: `place` is that of the entry then. Entries keep their
  // place as long as they live. False: the end.
  struct Place {
    uint32_t shard = 0;
    uint32_t slot = 1;
    auto operator<=>(const Place&) const = default;
  };
  bool ForEachFrom(Place& place, const std::function<bool(IndexEntry&)>& visit);

  // --- By every thread.

  // `visit(entry)` with the shard locked: reads anything of the entry, changes its pins. False: unknown (or a
  // placeholder).
  template <typename F>
  bool Visit(const ChunkKey& key, F&& visit) {
    Shard& shard = ShardOf(key);
    shard.handles.Prefetch(key);
    std::lock_guard lock(shard.mutex);
    IndexEntry* entry = shard.handles.Find(key);
    if (entry == nullptr || entry->is_placeholder()) return false;
    if (!entry->was_visited) entry->was_visited = true;
    visit(*entry);
    return true;
  }
  // Gives one hold, `host_pins` and `lower_pins` back, of an entry that is held. True: nothing keeps the
  // entry any more, and the owner should call RemoveIfUnused with the key (the entry may be gone by then).
  bool Unhold(IndexEntry& entry, uint32_t host_pins, uint32_t lower_pins);

  struct Neighbour {
    ChunkKey key;
    uint32_t tokens = 0;  // of the common prefix with the query
  };
  // Children of `parent` nearest to the query in order of content: up to `limit` before it and as many from
  // it on, each with at least one token in common, longest common prefix first. The longest of all children
  // is among the nearest two. O(log n + limit).
  std::vector<Neighbour> Neighbours(const ChunkKey& parent, const PromptSlice& query, size_t limit) const;
  // Children that are as a whole a prefix of the query (equal included), longest first, at most `limit`.
  std::vector<Neighbour> WholePrefixes(const ChunkKey& parent, const PromptSlice& query, size_t limit) const;

  uint64_t size() const;             // chunks, placeholders left out
  uint64_t content_bytes() const;    // what the budget counts
  uint64_t structure_bytes() const;  // entries (one object each) and tables, without content

  static constexpr size_t kNumShards = EntrySlabs::kNumSlabs;

 private:
  struct alignas(64) Shard {
    Shard(const EntrySlab& slab, HandleTableMemory& memory, uint64_t multiplier)
        : handles(slab, memory, multiplier) {}
    mutable std::mutex mutex;
    HandleTable handles;
    uint64_t num_chunks = 0;
  };

  // By bits of the key that neither its hash in the shard's table nor anything else uses alone.
  static size_t ShardIndex(const ChunkKey& key) {
    return std::to_integer<size_t>(key.bytes[31]) % kNumShards;
  }
  Shard& ShardOf(const ChunkKey& key) const { return *shards_[ShardIndex(key)]; }

  // The rest with the shard locked that is named or that of the entry's key.
  IndexEntry& FindOrMake(Shard& shard, const ChunkKey& key);
  void GiveContent(IndexEntry& entry, const PackedContentRef& content);
  PackedContentRef TakeContent(IndexEntry& entry);
  // Whether it was a placeholder that nothing needs, and is freed.
  bool FreeIfNeedless(Shard& shard, IndexEntry& entry);
  // Until the sweep is not at this entry.
  static void AwaitSweep(std::unique_lock<std::mutex>& lock, const IndexEntry& entry);
  // Children up to the query that are a prefix of it, longest first, until `visit(child, tokens)` says no.
  template <typename F>
  void VisitPrefixes(const IndexEntry& parent, const PromptSlice& query, F&& visit) const;

  // Without a lock.
  IndexEntry& ReserveParent(const ChunkKey& key);
  bool RemoveOne(IndexEntry& entry, IndexEntry*& bare_parent);
  void SweepContent(const IndexEntry& added);
  IndexEntry* NextToSweep(const IndexEntry& added);
  void DropContent(IndexEntry& entry);

  static constexpr int kMaxSweepSteps = 512;  // each looks at one entry, or passes to the next shard

  const ChunkIndexOptions options_;
  std::unique_ptr<EntrySlabs> entries_;
  ChildTreap treap_;
  HandleTableMemory table_memory_;
  std::array<std::unique_ptr<Shard>, kNumShards> shards_;
  std::atomic<uint64_t> content_bytes_{0};

  std::mutex sweep_mutex_;  // taken before a shard, and never waited for
  size_t sweep_shard_ = 0;
  uint32_t sweep_slot_ = 0;
};

}  // namespace terrace
