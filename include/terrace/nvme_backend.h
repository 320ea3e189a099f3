// The NVMe tier's backend: frames in segment files, written and read with io_uring and O_DIRECT; records
// in a RocksDB manifest. Objects outlive the process. One process holds a directory at a time. The
// on-disk format and the order of writes are drawn in backends/nvme/README.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "terrace/backend.h"

namespace terrace {

// What moves the bytes. kAuto: io_uring, or threads where the system forbids it; the log and the metric
// terrace_nvme_io_mode say which it became. kIoUring: kUnavailable where there is none.
enum class IoEngineKind : uint8_t { kAuto, kIoUring, kThreads };

// What outlives what, of a Put that succeeded. Erase and Clear are durable before they are acknowledged under
// each.
enum class Durability : uint8_t {
  kNone,   // a clean close. A crash of the process may lose it: its record is not logged
  kFlush,  // a crash of the process; after a power loss it is whole or absent. For a cache: the default
  kSync,   // a power loss: data and record are synced before the acknowledgement, in groups
};

// A key of encryption at rest. Ids are the caller's, unique and above 0; the key with the highest one
// encrypts, all decrypt: a rotation adds one and keeps the older ones until their objects are gone.
struct EncryptionKey {
  uint32_t id = 0;
  std::array<std::byte, 32> bytes{};
};

struct NvmeOptions {
  std::string directory;                        // made with mode 0700 if absent
  uint64_t capacity_bytes = 0;                  // segments + manifest; 0 = nothing fits (valid)
  uint64_t segment_bytes = uint64_t{1} << 30;   // multiple of 1 MiB, 16 MiB..64 GiB
  uint64_t request_bytes = uint64_t{2} << 20;   // one I/O request, 1..4 MiB, multiple of 4,096
  uint64_t inflight_bytes = uint64_t{8} << 20;  // per direction, >= request_bytes
  // Further directories, on other devices: objects are spread over all of them by key, each gets its share of
  // the capacity, and losing one loses only its objects.
  std::vector<std::string> more_directories;
  Durability durability = Durability::kFlush;
  IoEngineKind io_engine = IoEngineKind::kAuto;
  // Written with zeros ahead of use while the device is idle (first writes to a file are slower); 0 = never.
  uint64_t prepare_ahead_bytes = uint64_t{256} << 20;
  // A segment that would leave the file system less than this is not made.
  uint64_t min_free_bytes = uint64_t{512} << 20;
  // Empty: nothing is encrypted. See EncryptionKey; 8 at most. A directory stays as it was made, encrypted or
  // not.
  std::vector<EncryptionKey> keys;
  Status Validate() const;
};

// kUnavailable naming process, host and since when, where another process (or this one) holds the
// directory; kDataLoss for a foreign or newer-version directory, which is left untouched;
// kInvalidArgument for a bad option; kPermissionDenied where a key is missing or is not the directory's.
TERRACE_API Result<std::unique_ptr<Backend>> MakeNvmeBackend(const NvmeOptions& options);

}  // namespace terrace
