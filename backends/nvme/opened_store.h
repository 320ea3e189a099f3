// OpenedStore: what opening a directory gives - the locked directory, its manifest and segments, and the
// index and accounting rebuilt from them.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/nvme/extent_allocator.h"
#include "backends/nvme/manifest.h"
#include "backends/nvme/segment_files.h"
#include "backends/nvme/tier_directory.h"
#include "terrace/nvme_backend.h"

namespace terrace {

// Where one object lies. Its extents go back to the allocator when it is retired and nobody reads it any
// more.
struct Placement {
  ObjectId id;
  std::vector<Extent> extents;
  uint64_t generation = 0;
  uint64_t frame_bytes = 0;
  uint32_t header_bytes = 0;
  uint64_t record_bytes = 0;
  uint32_t readers = 0;
  bool retired = false;
};
using PlacementRef = std::shared_ptr<Placement>;
using ObjectIndex = absl::flat_hash_map<ObjectId, PlacementRef, ObjectIdHash>;

struct OpenedStore {
  NvmeOptions options;  // segment_bytes as the directory has it
  std::optional<TierDirectory> directory;
  std::unique_ptr<Manifest> manifest;
  std::optional<SegmentFiles> segments;
  ExtentAllocator allocator;
  ObjectIndex index;
  uint64_t data_bytes = 0;  // the capacity without the manifest's reserve
  uint64_t next_generation = 1;
  uint64_t record_bytes = 0;
  uint64_t record_budget = 0;
  uint64_t dropped_records = 0;
  std::vector<std::string> warnings;  // for the log, which is not there yet
};

Result<std::unique_ptr<OpenedStore>> OpenStore(const NvmeOptions& options);

}  // namespace terrace
