// The NVMe tier's backend: frames in segment files, written and read with io_uring and O_DIRECT; records
// in a RocksDB manifest. Objects outlive the process. One process holds a directory at a time. The
// on-disk format and the order of writes are drawn in backends/nvme/README.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "terrace/backend.h"

namespace terrace {

struct NvmeOptions {
  std::string directory;                        // made with mode 0700 if absent
  uint64_t capacity_bytes = 0;                  // segments + manifest; 0 = nothing fits (valid)
  uint64_t segment_bytes = uint64_t{1} << 30;   // multiple of 1 MiB, 16 MiB..64 GiB
  uint64_t request_bytes = uint64_t{2} << 20;   // one I/O request, 1..4 MiB, multiple of 4,096
  uint64_t inflight_bytes = uint64_t{8} << 20;  // per direction, >= request_bytes
  Status Validate() const;
};

// kUnavailable naming process, host and since when, where another process (or this one) holds the
// directory; kDataLoss for a foreign or newer-version directory, which is left untouched;
// kInvalidArgument for a bad option.
TERRACE_API Result<std::unique_ptr<Backend>> MakeNvmeBackend(const NvmeOptions& options);

}  // namespace terrace
