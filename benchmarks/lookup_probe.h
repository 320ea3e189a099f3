// MeasureLookups: StorageManager::Lookup beside what no lookup can do without, alternating in one process.
//
//   lookup        a prompt of `tokens` tokens, all of whose chunks lie in the host tier, asked for anew; the
//   probe
//                 hashes the same chain with OpenSSL alone and finds each key in a flat_hash_map
//   lookup_grown  the same prompt under a request id, one chunk longer than the last time; the probe hashes
//   that
//                 chunk and finds its key
//   peek          as lookup, by Peek
//
// Microseconds of wall time per call; medians over the repetitions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/status.h"

namespace terrace::bench {

struct LookupBenchOptions {
  uint64_t tokens = 131072;  // a multiple of 256
  int repetitions = 51;
};

struct LookupResult {
  std::string op;
  uint64_t tokens = 0;
  uint64_t chunks = 0;
  double library_us = 0;
  double probe_us = 0;

  double ratio() const { return library_us / probe_us; }  // of times: smaller is better
  // One line: {"op": ..., "tokens": ..., "chunks": ..., "library_us": ..., "probe_us": ..., "ratio": ...}
  std::string ToJson() const;
};

Result<std::vector<LookupResult>> MeasureLookups(const LookupBenchOptions& options);

}  // namespace terrace::bench
