// MeasureBaseline: the same payloads in what a cache would use without a store of its own.
//
//   rocksdb_blob    RocksDB with blob files, direct I/O for blobs and tables, no compression, no write-ahead
//   log file_per_chunk  a file per chunk, written through the page cache and not synced, as other caches'
//   disk
//                   tiers do it; read back after the cache was emptied of it
//
// Four threads each. Nothing is evicted: `bytes` are written once, synced outside the measure, and read in
// the order in which they were written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/status.h"

namespace terrace::bench {

enum class BaselineKind : uint8_t { kRocksBlobs, kFilePerChunk };

struct BaselineFigures {
  std::string system;
  std::string op;  // "put", "get"
  std::string note;
  double gbps = 0;
  double cpu_s_per_gb = 0;
  std::vector<double> ms;
};

// In `directory`, which is made and belongs to the caller afterwards.
Result<std::vector<BaselineFigures>> MeasureBaseline(BaselineKind kind, const std::string& directory,
                                                     uint64_t bytes, uint64_t chunk_bytes);

}  // namespace terrace::bench
