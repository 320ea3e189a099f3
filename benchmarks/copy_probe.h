// MeasureCopies: the library's copies beside glibc's memcpy and a bare streaming probe, alternating in one
// process. GB/s are 10^9 bytes of payload per second of a thread's CPU time (a copy never sleeps, so that
// other work on the machine disturbs less), summed over the threads; medians over the repetitions.
//
//   contiguous        StreamCopy between pool memory (4,096-aligned, huge pages) and a caller's (4 KiB pages,
//   24
//                     bytes behind a page's begin); the layout says in which direction
//   gather, scatter   GatherLayers, ScatterLayers between a chunk in pool memory and an engine's pages, in
//   the
//                     layouts of engines, blocks in shuffled order; the probe is the contiguous one, memcpy
//                     copies piece by piece
//
// Sources and destinations rotate through `arena_bytes` per thread and side, so that they are not in cache.
// The probe is the best of several settings, by median.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/status.h"

namespace terrace::bench {

struct CopyBenchOptions {
  std::vector<uint64_t> sizes_bytes = {5764 * 1024, 32 << 20};    // of contiguous copies
  uint64_t chunk_bytes = 32 << 20;                                // of gathers and scatters; x 1 MiB
  std::vector<uint64_t> piece_sizes_bytes = {2 << 10, 32 << 10};  // in each layout; powers of two from 2 KiB
  std::vector<int> threads = {1, 2};
  int repetitions = 9;
  uint64_t arena_bytes = 192 << 20;     // at least twice the largest size
  uint64_t bytes_per_round = 64 << 20;  // that a thread copies per measurement, at least one copy
};

struct CopyResult {
  std::string op;
  std::string layout;        // an engine's; of contiguous copies the direction
  uint64_t piece_bytes = 0;  // contiguous on both sides
  int threads = 0;
  double library_gbps = 0;
  double probe_gbps = 0;
  double memcpy_gbps = 0;

  double ratio() const { return library_gbps / probe_gbps; }
  // One line: {"op": ..., "layout": ..., "piece_bytes": ..., "threads": ..., "library_gbps": ...,
  // "probe_gbps": ..., "memcpy_gbps": ..., "ratio": ...}
  std::string ToJson() const;
};

// In the order of threads, operations. kInvalidArgument: a piece that a layout cannot have.
Result<std::vector<CopyResult>> MeasureCopies(const CopyBenchOptions& options);

}  // namespace terrace::bench
