// PagedCopyLaunch: a copy, or a part of one, in the fixed size that a kernel's parameters have; ForEachLaunch
// cuts copies of any size into such parts. What a launch does is kernels/paged_copy_body.h.
//
// A launch is cut into tiles, each of at most tile_bytes, that are copied independently of each other, in any
// order. A tile is a group of whole tokens of one plane in one engine block; where one token is longer than a
// tile, a part of it. Tiles are numbered plane by plane, block by block; planes that need fewer than others
// have empty ones:
//
//   index = (plane * num_blocks + block) * tiles_per_block + group * parts_per_token + part
//
// Threads: plain values and functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/paged_copy_args.h"
#include "terrace/device.h"
#include "terrace/status.h"

namespace terrace {

// A plane of the arguments, heads that are contiguous merged into one run.
struct LaunchPlane {
  std::byte* engine = nullptr;   // of block 0, slot 0, head 0
  std::byte* payload = nullptr;  // of the copy's first token
  int64_t block_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  uint32_t num_heads = 1;
  uint32_t run_bytes = 0;
  uint32_t tokens_per_tile = 1;
  uint32_t parts_per_token = 1;  // above 1 only where tokens_per_tile is 1
};

struct PagedCopyLaunch {
  static constexpr uint32_t kMaxPlanes = 128;
  static constexpr uint32_t kMaxBlocks = 1024;

  CopyDirection direction = CopyDirection::kToHost;
  uint8_t log2_lanes = 5;  // threads that work on one tile: at most a warp
  uint32_t num_planes = 0;
  uint32_t num_blocks = 0;
  uint32_t tokens_per_block = 1;
  uint32_t first_slot = 0;   // in the first block
  uint64_t first_token = 0;  // of the copy's
  uint32_t num_tokens = 0;
  uint32_t tile_bytes = 0;
  uint32_t tiles_per_block = 0;  // of the plane that needs the most
  uint32_t num_tiles = 0;        // below 2^31
  LaunchPlane planes[kMaxPlanes];
  int64_t blocks[kMaxBlocks];
};
// The parameters of a kernel end at 32,764 bytes (4,096 before CUDA 12.1).
static_assert(sizeof(PagedCopyLaunch) <= 16384);

// More threads than this find no work.
inline uint64_t UsefulThreads(const PagedCopyLaunch& launch) {
  return uint64_t{launch.num_tiles} << launch.log2_lanes;
}

// Calls `run` for the parts of a copy, which together copy each byte once; none where there is nothing to
// copy. Ends with the first error that `run` answers, and answers it. The launch is good during the call.
Status ForEachLaunch(const PagedCopyArgs& args, const std::function<Status(const PagedCopyLaunch&)>& run);

}  // namespace terrace
