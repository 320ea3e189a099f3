// GatherLayers, ScatterLayers: host copies between an engine's pages (PagedKvView) and a canonical payload
// (PayloadLayout). Runs that are contiguous on both sides - heads of a token, tokens of a block, neighbouring
// blocks - are copied in one piece. Stores go around the cache (StreamCopy), with one fence per call.
//
// Threads: no state. Calls that write different bytes may run at the same time, on one view and payload too:
// other layers, other tokens.
#pragma once

#include <vector>

#include "kernels/paged_copy_args.h"
#include "lib/codec/payload_layout.h"
#include "terrace/bytes.h"
#include "terrace/paged_kv_view.h"
#include "terrace/status.h"
#include "terrace/tokens.h"

namespace terrace {

struct PagedCopy {
  const PayloadLayout& layout;
  const PagedKvView& view;    // validated, of the layout's part
  TokenRange payload_tokens;  // tokens of the prompt that the payload holds
};

// Layers [begin, end), counted from the part's first one.
struct LayerSpan {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// What a kernel is told of one copy: planes and the block table's part that `tokens` need, which the
// arguments point to.
struct KernelCopy {
  std::vector<PlaneArgs> planes;
  std::vector<int64_t> blocks;
  PagedCopyArgs args;
};

// The tokens of the prompt that the view has slots for.
TokenRange TokensOf(const PagedKvView& view);
// That the view (validated) holds all of `tokens`: within its slots, in blocks that are there.
// kInvalidArgument.
Status CheckHeld(const PagedKvView& view, TokenRange tokens);

// Of `tokens` (within payload_tokens and the view) of `layers`; `payload` is the address of the payload's
// first byte, of which only bytes of these layers and tokens are touched. kToHost: kInvalidArgument where one
// of the tokens is outside the view or in a negative block. kToDevice: tokens outside the view are left out.
Result<KernelCopy> MakeKernelCopy(const PagedCopy& copy, TokenRange tokens, LayerSpan layers,
                                  CopyDirection direction, std::byte* payload);

// View -> payload, for `tokens` (of the prompt, within payload_tokens) of `layers`. kInvalidArgument where
// one of the tokens is outside the view or in a negative block: nothing is copied then.
Status GatherLayers(const PagedCopy& copy, TokenRange tokens, LayerSpan layers, MutableBytes payload);

// Payload -> view. Tokens outside the view and in negative blocks are skipped.
void ScatterLayers(const PagedCopy& copy, TokenRange tokens, LayerSpan layers, Bytes payload);

}  // namespace terrace
