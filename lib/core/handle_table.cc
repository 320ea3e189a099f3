#include "lib/core/handle_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <new>

#include "lib/base/check.h"

namespace terrace {
namespace {

constexpr uint32_t kFirstSlots = 16;

}  // namespace

HandleTableMemory::~HandleTableMemory() {
  for (const std::vector<Page>& pages : pages_) TERRACE_CHECK(pages.empty()) << "a table outlives its memory";
}

uint32_t* HandleTableMemory::Take(uint64_t num_slots) {
  const size_t bytes = num_slots * sizeof(uint32_t);
  if (bytes < kPage / kMaxTables) return new uint32_t[num_slots]();
  const auto new_pages = [](size_t size) {
    auto* begin = static_cast<std::byte*>(::operator new (size, std::align_val_t{kPage}));
    ::madvise(begin, size, MADV_HUGEPAGE);  // a refusal changes nothing but the speed
    return begin;
  };
  std::byte* begin = nullptr;
  if (bytes >= kPage) {
    begin = new_pages(bytes);
  } else {
    const auto tables = static_cast<uint32_t>(kPage / bytes);
    const uint32_t full = static_cast<uint32_t>((uint64_t{1} << tables) - 1);
    std::lock_guard lock(mutex_);
    std::vector<Page>& pages = pages_[static_cast<size_t>(std::countr_zero(tables)) - 1];
    auto page = std::find_if(pages.begin(), pages.end(), [&](const Page& p) { return p.taken != full; });
    if (page == pages.end()) page = pages.insert(page, Page{new_pages(kPage), 0});
    const int place = std::countr_one(page->taken);
    page->taken |= uint32_t{1} << place;
    begin = page->begin + static_cast<size_t>(place) * bytes;
  }
  std::memset(begin, 0, bytes);
  return reinterpret_cast<uint32_t*>(begin);
}

void HandleTableMemory::GiveBack(uint32_t* slots, uint64_t num_slots) {
  const size_t bytes = num_slots * sizeof(uint32_t);
  if (bytes < kPage / kMaxTables) {
    delete[] slots;
    return;
  }
  if (bytes >= kPage) return ::operator delete (slots, std::align_val_t{kPage});
  auto* begin = reinterpret_cast<std::byte*>(slots);
  std::lock_guard lock(mutex_);
  std::vector<Page>& pages = pages_[static_cast<size_t>(std::countr_zero(kPage / bytes)) - 1];
  const auto page = std::find_if(pages.begin(), pages.end(), [&](const Page& p) {
    return !std::less<>()(begin, p.begin) && std::less<>()(begin, p.begin + kPage);
  });
  TERRACE_CHECK(page != pages.end()) << "a table from elsewhere";
  page->taken &= ~(uint32_t{1} << static_cast<size_t>(begin - page->begin) / bytes);
  if (page->taken != 0) return;
  ::operator delete (page->begin, std::align_val_t{kPage});
  pages.erase(page);
}

HandleTable::HandleTable(const EntrySlab& slab, HandleTableMemory& memory, uint64_t multiplier)
    : slots_(memory.Take(kFirstSlots)),
      mask_(kFirstSlots - 1),
      slab_(slab),
      multiplier_(multiplier),
      memory_(memory) {
  TERRACE_CHECK(multiplier % 2 == 1) << multiplier;
}

HandleTable::~HandleTable() { memory_.GiveBack(slots_.load(std::memory_order_relaxed), num_slots()); }

void HandleTable::Insert(const IndexEntry& entry) {
  // At most three of four are not free.
  if ((uint64_t{num_entries_} + num_erased_ + 1) * 4 > num_slots() * 3) Rebuild();
  Put(entry);
  ++num_entries_;
}

void HandleTable::Put(const IndexEntry& entry) {
  const uint64_t hash = HashOf(entry.key);
  uint32_t* slots = slots_.load(std::memory_order_relaxed);
  const uint32_t mask = mask_.load(std::memory_order_relaxed);
  uint32_t at = hash >> kHomeShift & mask;
  while ((slots[at] & kNumberMask) != 0) at = (at + 1) & mask;
  if (slots[at] == kErased) --num_erased_;
  slots[at] = TagOf(hash) | EntrySlabs::SlotOf(entry.handle);
}

void HandleTable::Erase(const IndexEntry& entry) {
  const uint64_t hash = HashOf(entry.key);
  uint32_t* slots = slots_.load(std::memory_order_relaxed);
  const uint32_t mask = mask_.load(std::memory_order_relaxed);
  const uint32_t slot = TagOf(hash) | EntrySlabs::SlotOf(entry.handle);
  uint32_t at = hash >> kHomeShift & mask;
  while (slots[at] != slot) {
    TERRACE_CHECK(slots[at] != kFree) << "an entry that is not in the table";
    at = (at + 1) & mask;
  }
  --num_entries_;
  slots[at] = kErased;
  ++num_erased_;
  if (slots[(at + 1) & mask] != kFree) return;
  // No search goes on from here, nor from erased ones just before.
  for (; slots[at] == kErased; at = (at - 1) & mask) {
    slots[at] = kFree;
    --num_erased_;
  }
}

void HandleTable::Rebuild() {
  uint32_t* old_slots = slots_.load(std::memory_order_relaxed);
  const uint64_t old_num_slots = num_slots();
  // As large as before where that leaves an eighth of it for the next erased ones.
  const uint64_t new_num_slots =
      num_entries_ * uint64_t{8} > old_num_slots * 5 ? 2 * old_num_slots : old_num_slots;
  slots_.store(memory_.Take(new_num_slots), std::memory_order_relaxed);
  mask_.store(static_cast<uint32_t>(new_num_slots - 1), std::memory_order_relaxed);
  num_erased_ = 0;
  // The keys are met at random: several are on their way at once.
  constexpr uint64_t kAhead = 24;
  for (uint64_t i = 0; i < old_num_slots + kAhead; ++i) {
    const uint32_t next = i < old_num_slots ? old_slots[i] & kNumberMask : 0;
    if (next != 0) __builtin_prefetch(&slab_.At(next));
    const uint32_t now = i >= kAhead ? old_slots[i - kAhead] & kNumberMask : 0;
    if (now != 0) Put(slab_.At(now));
  }
  memory_.GiveBack(old_slots, old_num_slots);
}

}  // namespace terrace
