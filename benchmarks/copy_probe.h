// MeasureCopies: the library's copies beside glibc's memcpy and a bare streaming probe, alternating in one
// process. GB/s are 10^9 bytes of payload per second of a thread's CPU time (a copy never sleeps, so that
// other work on the machine disturbs less), summed over the threads; medians over the repetitions.
//
//   to_pool, from_pool     StreamCopy between pool memory (4,096-aligned, huge pages) and a caller's (4 KiB
//                          pages, 24 bytes behind a page's begin)
//   gather, scatter        GatherLayers, ScatterLayers between pool memory and pages in shuffled order, each
//                          `piece_bytes` long; the probe is the contiguous one, memcpy copies piece by piece
//
// Sources and destinations rotate through `arena_bytes` per thread and side, so that they are not in cache.
// The probe is the best of several settings, by median.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terrace::bench {

struct CopyBenchOptions {
  std::vector<uint64_t> sizes_bytes = {5764 * 1024, 32 << 20};
  std::vector<uint64_t> piece_sizes_bytes = {2 << 10, 32 << 10};  // multiples of 64; with each size
  std::vector<int> threads = {1, 2};
  int repetitions = 9;
  uint64_t arena_bytes = 192 << 20;     // at least twice the largest size
  uint64_t bytes_per_round = 64 << 20;  // that a thread copies per measurement, at least one copy
};

struct CopyResult {
  std::string op;
  uint64_t bytes = 0;
  uint64_t piece_bytes = 0;  // 0: contiguous
  int threads = 0;
  double library_gbps = 0;
  double probe_gbps = 0;
  double memcpy_gbps = 0;
  std::string probe_setting;  // e.g. "avx512 pages:4 lines:2"

  double ratio() const { return library_gbps / probe_gbps; }
  double ratio_memcpy() const { return library_gbps / memcpy_gbps; }
  // One line: {"op": ..., "bytes": ..., ..., "ratio": ..., "ratio_memcpy": ...}
  std::string ToJson() const;
};

// In the order of sizes, threads, operations.
std::vector<CopyResult> MeasureCopies(const CopyBenchOptions& options);

}  // namespace terrace::bench
