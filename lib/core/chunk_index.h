// ChunkIndex: which chunks are known, which of their objects lie in which tier, and the longest token-exact
// match of a prompt among the children of a key. One entry per key.
//
// Not thread safe: its owner (ManagerCore) locks. Entries are stable in memory until Remove.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "terrace/object_id.h"
#include "terrace/tokens.h"

namespace terrace {

using TierMask = uint8_t;  // bit i: tier i
inline constexpr size_t kMaxTiers = 8;
constexpr TierMask TierBit(size_t tier) { return static_cast<TierMask>(1u << tier); }

// One object of a chunk. Exists while it lies in a tier or is being stored.
struct ObjectPresence {
  ObjectPart part;
  TierMask tiers = 0;     // visible there
  TierMask writing = 0;   // write-behind to there is queued or in flight
  uint32_t division = 0;  // KvSpec::DivisionTag of whoever stored it
  uint64_t store_id = 0;  // not 0: prepared or committed, not yet published, by this store
  uint64_t frame_bytes = 0;
  uint64_t payload_bytes = 0;
};

struct IndexEntry {
  ChunkKey key;
  ChunkKey parent;
  ChunkKey root;
  uint64_t first_token = 0;
  ChunkContentRef content;                         // never null
  absl::InlinedVector<ObjectPresence, 1> objects;  // in order of part
  uint32_t leases = 0;                             // leases that name it: the entry stays
  uint32_t host_leases = 0;                        // of those, the ones that protect it in the host tier
  uint32_t lower_leases = 0;                       // of those, the ones that protect it in the tiers below

  ObjectPresence* Find(ObjectPart part);
  const ObjectPresence* Find(ObjectPart part) const { return const_cast<IndexEntry*>(this)->Find(part); }
  ObjectPresence& FindOrAdd(ObjectPart part);
};

class ChunkIndex {
 public:
  // Which entries may be answered.
  using Usable = std::function<bool(const IndexEntry&)>;

  ChunkIndex();
  ~ChunkIndex();

  IndexEntry* Find(const ChunkKey& key);
  const IndexEntry* Find(const ChunkKey& key) const;
  // The entry of key; made with these facts if there is none.
  IndexEntry& Add(const ChunkKey& key, const ChunkKey& parent, const ChunkKey& root, uint64_t first_token,
                  ChunkContentRef content);
  void Remove(const ChunkKey& key);
  void Clear();
  size_t size() const { return entries_.size(); }
  void ForEach(const std::function<void(IndexEntry&)>& visit);

  // Known children of a key, in order of their content.
  std::vector<IndexEntry*> Children(const ChunkKey& parent) const;
  bool AnyChild(const ChunkKey& parent, const Usable& usable) const;

  struct Match {
    IndexEntry* entry = nullptr;
    uint32_t tokens = 0;
  };
  // The usable child with the longest common prefix with `query`. O(log n) from the query's two neighbours,
  // plus one step for each unusable entry that stands between (at most kMaxSkips each way).
  Match LongestCommonPrefix(const ChunkKey& parent, const ChunkContent& query, const Usable& usable) const;
  // The longest usable child that is itself a whole prefix of `query` (equal included).
  Match LongestWholePrefix(const ChunkKey& parent, const ChunkContent& query, const Usable& usable) const;
  // Every child that is a strict prefix of `content`.
  std::vector<IndexEntry*> StrictPrefixes(const ChunkKey& parent, const ChunkContent& content) const;

  static constexpr int kMaxSkips = 64;

 private:
  struct ContentLess {
    using is_transparent = void;
    bool operator()(const IndexEntry* a, const IndexEntry* b) const {
      return CompareContent(*a->content, *b->content) < 0;
    }
    bool operator()(const IndexEntry* a, const ChunkContent& b) const {
      return CompareContent(*a->content, b) < 0;
    }
    bool operator()(const ChunkContent& a, const IndexEntry* b) const {
      return CompareContent(a, *b->content) < 0;
    }
  };
  // Two children of one parent never have equal content: they would have equal keys.
  using ChildSet = std::set<IndexEntry*, ContentLess>;

  const ChildSet* ChildrenOf(const ChunkKey& parent) const;
  // Prefixes of `query` among the children, longest first, until `visit` says stop.
  void VisitPrefixes(const ChunkKey& parent, const ChunkContent& query,
                     const std::function<bool(IndexEntry*)>& visit) const;

  absl::flat_hash_map<ChunkKey, std::unique_ptr<IndexEntry>, DigestHash> entries_;
  absl::flat_hash_map<ChunkKey, ChildSet, DigestHash> children_;  // by parent; no empty sets
};

}  // namespace terrace
