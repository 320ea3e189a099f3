// PoolAccounts: how much of a pool is handed out and for what, the limits of the classes, and the gauges that
// show it. Counts are exact at every moment; all are relaxed atomics but where a comment says why not.
//
// Threads: every call from every thread, but for DropMetrics.
#pragma once

#include <atomic>
#include <cstdint>

#include "terrace/metrics.h"

namespace terrace {

// What a buffer is for. Loads and stores have a reserve each, which the other class cannot take.
enum class BufferUse : uint8_t {
  kContent = 0,  // what the host tier keeps: may be evicted, bound by no reserve
  kLoad = 1,
  kStore = 2,
};

enum class PoolFailure : uint8_t { kTooLarge, kClassLimit, kFull };

class PoolAccounts {
 public:
  // `metrics` may be null.
  PoolAccounts(uint64_t units, MetricRegistry* metrics);

  // Charges a run to its class before it is there; false, and nothing charged, above the class's limit.
  // kContent always passes.
  bool Charge(uint64_t units, BufferUse use);
  void Discharge(uint64_t units, BufferUse use);

  void HandedOut(uint64_t units);
  void GivenBack(uint64_t units);
  void Orphaned(int64_t units);  // negative: no longer
  void Failed(PoolFailure reason);
  void WindowEvicted();

  uint64_t used_units() const { return used_.load(std::memory_order_relaxed); }
  uint64_t orphaned_units() const { return orphaned_.load(std::memory_order_relaxed); }
  uint64_t charged_units(BufferUse use) const { return charged_[static_cast<int>(use)].load(); }
  // Units that the class may hold: the pool without the other class's reserve.
  uint64_t LimitUnits() const;

  // Takes this pool's amounts out of the gauges, which nothing touches any more afterwards. Nobody else may
  // be calling.
  void DropMetrics();

 private:
  struct Metrics {
    Gauge* size = nullptr;
    Gauge* used = nullptr;
    Gauge* orphaned = nullptr;
    Gauge* charged[3] = {};  // by BufferUse; none for kContent
    Counter* allocations = nullptr;
    Counter* window_evictions = nullptr;
    Counter* failures[3] = {};  // by PoolFailure
  };

  const uint64_t units_;
  Metrics metrics_;
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> orphaned_{0};
  std::atomic<uint64_t> largest_{0};  // units of the largest run ever asked for
  // Sequentially consistent: a settled run is seen by whoever registered as a waiter and then tries again, or
  // the settling thread sees that waiter.
  std::atomic<uint64_t> charged_[3] = {};
};

}  // namespace terrace
