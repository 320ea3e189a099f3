// Rebuild: the records of a manifest that was lost, from the segments alone. Every 4 KiB unit of every
// segment is looked at: where a tier page proves itself under the directory's secret and names its own place,
// the frame behind it is an object again. Payload is not read: it is verified at its first read.
//
// What comes back: everything that was stored and is whole; what was evicted and not written over since, too.
// Not: what was erased (see erased_log.h) or cleared (another secret), pages of version 1, objects of more
// extents than a page holds, and what lies under a later write. The roots table is lost.
//
// No region is skipped, not even the payload of an adopted frame: that frame may have been evicted and a part
// of its place be a later object's. A page inside a payload, also a whole copy of one of this directory, is
// not adopted: its code, or its own extents, are wrong there.
#pragma once

#include <cstdint>

#include "backends/nvme/erased_log.h"
#include "backends/nvme/key_ring.h"
#include "backends/nvme/manifest.h"
#include "backends/nvme/segment_files.h"
#include "backends/nvme/superblock.h"
#include "terrace/status.h"

namespace terrace {

// Unreadable bytes beyond which a rebuild gives up: the device fails, and what it has is not to be forgotten.
inline constexpr uint64_t kMaxUnreadableBytes = uint64_t{16} << 20;

struct RebuildSource {
  const SegmentFiles& segments;
  const Superblock& superblock;
  const ErasedLog* erased = nullptr;  // null: it is lost, and nothing can be adopted
  const KeyRing* keys = nullptr;      // of an encrypted directory, whose frames are all sealed
  uint64_t record_budget = 0;         // see RecordBudget; the oldest go without
};

struct RebuildReport {
  uint64_t objects = 0;  // adopted
  uint64_t dropped = 0;  // pages of this directory that were not
  uint64_t unreadable_bytes = 0;
  uint64_t next_generation = 1;  // above every one that was seen
};

// Writes the records into `manifest`, which is new and empty; durable when it returns. Memory: the records of
// all frames that were found. kUnavailable where the device fails.
Result<RebuildReport> RebuildManifest(const RebuildSource& source, Manifest& manifest);

}  // namespace terrace
