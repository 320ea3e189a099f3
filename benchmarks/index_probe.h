// MeasureIndex: ChunkIndex beside a bare hash map, alternating in one process; MeasureIndexMemory: what an
// entry and its place in the eviction policy occupy.
//
// The bare probe is 64 shards of std::mutex and absl::flat_hash_map<ChunkKey, 16 bytes>, without children,
// pins, recency or contents. Chains of eight chunks hang under a thousand roots; contents have four tokens.
// Operations, library then probe:
//
//   visit: Visit of a known key; find
//   mixed: 90 % Visit with a pin, and Unhold; 5 % Add of an entry with an object; 5 % Find, the object's
//     end and RemoveIfUnused. find, insert, erase
//   add: Add of every entry with an object, into an index that grows (contents are made beforehand); insert
//   neighbours: Neighbours, four each way, among `children` children of one key; no probe
//   neighbours_shared: the same where all children begin with the same 32 tokens
//
// Nanoseconds are of one thread between two of its operations; medians over the repetitions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace terrace::bench {

struct IndexBenchOptions {
  uint64_t entries = 10'000'000;  // about 3 GB with the probe's
  uint64_t children = 1'000'000;
  uint64_t operations = 1'000'000;  // of each thread per measurement; at most entries / 2
  std::vector<int> threads = {1, 2};
  int repetitions = 5;
};

struct IndexResult {
  std::string op;
  int threads = 0;
  double library_ns = 0;
  double probe_ns = 0;  // 0: none

  double ratio() const { return probe_ns / library_ns; }  // of rates
  // One line: {"op": ..., "threads": ..., "library_ns": ..., "probe_ns": ..., "ratio": ...}
  std::string ToJson() const;
};

std::vector<IndexResult> MeasureIndex(const IndexBenchOptions& options);

// Growth of the resident memory, per entry with one object in one tier.
struct IndexMemory {
  uint64_t entries = 0;
  double entry_bytes = 0;    // the index, contents left out
  double policy_bytes = 0;   // the built-in policy of one tier
  double content_bytes = 0;  // of four tokens, with the allocator's own

  std::string ToJson() const;
};

IndexMemory MeasureIndexMemory(uint64_t entries);

}  // namespace terrace::bench
