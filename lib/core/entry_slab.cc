#include "lib/core/entry_slab.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "lib/base/check.h"

namespace terrace {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kFirstChunk = size_t{1} << 18;
constexpr size_t kFirstHugeChunk = 4 * kHugePage;

std::align_val_t AlignOf(size_t bytes) {
  return std::align_val_t{bytes >= kFirstHugeChunk ? kHugePage : size_t{128}};
}

}  // namespace

BlockArena::~BlockArena() {
  for (const Chunk& chunk : chunks_) ::operator delete(chunk.begin, AlignOf(chunk.bytes));
}

void* BlockArena::Take(size_t bytes) {
  std::lock_guard lock(mutex_);
  if (chunks_.empty() || chunks_.back().bytes - taken_ < bytes) {
    // An eighth of what there is: what is not taken of the last chunk is not touched either.
    size_t chunk_bytes = std::max({bytes, total_ / 8, kFirstChunk});
    if (chunk_bytes >= kFirstHugeChunk) chunk_bytes = (chunk_bytes + kHugePage - 1) / kHugePage * kHugePage;
    auto* begin = static_cast<std::byte*>(::operator new(chunk_bytes, AlignOf(chunk_bytes)));
    // A refusal changes nothing but the speed.
    if (chunk_bytes >= kFirstHugeChunk) ::madvise(begin, chunk_bytes, MADV_HUGEPAGE);
    chunks_.push_back({begin, chunk_bytes});
    taken_ = 0;
    total_ += chunk_bytes;
  }
  void* block = chunks_.back().begin + taken_;
  taken_ += bytes;
  return block;
}

EntrySlab::~EntrySlab() {
  for (uint32_t slot = 1; slot < num_slots_; ++slot) At(slot).~IndexEntry();
}

uint32_t EntrySlab::New() {
  if (free_ != 0) {
    const uint32_t slot = free_;
    IndexEntry& entry = At(slot);
    free_ = entry.left;
    entry.left = 0;
    return slot;
  }
  TERRACE_CHECK(num_slots_ < kMaxSlots) << "an index of more than " << kMaxSlots << " entries a shard";
  const Place place = PlaceOf(num_slots_);
  if (blocks_[place.block] == nullptr) {
    blocks_[place.block] = static_cast<IndexEntry*>(arena_.Take(place.block_entries * sizeof(IndexEntry)));
  }
  new (&blocks_[place.block][place.offset]) IndexEntry();
  return num_slots_++;
}

void EntrySlab::Free(uint32_t slot) {
  IndexEntry& entry = At(slot);
  entry.~IndexEntry();
  new (&entry) IndexEntry();
  entry.left = free_;
  free_ = slot;
}

void EntrySlab::SetMark(uint32_t slot, bool is_marked) {
  const size_t word = slot / 64;
  const uint64_t bit = uint64_t{1} << (slot % 64);
  if (word >= marks_.size()) marks_.resize(word + 1);
  marks_[word] = is_marked ? marks_[word] | bit : marks_[word] & ~bit;
}

uint32_t EntrySlab::NextMarked(uint32_t& slot) const {
  const size_t end = std::min<size_t>(marks_.size(), slot / 64 + kMaxMarkWords);
  for (size_t word = slot / 64; word < end; ++word) {
    uint64_t bits = marks_[word];
    if (word == slot / 64) bits &= ~uint64_t{0} << (slot % 64);
    if (bits != 0) return static_cast<uint32_t>(word * 64 + static_cast<size_t>(std::countr_zero(bits)));
  }
  slot = end == marks_.size() ? num_slots_ : static_cast<uint32_t>(end * 64);
  return 0;
}

}  // namespace terrace
