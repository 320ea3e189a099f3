// MeasureNvme: the NVMe tier's data path beside fio on the same file system, with the same request size and
// depth, in turns. The tier is full and every extent was written before: each put evicts the oldest chunk.
//
//   put              frames written, records and all
//   get              whole frames read, in the order in which they were put; the tier page is checked
//   get_verified     the same, and the XXH3-128 of each piece is checked while the rest arrives
//   mixed_70_30      of ten operations seven gets (in random order) and three puts; milliseconds are the
//   gets' get_alone        one get at a time, nothing else get_beside_puts  one get at a time while puts are
//   kept in flight; beside get_alone it says what a load
//                    waits for writes
//
// With `baselines` the same payloads as well in RocksDB's blob files and in a file per chunk.
//
// Gigabytes (10^9) of payload per second, medians of the rounds. CPU seconds of the process (kernel's part
// too) per gigabyte, without what it takes when nothing is asked and without the making of the frames.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "terrace/nvme_backend.h"
#include "terrace/status.h"

namespace terrace::bench {

struct NvmeBenchOptions {
  std::string directory;                // must exist; what is made in it is gone afterwards
  uint64_t bytes = uint64_t{12} << 30;  // of the tier, and of fio's file beside it
  std::vector<uint64_t> chunk_bytes = {5898240, uint64_t{32} << 20, uint64_t{64} << 10};  // payloads
  std::vector<std::string> ops;  // those to measure; empty: all
  int repetitions = 5;
  bool baselines = false;
  IoEngineKind io_engine = IoEngineKind::kAuto;
  Durability durability = NvmeOptions{}.durability;
  std::vector<EncryptionKey> keys;  // not empty: the tier is encrypted, and its rows' notes say so
  uint64_t request_bytes = NvmeOptions{}.request_bytes;
  uint64_t inflight_bytes = NvmeOptions{}.inflight_bytes;
};

struct NvmeResult {
  std::string op;
  uint64_t chunk_bytes = 0;
  double library_gbps = 0;
  std::optional<double> fio_gbps;
  double cpu_s_per_gb = 0;
  std::optional<double> fio_cpu_s_per_gb;
  double p50_ms = 0;  // from the call to its completion, others being in flight
  double p99_ms = 0;
  std::string system = "terrace";  // "rocksdb_blob", "file_per_chunk"
  std::string note;  // fio's block size and depth, or why there is none; what is not the default

  // One line with the keys of the fields, and `ratio`: library_gbps / fio_gbps. Absent figures are null.
  std::string ToJson() const;
};

// kInvalidArgument for a wrong option, kNotFound where the directory is not there, kResourceExhausted where
// the file system has not the room.
Result<std::vector<NvmeResult>> MeasureNvme(const NvmeBenchOptions& options);

}  // namespace terrace::bench
