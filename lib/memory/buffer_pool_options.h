// BufferPoolOptions: what a BufferPool is made of.
#pragma once

#include <cstdint>

#include "terrace/log_sink.h"
#include "terrace/metrics.h"

namespace terrace {

inline constexpr uint64_t kPoolUnitBytes = 64 * 1024;
// No run crosses a border of pieces: one registered buffer of io_uring may not exceed 1 GiB.
inline constexpr uint64_t kPoolPieceBytes = uint64_t{1} << 30;

struct BufferPoolOptions {
  uint64_t size_bytes = 0;  // rounded down to units, at most 64 TiB; 0 is a pool in which nothing fits
  bool huge_pages = true;   // transparent ones; a refusal is logged
  bool share = false;       // memory that other processes can be handed to read; without huge pages then
  int numa_node = -1;       // -1: wherever the kernel puts it; else pages come from there while it has any
  bool populate = true;     // false: neither populated nor locked, pages come at first touch
  LogSink* log = nullptr;   // may be null; used by Create only
  MetricRegistry* metrics = nullptr;  // may be null; outlives the pool (not its buffers)
};

}  // namespace terrace
