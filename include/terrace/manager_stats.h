// ManagerStats: a manager's figures at one moment. The same and more are in its metric registry.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terrace {

struct TierStats {
  std::string name;
  uint64_t objects = 0;
  uint64_t used_bytes = 0;
  uint64_t capacity_bytes = 0;
  uint64_t hits = 0;  // objects loaded from here
  uint64_t evictions = 0;
};

struct ManagerStats {
  std::vector<TierStats> tiers;
  uint64_t pool_bytes = 0;
  uint64_t pool_used_bytes = 0;
  uint64_t index_entries = 0;
  uint64_t lookups = 0;
  uint64_t stored_objects = 0;   // published by Commit
  uint64_t dropped_objects = 0;  // committed or written behind, but lost to a fault or to no room
  uint64_t corrupt_objects = 0;  // found wrong on the way up, dropped, answered as a miss
  uint64_t pending_writes = 0;   // write-behind not yet done
  uint64_t active_leases = 0;
  uint64_t pinned_names = 0;
  uint64_t index_content_bytes = 0;  // tokens and items of the indexed chunks
};

}  // namespace terrace
