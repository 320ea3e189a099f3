// The host's side of the kernels: RunOnHost copies at the speed of the memory (the largest contiguous pieces,
// streaming stores), RunEmulated runs the very code that a device runs (kernels/paged_copy_body.h), (block,
// thread) by (block, thread).
//
// Threads: no state. Calls that write different bytes may run at the same time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "kernels/paged_copy_args.h"

namespace terrace {

// Share `part` of `parts` of the copy: of nearly equal bytes (to one token of one plane), disjoint, together
// everything. Ordered as a memcpy when it returns.
void RunOnHost(const PagedCopyArgs& args, uint32_t part = 0, uint32_t parts = 1);

// The contiguous pieces of a copy (those of negative blocks left out), neighbours merged, in the payload's
// order: what a copy engine is given.
void ForEachCopyPiece(const PagedCopyArgs& args, const std::function<void(const CopyPiece&)>& piece);

struct EmulatedGrid {
  uint32_t num_blocks = 4;
  uint32_t threads_per_block = 64;  // a multiple of 32
  uint64_t seed = 0;                // of the order in which (block, thread) run; 0 = ascending
};

// For tests and simulated devices.
void RunEmulated(const PagedCopyArgs& args, const EmulatedGrid& grid = {});

}  // namespace terrace
