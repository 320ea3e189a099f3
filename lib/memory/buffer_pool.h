// BufferPool: one anonymous mapping, populated (and locked, where the system lets us) once, from which
// buffers are runs of 64 KiB units, best fit. No allocation of memory afterwards. In the steady state it is
// full: Allocate asks a Reclaimer for space.
//
// Threads: every call from every thread; one mutex, never held over the reclaimer. Buffers may outlive the
// pool object: the mapping goes when the last one does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "terrace/backend.h"
#include "terrace/bytes.h"
#include "terrace/log_sink.h"
#include "terrace/status.h"

namespace terrace {

inline constexpr uint64_t kPoolUnitBytes = 64 * 1024;

struct BufferPoolOptions {
  uint64_t size_bytes = 0;  // rounded down to units; 0 is a pool in which nothing fits
  bool huge_pages = true;
  LogSink* log = nullptr;  // may be null
};

class BufferPool {
 public:
  // Asked to give at least one thing back; false when there is nothing that may go. Called without a lock, on
  // the thread that allocates, again and again until the allocation fits.
  using Reclaimer = std::function<bool(uint64_t wanted_bytes)>;

  static Result<std::unique_ptr<BufferPool>> Create(const BufferPoolOptions& options);
  ~BufferPool();

  void SetReclaimer(Reclaimer reclaimer);
  // A buffer of at least `bytes` (4,096-aligned, whole units), reclaiming as needed. kResourceExhausted when
  // that does not help, at once for more than the pool.
  Result<BufferRef> Allocate(uint64_t bytes);

  uint64_t size_bytes() const;
  uint64_t used_bytes() const;  // handed out and not yet given back, in whole units
  MemoryRegion region() const;

 private:
  struct Arena;
  explicit BufferPool(std::shared_ptr<Arena> arena);
  std::shared_ptr<Arena> arena_;
};

}  // namespace terrace
