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
// Groups of one model have views of their own, with blocks of their own. What a view must hold is its group's
// rule (KvSpec::groups): all tokens of a full group; of a window the last ones, of which earlier tokens lie
// before first_token or in negative blocks. In a state group the slot of token t is the state after t: what
// is stored of a chunk, and loaded, is the slot of its last token. One state that lies at slot s of an array,
// taken after token t: first_token = t, num_tokens = tokens_per_block = 1, block_table = {s}. One per chunk,
// of chunks of c tokens that begin at token f: first_token = f, tokens_per_block = c, one block per chunk,
// block_stride from state to state, base such that slot c - 1 is the state (base - (c - 1) * token_stride).
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

#include "terrace/bytes.h"
#include "terrace/device.h"
#include "terrace/export.h"
#include "terrace/kv_spec.h"
#include "terrace/object_id.h"
#include "terrace/status.h"

namespace terrace {

struct PlaneView {
  std::span<std::byte* const> layer_bases = {};  // one per layer of the entry; empty: base and layer_stride
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

  // Where the caller says that the memory lies, for Validate alone: what a base reaches with the blocks of
  // the table must lie in one of these, so that a block beyond the pages is refused and not read. Empty: it
  // is not checked.
  std::span<const MutableBytes> memory = {};

  // That the view describes the part of `spec` (a canonical one, itself valid). kInvalidArgument names the
  // field, its value and what is allowed:
  // - planes and sizes as in the spec, a block table that covers num_tokens;
  // - bases that are not null, and that reach no address beyond 63 bits or outside `memory`;
  // - bases, runs and strides in use that are multiples of the element of the plane's dtype (2 bytes of f16
  //   and bf16, 4 of f32; 1 of the rest: packed forms lie anywhere). No other alignment is asked for;
  // - in a destination, no block twice, and no byte that two tokens, heads, planes or layers share. Of one
  //   plane in one layer, strides must nest: each at least the bytes that the smaller ones span. Planes and
  //   layers may interleave in any way (K and V fused, cross-layer blocks). Refused too, though it may be
  //   free of overlaps: planes of different block strides that touch if all blocks between the first and the
  //   last one were used; and strides that differ so that telling takes too long.
  // What it cannot know: that memory was freed. The caller keeps it, see above.
  // Costs O(n log n) of the blocks and of planes times layers; copies nothing.
  TERRACE_API Status Validate(const KvSpec& spec, bool is_destination) const;
};

}  // namespace terrace
