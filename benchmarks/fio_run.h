// FioFile: fio on a file of its own, for a figure of what the file system gives without the library:
// O_DIRECT, io_uring, extents that were written before. One caller's thread.
#pragma once

#include <cstdint>
#include <string>

#include "terrace/status.h"

namespace terrace::bench {

struct FioJob {
  std::string rw;          // "read", "write", "randrw"
  int read_percent = 100;  // of randrw
  uint64_t block_bytes = 0;
  uint32_t depth = 1;
  uint64_t io_bytes = 0;  // moved in this run
};

struct FioFigures {
  double gbps = 0;  // both directions together, 10^9 bytes
  double cpu_s_per_gb = 0;
};

class FioFile {
 public:
  // `path` must not exist; it is gone with the object.
  FioFile(std::string path, uint64_t size_bytes) : path_(std::move(path)), size_bytes_(size_bytes) {}
  ~FioFile();
  FioFile(const FioFile&) = delete;
  FioFile& operator=(const FioFile&) = delete;

  // Writes the whole file once. kNotFound where there is no fio.
  Status Prepare();
  // kUnavailable with fio's own words where it failed.
  Result<FioFigures> Run(const FioJob& job);

 private:
  const std::string path_;
  const uint64_t size_bytes_;
  bool registered_ = true;
};

}  // namespace terrace::bench
