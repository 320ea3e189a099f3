// ForEachStagedPart: cuts a copy into parts that fit a staging slot. Whole planes as long as they fit; a
// plane that does not fit is cut by tokens.
//
//   payload  | plane 0 | plane 1 |   gap   | plane 2 |       (a gap: tokens or layers that are not copied)
//   slot     | plane 0   plane 1 | padding | plane 2 |
//            |<--- one run ----->|         |<- run ->|       one copy over the bus for each
//
// Threads: no state.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/paged_copy_args.h"
#include "terrace/status.h"

namespace terrace {

inline constexpr uint64_t kSlotAlignment = 256;

// Bytes that are contiguous in the payload and in the slot.
struct StagedRun {
  uint64_t payload_offset = 0;
  uint64_t slot_offset = 0;  // of the slot's first run and of those after a gap a multiple of kSlotAlignment
  uint64_t bytes = 0;
};

struct StagedPart {
  PagedCopyArgs args;  // planes at their offsets in the slot; `payload` is the caller's to set
  std::vector<PlaneArgs> planes;
  std::vector<StagedRun> runs;
};

// Calls `part` for each, in the payload's order, until it answers an error, which is answered. No token of a
// plane is larger than a slot (kInvalidArgument).
Status ForEachStagedPart(const PagedCopyArgs& args, uint64_t slot_bytes,
                         const std::function<Status(const StagedPart&)>& part);

}  // namespace terrace
