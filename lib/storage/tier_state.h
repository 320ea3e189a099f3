// TierState: one tier as the manager sees it: its backend and policy, what is on its way into it, and what is
// being erased from it. Guarded by the manager's lock, but for backend, capabilities, name and counters,
// which are fixed after Open.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "lib/storage/shared_state.h"
#include "terrace/backend.h"
#include "terrace/eviction_policy.h"
#include "terrace/metrics.h"

namespace terrace {

struct TierState {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<EvictionPolicy> policy;
  Capabilities capabilities;
  std::string name;
  uint64_t objects = 0;
  bool answers_itself = false;  // a remote store: no presence is kept of it, nothing is evicted from it
  std::deque<std::shared_ptr<WriteJob>> writes;  // parents first; front is published first
  std::deque<std::shared_ptr<WriteJob>> queued;  // of those, the ones not yet sent
  uint64_t inflight_bytes = 0;
  // Erases that were decided and are not done: a write of the same object waits for them, or it would be
  // sent first and erased behind its back.
  absl::flat_hash_map<ObjectId, uint32_t, ObjectIdHash> erasing;
  // Evictions that failed: the bytes may still be there, and would come back at the next open. The next Erase
  // names them too. Bounded, the oldest forgotten.
  std::deque<ObjectId> failed_evictions;
  uint32_t clearing = 0;    // erases of everything, the same
  bool is_pumping = false;  // one thread sends writes; others leave it word
  bool pump_again = false;
  Counter* hits = nullptr;
  Counter* evictions = nullptr;
  Counter* corrupt = nullptr;
  Counter* load_failures = nullptr;
  Counter* write_failures = nullptr;
};

}  // namespace terrace
