// PinTable: lasting protection by name, within a budget.
//
// Threads: every call from every thread; one mutex, after which only the index's shards are taken.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "lib/storage/lease_table.h"

namespace terrace {

class PinTable {
 public:
  void SetBudgets(uint64_t host_bytes, uint64_t lower_bytes);

  // Keeps the pins of `segment` (in place already) under the name, in the place of what the name protected.
  // False: above the budget; the pins are taken back, and what the name protected stays. `unused`: keys for
  // ChunkIndex::RemoveIfUnused.
  bool Keep(ChunkIndex& index, std::string_view name, const LeaseSegmentRef& segment,
            std::vector<ChunkKey>& unused);
  // False: no such name.
  bool Drop(ChunkIndex& index, std::string_view name, std::vector<ChunkKey>& unused);
  // Ends the protection of these chunks, under whatever names. A name of which nothing is left goes too.
  void Forget(ChunkIndex& index, const absl::flat_hash_set<ChunkKey, DigestHash>& keys,
              std::vector<ChunkKey>& unused);
  void DropAll(ChunkIndex& index, std::vector<ChunkKey>& unused);
  size_t size() const;

 private:
  void Unpin(ChunkIndex& index, LeaseSegment& segment, std::vector<ChunkKey>& unused);

  mutable std::mutex mutex_;
  std::map<std::string, LeaseSegmentRef, std::less<>> pins_;
  ProtectionBudget host_bytes_;
  ProtectionBudget lower_bytes_;
};

}  // namespace terrace
