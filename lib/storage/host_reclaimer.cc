#include "lib/storage/host_reclaimer.h"

#include "lib/storage/manager_core.h"

namespace terrace {

bool HostReclaimer::ReclaimOne(uint64_t /*wanted_bytes*/) {
  core_.ReapLeases();
  if (!core_.HasHostTier()) return false;
  ManagerCore::Evictions none;  // the host tier is told at once
  std::lock_guard lock(core_.mutex_);
  return core_.EvictColdest(0, none) > 0;
}

void HostReclaimer::Costs(std::span<const BufferControl* const> runs, std::span<uint64_t> costs) {
  std::lock_guard lock(core_.mutex_);
  core_.ApplyTouches();
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto object = objects_.find(runs[i]);
    // One that somebody reads would stay where it is.
    const bool may_go = object != objects_.end() && core_.MayEvict(object->second, 0) &&
                        runs[i]->references.load(std::memory_order_acquire) == 1;
    costs[i] = may_go ? core_.tiers_[0].policy->Heat(object->second) : kNotEvictable;
  }
}

bool HostReclaimer::Evict(const BufferControl* run) {
  std::lock_guard lock(core_.mutex_);
  const auto found = objects_.find(run);
  if (found == objects_.end() || !core_.MayEvict(found->second, 0)) return false;
  const ObjectId id = found->second;
  {
    const BufferRef buffer = core_.BorrowFromHost(id);
    // Another buffer by now, or one that somebody reads.
    if (!buffer || core_.pool_->ControlOf(buffer) != run || buffer.use_count() > 2) return false;
  }
  ManagerCore::Evictions none;
  IndexEntry& entry = *core_.index_->Find(id.key);
  if (!core_.EvictObject(entry, id.part, 0, ManagerCore::Unless::kPinned, none)) return false;
  core_.RemoveIfEmpty(id.key);
  return true;
}

}  // namespace terrace
