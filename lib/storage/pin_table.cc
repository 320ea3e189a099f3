#include "lib/storage/pin_table.h"

namespace terrace {

void PinTable::SetBudgets(uint64_t host_bytes, uint64_t lower_bytes) {
  host_bytes_.SetLimit(host_bytes);
  lower_bytes_.SetLimit(lower_bytes);
}

void PinTable::Unpin(ChunkIndex& index, LeaseSegment& segment, std::vector<ChunkKey>& unused) {
  for (const MatchedChunk& chunk : segment.chunks) {
    if (index.Unhold(*chunk.entry, chunk.host_pin, chunk.lower_pin)) unused.push_back(chunk.key);
  }
  segment.chunks.clear();
}

bool PinTable::Keep(ChunkIndex& index, std::string_view name, const LeaseSegmentRef& segment,
                    std::vector<ChunkKey>& unused) {
  std::lock_guard lock(mutex_);
  const auto earlier = pins_.find(name);
  if (earlier != pins_.end()) {
    host_bytes_.GiveBack(earlier->second->host_bytes);
    lower_bytes_.GiveBack(earlier->second->lower_bytes);
  }
  bool fits = host_bytes_.TryTake(segment->host_bytes);
  if (fits && !lower_bytes_.TryTake(segment->lower_bytes)) {
    host_bytes_.GiveBack(segment->host_bytes);
    fits = false;
  }
  if (!fits) {
    Unpin(index, *segment, unused);
    if (earlier == pins_.end()) return false;
    // Under the same lock: what was just given back is there.
    host_bytes_.TryTake(earlier->second->host_bytes);
    lower_bytes_.TryTake(earlier->second->lower_bytes);
    return false;
  }
  if (earlier != pins_.end()) {
    Unpin(index, *earlier->second, unused);
    earlier->second = segment;
  } else {
    pins_.emplace(std::string(name), segment);
  }
  return true;
}

bool PinTable::Drop(ChunkIndex& index, std::string_view name, std::vector<ChunkKey>& unused) {
  std::lock_guard lock(mutex_);
  const auto found = pins_.find(name);
  if (found == pins_.end()) return false;
  host_bytes_.GiveBack(found->second->host_bytes);
  lower_bytes_.GiveBack(found->second->lower_bytes);
  Unpin(index, *found->second, unused);
  pins_.erase(found);
  return true;
}

void PinTable::Forget(ChunkIndex& index, const absl::flat_hash_set<ChunkKey, DigestHash>& keys,
                      std::vector<ChunkKey>& unused) {
  std::lock_guard lock(mutex_);
  for (auto pin = pins_.begin(); pin != pins_.end();) {
    LeaseSegment& segment = *pin->second;
    const size_t num_lost = std::erase_if(segment.items, [&](const LeaseItem& item) {
      if (!keys.contains(item.id.key)) return false;
      const uint64_t bytes = item.meta.frame_bytes + kTierPageBytes;
      (item.in_host ? segment.host_bytes : segment.lower_bytes) -= bytes;
      (item.in_host ? host_bytes_ : lower_bytes_).GiveBack(bytes);
      return true;
    });
    std::erase_if(segment.chunks, [&](const MatchedChunk& chunk) {
      if (!keys.contains(chunk.key)) return false;
      if (index.Unhold(*chunk.entry, chunk.host_pin, chunk.lower_pin)) unused.push_back(chunk.key);
      return true;
    });
    pin = num_lost > 0 && segment.items.empty() ? pins_.erase(pin) : std::next(pin);
  }
}

void PinTable::DropAll(ChunkIndex& index, std::vector<ChunkKey>& unused) {
  std::lock_guard lock(mutex_);
  for (const auto& [name, segment] : pins_) {
    host_bytes_.GiveBack(segment->host_bytes);
    lower_bytes_.GiveBack(segment->lower_bytes);
    Unpin(index, *segment, unused);
  }
  pins_.clear();
}

size_t PinTable::size() const {
  std::lock_guard lock(mutex_);
  return pins_.size();
}

}  // namespace terrace
