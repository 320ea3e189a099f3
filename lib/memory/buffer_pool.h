// BufferPool: one anonymous mapping, populated (and locked, where the system lets us) once, from which
// buffers are runs of 64 KiB units, best fit. No memory is allocated per buffer afterwards.
//
// In the steady state the pool is full, and Allocate evicts on demand through a Reclaimer: the coldest thing
// first; once bytes suffice but no run does, the cheapest runs that lie side by side, which nobody else can
// take meanwhile. A buffer is charged to loads or stores until Settle makes it evictable content or its last
// reference drops; each of the two classes has a reserve of max(a quarter of the pool, the largest buffer
// asked for) that the other cannot take. A pool of less than two of the largest has no reserves: the two
// alternate.
//
// Threads: every call from every thread; no lock is held over the reclaimer or a waiter. Buffers may outlive
// the pool object: the mapping goes when the last one does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lib/memory/buffer_pool_options.h"
#include "lib/memory/pool_accounts.h"
#include "lib/memory/reclaimer.h"
#include "terrace/backend.h"
#include "terrace/bytes.h"
#include "terrace/shared_pool.h"
#include "terrace/status.h"

namespace terrace {

class PoolArena;
struct PoolRun;

class BufferPool {
 public:
  static Result<std::unique_ptr<BufferPool>> Create(const BufferPoolOptions& options);
  // No call may be running; waiters are dropped, not called.
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Not owned; null for none. Must live until every Allocate that began before its replacement has ended.
  void SetReclaimer(Reclaimer* reclaimer);
  // One that evicts the coldest only (ReclaimOne): where runs are of one size, and in tests.
  void SetReclaimer(std::function<bool(uint64_t wanted_bytes)> reclaim_one);

  // A buffer of at least `bytes` (4,096-aligned, whole units), evicting as needed. kResourceExhausted for
  // more than largest_buffer_bytes() and above the limit of the class (both at once, nothing is evicted), and
  // when what may be evicted does not help.
  Result<BufferRef> Allocate(uint64_t bytes, BufferUse use = BufferUse::kContent);

  // The object in the buffer was published and nothing but the host tier wants it: content from now on,
  // charged to no class. Again, or for bytes that are not of this pool: no effect.
  void Settle(const BufferRef& buffer);
  // Given up by whoever asked for it, while a device may still touch it: charged to no class, counted as
  // orphaned until its release, and never evicted.
  void MarkOrphan(const BufferRef& buffer);
  // How the Reclaimer's calls name the buffer; null for bytes that are not of this pool. For one of this
  // pool the same as long as a reference is held.
  const BufferControl* ControlOf(const BufferRef& buffer) const;

  // Calls `call` once, after something was given back or settled, or Nudge was called: there may be room.
  // Register first, then try once more, so that no room is missed. `call` runs inside whatever dropped the
  // last reference, under that caller's locks: it hands work to an executor, nothing else, and does not
  // throw. An id for CancelNotify; 0, and no call ever, when 4,096 wait already.
  uint64_t NotifyOnRoom(std::function<void()> call);
  // False when it was called, is being called now, or is not known.
  bool CancelNotify(uint64_t id);
  // Something became evictable (a pin was dropped, a write-behind ended).
  void Nudge();

  uint64_t size_bytes() const;
  // What one buffer can have at most: the pool, but not more than 1 GiB.
  uint64_t largest_buffer_bytes() const;
  uint64_t used_bytes() const;  // handed out and not yet given back, in whole units
  // Charged to the class, with what Allocate is making room for just now.
  uint64_t class_bytes(BufferUse use) const;
  uint64_t orphaned_bytes() const;

  // The whole pool in pieces of 1 GiB (the last may be shorter) that no buffer crosses, for io_uring and CUDA
  // to register: regions()[i].id == i is the region_id of the buffers in it. Empty for a pool of 0 bytes.
  std::vector<MemoryRegion> regions() const;
  // Of a pool that is shared: its descriptors, and where a buffer of it lies. Null for bytes that are not of
  // this pool.
  std::optional<SharedPool> shared() const;
  std::optional<SharedPlace> Locate(const BufferRef& buffer) const;

  // The whole pool as one region.
  MemoryRegion region() const;

 private:
  explicit BufferPool(PoolArena* arena);
  PoolRun* MakeRoom(uint32_t units, BufferUse use);
  // Null when it did not work; `hopeless` when things may be evicted, but no window of them has the room,
  // whatever goes: then nothing more must be evicted for it.
  PoolRun* EvictWindow(Reclaimer& reclaimer, uint32_t units, BufferUse use, bool& hopeless);

  PoolArena* const arena_;  // deletes itself when the pool is gone and the last buffer is given back
};

}  // namespace terrace
