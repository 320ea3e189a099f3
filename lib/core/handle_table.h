// HandleTable: the entries of one shard of the index by their keys. Open addressing over slots of four bytes,
// so that finding a key costs one miss here and one for its entry:
//
//   | tag: 6 bits of the key's hash | number of the entry in the shard's slab: 26 bits |
//
// A slot with the number 0 holds no entry: with the tag 0 too a search ends there, else it goes on. A search
// begins at the slot that other bits of the hash name and goes from each to the next.
//
// Threads: every call under the shard's lock; Prefetch also without it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include "lib/core/entry_slab.h"
#include "lib/core/index_entry.h"
#include "terrace/object_id.h"

namespace terrace {

// Where the slots of many tables lie: large ones in huge pages, several of one size to a page, as most of the
// time would go into misses of the TLB. Outlives the tables. Every call from every thread.
class HandleTableMemory {
 public:
  HandleTableMemory() = default;
  ~HandleTableMemory();
  HandleTableMemory(const HandleTableMemory&) = delete;
  HandleTableMemory& operator=(const HandleTableMemory&) = delete;

  // All zero. `num_slots` is a power of two.
  uint32_t* Take(uint64_t num_slots);
  void GiveBack(uint32_t* slots, uint64_t num_slots);

 private:
  static constexpr size_t kPage = size_t{2} << 20;
  static constexpr size_t kMaxTables = 32;  // of one page; smaller ones than fit so lie in the heap
  static constexpr size_t kNumSizes = 5;    // a half of a page, and so on

  struct Page {
    std::byte* begin;
    uint32_t taken;  // a bit for each table
  };

  std::mutex mutex_;
  std::array<std::vector<Page>, kNumSizes> pages_;
};

class HandleTable {
 public:
  // `multiplier`: odd, and unknown to whoever chooses keys, so that these cannot crowd one place.
  HandleTable(const EntrySlab& slab, HandleTableMemory& memory, uint64_t multiplier);
  ~HandleTable();
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  // Of what a search for the key reads first. The table may be growing: then it is of no use, and no harm.
  void Prefetch(const ChunkKey& key) const {
    const uint64_t at = HashOf(key) >> kHomeShift & mask_.load(std::memory_order_relaxed);
    const auto slots = reinterpret_cast<uintptr_t>(slots_.load(std::memory_order_relaxed));
    __builtin_prefetch(reinterpret_cast<const void*>(slots + at * sizeof(uint32_t)), 1);
  }
  // Null for unknown keys.
  IndexEntry* Find(const ChunkKey& key) const {
    const uint64_t hash = HashOf(key);
    const uint32_t tag = TagOf(hash);
    const uint32_t* slots = slots_.load(std::memory_order_relaxed);
    const uint32_t mask = mask_.load(std::memory_order_relaxed);
    for (uint32_t at = hash >> kHomeShift & mask;; at = (at + 1) & mask) {
      const uint32_t slot = slots[at];
      if (slot == kFree) return nullptr;
      const uint32_t number = slot & kNumberMask;
      if ((slot & ~kNumberMask) != tag || number == 0) continue;
      IndexEntry& entry = slab_.At(number);
      __builtin_prefetch(&entry.parent, 1);  // its second cache line, which comes while the first is awaited
      if (std::memcmp(&entry.key, &key, sizeof(key)) == 0) return &entry;
    }
  }
  // Its key is not in the table.
  void Insert(const IndexEntry& entry);
  // It is in the table.
  void Erase(const IndexEntry& entry);

  uint64_t size_bytes() const { return num_slots() * sizeof(uint32_t); }

 private:
  static constexpr uint32_t kNumberMask = (uint32_t{1} << EntrySlabs::kSlotBits) - 1;
  static constexpr uint32_t kFree = 0;
  static constexpr uint32_t kErased = kNumberMask + 1;
  static constexpr int kHomeShift = 32;

  uint64_t HashOf(const ChunkKey& key) const { return key.Prefix64() * multiplier_; }
  // In its place in a slot. These are the highest bits, where the home is of those from bit 32 on.
  static uint32_t TagOf(uint64_t hash) { return static_cast<uint32_t>(hash >> 32) & ~kNumberMask; }
  uint64_t num_slots() const { return uint64_t{mask_.load(std::memory_order_relaxed)} + 1; }
  // Without erased slots then. Doubled, or as large as before.
  void Rebuild();
  void Put(const IndexEntry& entry);

  std::atomic<uint32_t*> slots_;
  std::atomic<uint32_t> mask_;
  uint32_t num_entries_ = 0;
  uint32_t num_erased_ = 0;
  const EntrySlab& slab_;
  const uint64_t multiplier_;
  HandleTableMemory& memory_;
};

}  // namespace terrace
