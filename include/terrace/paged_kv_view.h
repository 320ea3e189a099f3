// PagedKvView: where an engine keeps the KV of one part (group, shard) of a sequence: pages ("blocks") that a
// block table names, described by explicit strides from the caller. No layout is named and no shape is
// guessed; every row of the engines' layouts is a filling of this one descriptor.
//
// The address of byte b of head h of token t (position in the prompt) of layer l (counted from the part's
// first layer; 0 where the entry describes one layer only) in plane p:
//
//   i     = t - first_token
//   block = block_table[i / tokens_per_block]            negative: not there; skipped
//   base  = plane.layer_bases[l]                         or plane.base + l * plane.layer_stride
//   addr  = base + block * plane.block_stride + (i % tokens_per_block) * plane.token_stride
//                + h * plane.head_stride + b             b in [0, plane.run_bytes), h in [0, plane.num_heads)
//
// A token's bytes in a canonical payload are its heads in order, run_bytes each: num_heads * run_bytes is
// what KvSpec::PlaneBytesPerToken says of the plane in this part. Strides are in bytes, may be negative, and
// are multiplied in 64 bits. Plain values; the spans and the memory behind them belong to the caller until
// the call that took the view says that it is done with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "terrace/device.h"
#include "terrace/export.h"
#include "terrace/kv_spec.h"
#include "terrace/object_id.h"
#include "terrace/status.h"

namespace terrace {

struct PlaneView {
  std::span<std::byte* const> layer_bases;  // one per layer of the entry; empty: base and layer_stride
  std::byte* base = nullptr;
  int64_t layer_stride = 0;
  int64_t block_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;  // unused with one head
  uint32_t num_heads = 1;
  uint32_t run_bytes = 0;  // contiguous bytes of one head of one token
};

struct PagedKvView {
  ObjectPart part;  // which group and shard the memory holds
  // One entry per plane of a layer, for all layers of the part. Or one entry per (layer, plane), layers in
  // order, each with its own base: needed where the part's layers differ in number or size of their planes.
  std::span<const PlaneView> planes;
  std::span<const int64_t> block_table;  // in the order of the sequence; negative entries are skipped
  uint32_t tokens_per_block = 0;
  uint64_t first_token = 0;  // of the first slot of block_table[0]
  uint64_t num_tokens = 0;   // valid slots from there on
  // Of the device whose memory this is, one that the manager was opened with: a store reads the pages behind
  // what the engine enqueued here before the call (its computing), a load writes them behind it (its last use
  // of the blocks). Null, or a stream of HostDevice: host memory, ready when the call is made.
  std::shared_ptr<Stream> stream;

  // That the view describes the part of `spec` (a canonical one, itself valid): planes, sizes, a block table
  // that covers num_tokens, no address beyond 63 bits. A destination also has no block twice and no stride
  // below run_bytes, so that its bytes are different ones. kInvalidArgument names the field, its value and
  // what is allowed.
  TERRACE_API Status Validate(const KvSpec& spec, bool is_destination) const;
};

}  // namespace terrace
