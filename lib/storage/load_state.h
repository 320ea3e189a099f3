// The state of one load: shared by the handle, its LeasedChunks and the reads in flight.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/storage/manager_core.h"

namespace terrace {

// What an item occupies of the pool while it is resident.
inline uint64_t ResidentBytes(const LeaseItem& item) {
  return RoundUp(kTierPageBytes + item.meta.frame_bytes, kPoolUnitBytes);
}

// Items are started in order while the window has room, finish in any order, and are taken in order.
struct LoadHandle::State : std::enable_shared_from_this<LoadHandle::State> {
  struct Slot {
    enum class Phase { kWaiting, kReading, kReady, kTaken } phase = Phase::kWaiting;
    BufferRef buffer;
    uint32_t header_bytes = 0;
  };

  std::shared_ptr<ManagerCore> core;
  std::shared_ptr<Lease::State> lease;  // protects until the load has ended
  std::vector<LeaseItem> items;
  std::vector<MutableBytes> memory;  // empty: LeasedChunks
  uint64_t begin_token = 0;
  uint64_t first_whole_token = 0;  // see FirstWholeToken
  uint64_t window_bytes = 0;
  CancelFlag cancel = std::make_shared<std::atomic<bool>>(false);

  mutable std::mutex mutex;  // guards all below; never held while the manager or a backend is called
  std::condition_variable changed;
  std::vector<Slot> slots;
  bool is_pumping = false;
  bool pump_again = false;
  size_t next_start = 0;
  size_t next_take = 0;
  uint64_t resident_bytes = 0;
  // next_start found the pool full. Next tries again while it waits for it: others give room back without a
  // word.
  bool is_parked = false;
  size_t failed_at = SIZE_MAX;  // items from here on are not given out
  Status failure;
  LoadReport report;

  void Pump();
  // False (only if may_wait): the pool is full for now, the item is parked. It starts again when something of
  // this load is released, or when Next waits for it.
  bool Start(size_t index, size_t from_tier, bool may_wait);
  void ReadFrom(size_t index, size_t tier, BufferRef buffer, uint64_t erasures);
  void Ready(size_t index, BufferRef buffer, uint32_t header_bytes);
  void Fail(size_t index, Status status);
  void ReleaseBytes(uint64_t bytes);
  void GiveUp(size_t parked);
  void CountTaken(size_t index);
  void Cancel(Status why);
  // With `mutex` held: nothing from `index` on is given out. What was ready goes to `dropped`, to be released
  // after the lock.
  void EndAt(size_t index, Status why, std::vector<BufferRef>* dropped);
};

struct LeasedChunk::State {
  std::shared_ptr<LoadHandle::State> load;
  LeaseItem item;
  BufferRef buffer;
  uint32_t header_bytes = 0;

  ~State() {
    if (load && load->core->IsForkedChild()) {
      // The parent's; giving it back takes locks that a fork may have left held.
      new BufferRef(std::move(buffer));
      return;
    }
    buffer.Reset();
    if (load) load->ReleaseBytes(ResidentBytes(item));
  }
};

}  // namespace terrace
