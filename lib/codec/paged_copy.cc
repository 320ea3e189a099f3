#include "lib/codec/paged_copy.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/host_launcher.h"
#include "lib/base/check.h"

namespace terrace {
namespace {

// Planes of the view are one per plane of a layer, or one per (layer, plane); see PagedKvView.
PlaneArgs PlaneArgsOf(const PagedCopy& copy, TokenRange tokens, uint32_t layer, uint32_t plane) {
  const std::span<const PlanePlace> places = copy.layout.planes(layer);
  const bool shared = copy.view.planes.size() == places.size();
  const auto before = static_cast<size_t>(places.data() - copy.layout.all_planes().data());
  const PlaneView& from = copy.view.planes[shared ? plane : before + plane];
  const uint32_t l = shared ? layer : 0;
  const TokenRange held = copy.payload_tokens;
  PlaneArgs args;
  args.base = from.layer_bases.empty() ? from.base + int64_t{l} * from.layer_stride : from.layer_bases[l];
  args.payload_offset = (held.end - held.begin) * places[plane].begin_per_token +
                        (tokens.begin - held.begin) * places[plane].bytes_per_token;
  args.block_stride = from.block_stride;
  args.token_stride = from.token_stride;
  args.head_stride = from.head_stride;
  args.num_heads = from.num_heads;
  args.run_bytes = from.run_bytes;
  return args;
}

void CheckCall(const PagedCopy& copy, TokenRange tokens, LayerSpan layers) {
  const TokenRange held = copy.payload_tokens;
  TERRACE_CHECK(held.begin <= tokens.begin && tokens.begin <= tokens.end && tokens.end <= held.end)
      << "[" << tokens.begin << ", " << tokens.end << ") of [" << held.begin << ", " << held.end << ")";
  TERRACE_CHECK(layers.begin <= layers.end && layers.end <= copy.layout.num_layers())
      << "[" << layers.begin << ", " << layers.end << ") of " << copy.layout.num_layers();
}

void CheckPayload(const PagedCopy& copy, size_t payload_bytes) {
  const uint64_t num_tokens = copy.payload_tokens.end - copy.payload_tokens.begin;
  TERRACE_CHECK(payload_bytes >= copy.layout.bytes_per_token() * num_tokens) << payload_bytes;
}

}  // namespace

TokenRange TokensOf(const PagedKvView& view) {
  return {view.first_token, view.first_token + view.num_tokens};
}

Status CheckHeld(const PagedKvView& view, TokenRange tokens) {
  const TokenRange held = TokensOf(view);
  if (tokens.begin < held.begin || tokens.end > held.end) {
    return InvalidArgumentError("tokens [" + std::to_string(tokens.begin) + ", " +
                                std::to_string(tokens.end) + ") of a view that holds [" +
                                std::to_string(held.begin) + ", " + std::to_string(held.end) + ")");
  }
  for (uint64_t token = tokens.begin; token < tokens.end;) {
    const uint64_t slot = token - view.first_token;
    const int64_t block = view.block_table[slot / view.tokens_per_block];
    if (block < 0) {
      return InvalidArgumentError("token " + std::to_string(token) + " is in block " + std::to_string(block) +
                                  " of the view; allowed for a source: 0 and above");
    }
    token += view.tokens_per_block - slot % view.tokens_per_block;
  }
  return OkStatus();
}

Result<KernelCopy> MakeKernelCopy(const PagedCopy& copy, TokenRange tokens, LayerSpan layers,
                                  CopyDirection direction, std::byte* payload) {
  CheckCall(copy, tokens, layers);
  const PagedKvView& view = copy.view;
  if (direction == CopyDirection::kToHost && tokens.begin < tokens.end) {
    if (Status status = CheckHeld(view, tokens); !status.ok()) return status;
  }
  const TokenRange held = TokensOf(view);
  const TokenRange both = {std::max(tokens.begin, held.begin), std::min(tokens.end, held.end)};
  KernelCopy kernel;
  kernel.args.direction = direction;
  kernel.args.payload = payload;
  kernel.args.tokens_per_block = view.tokens_per_block;
  if (both.begin >= both.end) return kernel;
  const uint64_t slot = both.begin - view.first_token;
  const uint64_t first_block = slot / view.tokens_per_block;
  const uint64_t end_block = (both.end - view.first_token - 1) / view.tokens_per_block + 1;
  const auto blocks = view.block_table.subspan(first_block, end_block - first_block);
  kernel.blocks.assign(blocks.begin(), blocks.end());
  for (uint32_t layer = layers.begin; layer < layers.end; ++layer) {
    for (uint32_t plane = 0; plane < copy.layout.planes(layer).size(); ++plane) {
      kernel.planes.push_back(PlaneArgsOf(copy, both, layer, plane));
    }
  }
  kernel.args.planes = kernel.planes.data();
  kernel.args.num_planes = static_cast<uint32_t>(kernel.planes.size());
  kernel.args.blocks = kernel.blocks.data();
  kernel.args.first_slot = slot % view.tokens_per_block;
  kernel.args.num_tokens = both.end - both.begin;
  return kernel;
}

Status GatherLayers(const PagedCopy& copy, TokenRange tokens, LayerSpan layers, MutableBytes payload) {
  CheckPayload(copy, payload.size());
  const Result<KernelCopy> kernel =
      MakeKernelCopy(copy, tokens, layers, CopyDirection::kToHost, payload.data());
  if (!kernel.ok()) return kernel.status();
  RunOnHost(kernel->args);
  return OkStatus();
}

void ScatterLayers(const PagedCopy& copy, TokenRange tokens, LayerSpan layers, Bytes payload) {
  CheckPayload(copy, payload.size());
  // Not written in this direction.
  auto* const bytes = const_cast<std::byte*>(payload.data());
  const Result<KernelCopy> kernel = MakeKernelCopy(copy, tokens, layers, CopyDirection::kToDevice, bytes);
  TERRACE_CHECK(kernel.ok()) << kernel.status().ToString();
  RunOnHost(kernel->args);
}

}  // namespace terrace
