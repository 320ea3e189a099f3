// OpenedStore: what opening a directory gives - the locked directory, its manifest and segments, and the
// index and accounting rebuilt from them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/nvme/disk.h"
#include "backends/nvme/erased_log.h"
#include "backends/nvme/extent_allocator.h"
#include "backends/nvme/key_ring.h"
#include "backends/nvme/manifest.h"
#include "backends/nvme/placement.h"
#include "backends/nvme/record_cipher.h"
#include "backends/nvme/segment_files.h"
#include "backends/nvme/tier_directory.h"
#include "terrace/nvme_backend.h"

namespace terrace {

struct OpenedStore {
  NvmeOptions options;  // segment_bytes as the directory has it; without keys
  KeyRing keys;         // empty: the directory is not encrypted
  std::unique_ptr<Disk> disk;
  std::optional<TierDirectory> directory;
  std::unique_ptr<RecordCipher> cipher;  // of an encrypted directory; the manifest's
  std::unique_ptr<Manifest> manifest;
  std::unique_ptr<ErasedLog> erased;  // of whoever writes the manifest
  std::optional<SegmentFiles> segments;
  ExtentAllocator allocator;
  ObjectIndex index;
  bool is_direct = true;    // the file system has O_DIRECT
  uint64_t data_bytes = 0;  // the capacity without the manifest's reserve
  uint64_t next_generation = 1;
  uint64_t record_bytes = 0;
  uint64_t record_budget = 0;
  uint64_t dropped_records = 0;
  // By a rebuild of a manifest that was lost.
  uint64_t rebuilt_objects = 0;
  uint64_t unadopted_objects = 0;
  std::vector<std::string> warnings;  // for the log, which is not there yet
};

Result<std::unique_ptr<OpenedStore>> OpenStore(const NvmeOptions& options, std::unique_ptr<Disk> disk);

// Index and accounting from the manifest's records; those that are wrong are dropped. kDataLoss: the manifest
// is damaged.
Status LoadIndex(OpenedStore& store);
// All bytes of the segments, as long as they are now, are the allocator's.
void GrowAllocator(OpenedStore& store);

}  // namespace terrace
