// MeasureStores: what a store costs the engine's own thread, beside the one copy that it may need. The pool
// is full: each store evicts.
//
//   prepare_commit  Prepare and Commit of one new chunk of a prompt under its request id, without the
//   filling; the
//                   probe is the filling: one streaming copy of the payload
//   store_view      Store of one new chunk out of paged memory (blocks of 16 tokens): the call alone, the
//   copy is the
//                   executor's; the probe is the same copy
//
// Microseconds of wall time on the calling thread; medians over the repetitions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/status.h"

namespace terrace::bench {

struct StoreBenchOptions {
  uint64_t payload_bytes = 32 << 20;  // of a chunk of 256 tokens; a multiple of 2 MiB
  uint64_t prompt_chunks = 16;        // stored one by one, then another prompt begins
  int repetitions = 64;               // chunks
};

struct StoreResult {
  std::string op;
  uint64_t payload_bytes = 0;
  double library_us = 0;  // beside the copy
  double p99_us = 0;      // of the same
  double probe_us = 0;    // the copy

  double ratio() const { return (library_us + probe_us) / probe_us; }
  // One line: {"op": ..., "payload_bytes": ..., "library_us": ..., "p99_us": ..., "probe_us": ..., "ratio":
  // ...}
  std::string ToJson() const;
};

Result<std::vector<StoreResult>> MeasureStores(const StoreBenchOptions& options);

}  // namespace terrace::bench
