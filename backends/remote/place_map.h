// PlaceMap: which server was last known to have a chunk. A hint: what it names may be gone, what it lacks may
// be anywhere. Bounded: two generations, the older of which is dropped when the younger is full.
//
// Threads: every call from every thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "terrace/object_id.h"

namespace terrace::remote {

class PlaceMap {
 public:
  explicit PlaceMap(size_t max_keys = 65536) : max_generation_(max_keys / 2 + 1) {}

  void Set(const ChunkKey& key, uint64_t server) {
    std::lock_guard lock(mutex_);
    young_[key] = server;
    if (young_.size() < max_generation_) return;
    old_ = std::move(young_);
    young_.clear();
  }
  std::optional<uint64_t> Find(const ChunkKey& key) const {
    std::lock_guard lock(mutex_);
    for (const auto* generation : {&young_, &old_}) {
      if (const auto found = generation->find(key); found != generation->end()) return found->second;
    }
    return std::nullopt;
  }
  void Clear() {
    std::lock_guard lock(mutex_);
    young_.clear();
    old_.clear();
  }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return young_.size() + old_.size();
  }

 private:
  using Generation = absl::flat_hash_map<ChunkKey, uint64_t, DigestHash>;
  const size_t max_generation_;
  mutable std::mutex mutex_;
  Generation young_;
  Generation old_;
};

}  // namespace terrace::remote
