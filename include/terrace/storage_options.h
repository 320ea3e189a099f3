// What StorageManager::Open takes: tiers, fastest first, and options. Plain values; Validate() names field,
// value and what is allowed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "terrace/backend.h"
#include "terrace/device.h"
#include "terrace/eviction_policy.h"
#include "terrace/executor.h"
#include "terrace/export.h"
#include "terrace/kv_event.h"
#include "terrace/log_sink.h"
#include "terrace/metrics.h"
#include "terrace/status.h"
#include "terrace/time.h"
#include "terrace/trace.h"

namespace terrace {

// A level with policy. Tiers are given fastest first; at most one has supports_borrow, and it is first.
struct Tier {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<EvictionPolicy> policy;  // null = least recently used first
};

struct StorageOptions {
  // Pinned or locked host memory, allocated and populated once by Open, shared by the host tier and by
  // what is in flight. 0 is valid: nothing is cached. Rounded down to 64 KiB units.
  uint64_t pool_bytes = uint64_t{1} << 30;
  bool huge_pages = true;  // ask for transparent huge pages; a refusal is a warning
  int numa_node = -1;      // bind the pool to this node; -1 = where the system puts it
  // The pool is memory that other processes can be handed to read, see terrace/shared_pool.h; without huge
  // pages then.
  bool share_pool = false;
  // For a store that holds runs (RunBegin of object_meta.h) without what stands before them, as one of
  // several servers does: the first chunk of a run needs no parent.
  bool runs_stand_alone = false;
  Duration lease_time = std::chrono::seconds(30);
  // Host bytes that leases may protect, as a share of the pool; above it a lookup is a hint.
  double lease_budget = 0.5;  // 0..1
  // Bytes that pins may protect, as a share of the pool and of the tiers below.
  double pin_budget = 0.25;  // 0..1
  // Memory for tokens and items of the indexed chunks; above it the coldest lose theirs (they still match
  // whole chunks by key, no longer inside one).
  uint64_t index_bytes = uint64_t{2} << 30;
  // How long one read or write of a chunk may take before the caller is told to recompute or drop it.
  Duration io_deadline = std::chrono::seconds(10);
  // Bytes of a load that may be resident at once, unreleased LeasedChunks included; 0 = half the pool.
  uint64_t load_window_bytes = 0;
  // Whose memory views may name, see PagedKvView::stream. Each once.
  std::vector<DeviceOptions> devices;
  ThreadPoolOptions threads;  // used when `executor` is null
  std::shared_ptr<Executor> executor;
  std::shared_ptr<MetricRegistry> metrics;  // null = one of its own
  std::shared_ptr<LogSink> log;             // null = warnings on standard error
  std::shared_ptr<TraceSink> traces;        // null = none
  std::shared_ptr<KvEventSink> events;      // null = none
  Clock* clock = nullptr;                   // null = Clock::Real()
  Status Validate() const;
};

}  // namespace terrace
