// RootTable: the roots that a manager knows, each with a number that index entries name it by. A root is
// known by Root(), or from a durable tier at open: perhaps by its key alone, where its record was lost.
//
// Threads: every call from every thread; one mutex, under which nothing else is called.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "terrace/kv_spec.h"
#include "terrace/object_id.h"

namespace terrace {

// Immutable once shared.
struct RootState {
  KvSpec spec;
  ChunkKey root;
  RootRecord record;
  uint32_t number = 0;
  uint32_t division = spec.DivisionTag();

  Retention RuleOf(uint16_t group) const { return spec.groups[group].rule; }
  std::vector<ObjectPart> DefaultParts() const;
  // kInvalidArgument for a group or shard that the spec does not have.
  Status CheckParts(std::span<const ObjectPart> parts) const;
};
using RootStateRef = std::shared_ptr<const RootState>;

class RootTable {
 public:
  // Null: not known, or by its key alone.
  RootStateRef Find(const ChunkKey& root) const;
  RootStateRef At(uint32_t number) const;
  ChunkKey KeyAt(uint32_t number) const;
  // The number of a root, given to it now if it has none.
  uint32_t NumberOf(const ChunkKey& root);
  struct Added {
    RootStateRef state;
    bool is_new = false;  // to be kept in the durable tiers
  };
  // A root says nothing of shards: the spec given last counts.
  Added Put(const KvSpec& spec, const RootRecord& record);
  std::vector<RootStateRef> All() const;
  // Before the first call: StorageOptions::runs_stand_alone.
  void SetRunsStandAlone(bool stand_alone) { runs_stand_alone_ = stand_alone; }
  // Whether an object of the group at `first_token` needs the chunk before its own: states do not, nor does
  // what lies in a window (it serves a boundary behind it, together with what lies between; an engine may
  // hold no more), nor do the first of a prefix, and of a run where runs stand alone. Of an unknown root
  // nothing more can be said: yes, but not where runs stand alone.
  bool NeedsParent(uint32_t number, uint16_t group, uint64_t first_token) const;

 private:
  struct Slot {
    ChunkKey root;
    RootStateRef state;
  };
  uint32_t NumberOfLocked(const ChunkKey& root);

  bool runs_stand_alone_ = false;
  mutable std::mutex mutex_;
  std::vector<Slot> slots_;  // by number
  absl::flat_hash_map<ChunkKey, uint32_t, DigestHash> numbers_;
};

}  // namespace terrace
