// HostReclaimer: what the pool asks for space: the manager's host tier, whose objects it can name by the runs
// that they lie in.
//
// Threads: every call from every thread; takes the manager's lock.
#pragma once

#include "absl/container/flat_hash_map.h"
#include "lib/memory/reclaimer.h"
#include "terrace/object_id.h"

namespace terrace {

class ManagerCore;

class HostReclaimer final : public Reclaimer {
 public:
  explicit HostReclaimer(ManagerCore& core) : core_(core) {}

  bool ReclaimOne(uint64_t wanted_bytes) override;
  void Costs(std::span<const BufferControl* const> runs, std::span<uint64_t> costs) override;
  bool Evict(const BufferControl* run) override;

  // With the manager's lock held: the object was published in the host tier, in this run. A run's earlier
  // object is forgotten then, and not before; what a name still means is looked up when it is used.
  void Note(const BufferControl* run, const ObjectId& id) { objects_[run] = id; }

 private:
  ManagerCore& core_;
  // Guarded by the manager's lock; no more entries than the pool has units.
  absl::flat_hash_map<const BufferControl*, ObjectId> objects_;
};

}  // namespace terrace
