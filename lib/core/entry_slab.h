// EntrySlab: the entries of one shard of the index, in blocks, at stable addresses, without an allocation
// each. EntrySlabs: those of all shards; resolves handles.
//
// Threads: New, Free and NextMarked under the shard's lock. At by whoever holds the shard's lock or that of
// the parent in whose treap the handle stands: blocks never move, and a block is there before a handle into
// it.
//
// Sixteen blocks of 32 entries come first, then sixteen of 64, sixteen of 128 and so on: at most a sixteenth
// of the slab is spare.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/core/index_entry.h"

namespace terrace {

// Memory that is given out in pieces and freed as a whole, in huge pages once it is large: entries are met at
// random, and most of the time would go into misses of the TLB. Every call from every thread.
class BlockArena {
 public:
  BlockArena() = default;
  ~BlockArena();
  BlockArena(const BlockArena&) = delete;
  BlockArena& operator=(const BlockArena&) = delete;

  // Aligned to 128 bytes, of which `bytes` is a multiple.
  void* Take(size_t bytes);

 private:
  struct Chunk {
    std::byte* begin;
    size_t bytes;
  };
  std::mutex mutex_;
  std::vector<Chunk> chunks_;
  size_t taken_ = 0;  // of the last chunk
  size_t total_ = 0;
};

class EntrySlab {
 public:
  static constexpr uint32_t kMaxSlots = (uint32_t{1} << 26) - (uint32_t{1} << 9);

  explicit EntrySlab(BlockArena& arena) : arena_(arena) {}
  ~EntrySlab();
  EntrySlab(const EntrySlab&) = delete;
  EntrySlab& operator=(const EntrySlab&) = delete;

  // A slot with a fresh entry in it. Slot 0 is never given out.
  uint32_t New();
  // Ends the entry's life; the slot is used again.
  void Free(uint32_t slot);
  IndexEntry& At(uint32_t slot) const {
    const Place place = PlaceOf(slot);
    return blocks_[place.block][place.offset];
  }

  // Marks say which entries have content.
  void SetMark(uint32_t slot, bool is_marked);
  // The first marked slot at or after `slot`; 0 where there is none within the next kMaxMarkWords x 64, and
  // then `slot` is where to go on, num_slots() at the end.
  uint32_t NextMarked(uint32_t& slot) const;

  uint32_t num_slots() const { return num_slots_; }
  // Of the entries ever in use at one time, with the marks.
  uint64_t size_bytes() const {
    return uint64_t{num_slots_} * sizeof(IndexEntry) + marks_.capacity() * sizeof(uint64_t);
  }

 private:
  static constexpr int kFirstLog2 = 9;  // the first sixteen blocks hold 2^9 entries
  static constexpr size_t kMaxBlocks = (26 - kFirstLog2) * 16;
  static constexpr uint32_t kMaxMarkWords = 256;

  struct Place {
    uint32_t block;
    uint32_t offset;
    uint32_t block_entries;
  };
  static Place PlaceOf(uint32_t slot) {
    const uint32_t biased = slot + (uint32_t{1} << kFirstLog2);
    const int log2 = std::bit_width(biased) - 1;
    const uint32_t sixteenth = biased >> (log2 - 4);  // 16 to 31
    return {static_cast<uint32_t>(log2 - kFirstLog2) * 16 + sixteenth - 16,
            biased - (sixteenth << (log2 - 4)), uint32_t{1} << (log2 - 4)};
  }

  std::array<IndexEntry*, kMaxBlocks> blocks_{};
  alignas(64) uint32_t num_slots_ = 1;
  uint32_t free_ = 0;  // a list through `left`
  BlockArena& arena_;
  std::vector<uint64_t> marks_;
};

class EntrySlabs {
 public:
  static constexpr uint32_t kSlotBits = 26;
  static constexpr size_t kNumSlabs = size_t{1} << (32 - kSlotBits);

  EntrySlabs() {
    slabs_.reserve(kNumSlabs);
    for (size_t i = 0; i < kNumSlabs; ++i) slabs_.push_back(std::make_unique<EntrySlab>(arena_));
  }
  EntrySlab& slab(size_t shard) { return *slabs_[shard]; }
  const EntrySlab& slab(size_t shard) const { return *slabs_[shard]; }
  IndexEntry& At(EntryHandle handle) const { return slabs_[handle >> kSlotBits]->At(SlotOf(handle)); }
  static uint32_t SlotOf(EntryHandle handle) { return handle & ((uint32_t{1} << kSlotBits) - 1); }
  // A fresh entry of that shard, which knows its handle.
  IndexEntry& New(size_t shard) {
    const uint32_t slot = slab(shard).New();
    IndexEntry& entry = slab(shard).At(slot);
    entry.handle = static_cast<EntryHandle>(shard << kSlotBits) | slot;
    return entry;
  }

 private:
  BlockArena arena_;
  std::vector<std::unique_ptr<EntrySlab>> slabs_;
};

}  // namespace terrace
