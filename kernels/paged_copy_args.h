// PagedCopyArgs: what one gather or scatter does, as plain numbers that a kernel takes: the engine's pages on
// one side, a payload on the other. Made from a view and a layout (lib/codec/paged_copy.h); names no engine
// and no layout.
//
//   token i of the copy, i in [0, num_tokens):
//     slot   = first_slot + i
//     block  = blocks[slot / tokens_per_block]                        negative: skipped
//     engine = plane.base + block * plane.block_stride + (slot % tokens_per_block) * plane.token_stride
//                         + head * plane.head_stride + byte           byte in [0, run_bytes)
//     payload = args.payload + plane.payload_offset + i * num_heads * run_bytes + head * run_bytes + byte
//
// All offsets are 64-bit. Plain pointers into memory of the caller's, who keeps it until the copy is done
// (host) or enqueued (the two arrays, on a device).
#pragma once

#include <cstddef>
#include <cstdint>

#include "terrace/device.h"

namespace terrace {

// One plane of one layer.
struct PlaneArgs {
  std::byte* base = nullptr;  // in engine memory, of block 0, slot 0, head 0
  uint64_t payload_offset = 0;
  int64_t block_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  uint32_t num_heads = 1;
  uint32_t run_bytes = 0;
};

struct PagedCopyArgs {
  CopyDirection direction = CopyDirection::kToHost;  // kToHost: gather into the payload
  std::byte* payload = nullptr;                      // read only, where the direction is kToDevice
  const PlaneArgs* planes = nullptr;
  uint32_t num_planes = 0;
  uint32_t tokens_per_block = 1;
  const int64_t* blocks = nullptr;  // for slots [0, first_slot + num_tokens)
  uint64_t first_slot = 0;
  uint64_t num_tokens = 0;
};

// Bytes that the copy moves, those of negative blocks included.
inline uint64_t PagedCopyBytes(const PagedCopyArgs& args) {
  uint64_t bytes = 0;
  for (uint32_t p = 0; p < args.num_planes; ++p) {
    bytes += uint64_t{args.planes[p].num_heads} * args.planes[p].run_bytes * args.num_tokens;
  }
  return bytes;
}

}  // namespace terrace
