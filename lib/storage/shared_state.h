// What a manager shares with the objects that it gives out: roots, leases, writable chunks, writes on their
// way. Fields of a State are fixed once it was given out, but for those that say whose lock guards them.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "lib/wire/frame.h"
#include "terrace/storage_manager.h"

namespace terrace {

class ManagerCore;

struct RootState {
  KvSpec spec;
  ChunkKey root;
  RootRecord record;
  uint32_t division = spec.DivisionTag();

  Retention RuleOf(uint16_t group) const { return spec.groups[group].rule; }
  std::vector<ObjectPart> DefaultParts() const;
  Status CheckParts(std::span<const ObjectPart> parts) const;
};
using RootStateRef = std::shared_ptr<const RootState>;

// One object that a lease names, in the load's order.
struct LeaseItem {
  ObjectId id;
  uint64_t chunk_index = 0;
  TokenRange payload_tokens;
  TokenRange matched_tokens;
  ObjectMeta meta;  // what the frame must say of itself
  bool in_host = false;
};

struct Lease::State {
  std::shared_ptr<ManagerCore> core;
  RootStateRef root;
  uint64_t matched_tokens = 0;
  uint64_t host_tokens = 0;
  uint64_t frame_bytes = 0;
  TimePoint deadline{};
  std::vector<LeaseItem> items;
  // Guarded by core->mutex_.
  bool holds_entries = false;  // counted in its entries' leases, and in core->lease_deadlines_ at `place`
  std::multimap<TimePoint, std::weak_ptr<State>>::iterator place;
  bool is_protecting = false;  // and in their host_leases, within the budget
  uint64_t budget_bytes = 0;
  bool protects_lower = false;  // and in their lower_leases, within that budget
  uint64_t lower_budget_bytes = 0;

  ~State();
};

struct WritableChunk::State {
  std::shared_ptr<ManagerCore> core;
  ObjectId id;
  TokenRange tokens;
  uint64_t store_id = 0;
  BufferRef buffer;
  FrameHeader header;
  uint64_t ticket = 0;

  ~State();
};

// One object on its way into one lower tier.
struct WriteJob {
  ObjectId id;
  BufferRef frame;
  ObjectMeta meta;
  uint64_t ticket = 0;
  int evictions_tried = 0;
  enum class Phase { kQueued, kInFlight, kDone } phase = Phase::kQueued;
  Status status;        // in kDone
  bool doomed = false;  // erased meanwhile: must not become visible
};

}  // namespace terrace
