#include "benchmarks/engine_pages.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "lib/base/check.h"

namespace terrace::bench {
namespace {

constexpr uint64_t kHeadBytes = 256;
constexpr uint64_t kLayerBytes = 1 << 20;  // of a chunk

KvSpec MakeSpec(uint32_t heads, uint32_t num_layers, uint64_t tokens_per_chunk) {
  PlaneSpec k{.kind = PlaneKind::kK,
              .dtype = DType::kBF16,
              .heads = heads,
              .head_dim = kHeadBytes / 2,
              .bytes_per_token = static_cast<uint32_t>(heads * kHeadBytes)};
  PlaneSpec v = k;
  v.kind = PlaneKind::kV;
  KvSpec spec;
  spec.model_id = "copies";
  spec.payload_form = PayloadForm::kCanonical;
  spec.tokens_per_chunk = static_cast<uint32_t>(tokens_per_chunk);
  spec.layers.assign(num_layers, {0, {k, v}});
  TERRACE_CHECK(spec.Validate().ok()) << spec.Validate().ToString();
  return spec;
}

}  // namespace

const char* EngineLayoutName(EngineLayout layout) {
  switch (layout) {
    case EngineLayout::kVllmFlashAttention:
      return "vllm_flash_attention";
    case EngineLayout::kVllmCrossLayer:
      return "vllm_cross_layer";
    case EngineLayout::kSglangMha:
      return "sglang_mha";
    case EngineLayout::kTrtllmCrossLayer:
      return "trtllm_cross_layer";
  }
  return "?";
}

Result<EngineShape> ShapeOfPieces(EngineLayout layout, uint64_t piece_bytes) {
  EngineShape shape{.layout = layout, .piece_bytes = piece_bytes};
  if (layout == EngineLayout::kTrtllmCrossLayer) {
    if (piece_bytes == kHeadBytes) return shape;
    shape.heads = 1;
  }
  const uint64_t token_bytes = shape.heads * kHeadBytes;
  const uint64_t tokens = piece_bytes / token_bytes;
  if (piece_bytes % token_bytes != 0 || tokens == 0 || kLayerBytes / 2 % piece_bytes != 0) {
    return InvalidArgumentError("pieces of " + std::to_string(piece_bytes) + " bytes in " +
                                EngineLayoutName(layout) + ": allowed are powers of two from " +
                                std::to_string(token_bytes) + " to " + std::to_string(kLayerBytes / 2));
  }
  shape.tokens_per_block = static_cast<uint32_t>(tokens);
  return shape;
}

EnginePages::EnginePages(const EngineShape& shape, uint64_t memory_bytes, uint64_t chunk_bytes)
    : shape_(shape),
      num_layers_(static_cast<uint32_t>(chunk_bytes / kLayerBytes)),
      tokens_per_chunk_(kLayerBytes / 2 / (shape.heads * kHeadBytes)),
      num_chunks_(memory_bytes / chunk_bytes),
      block_table_(num_chunks_ * tokens_per_chunk_ / shape.tokens_per_block),
      spec_(MakeSpec(shape.heads, num_layers_, tokens_per_chunk_)),
      payload_layout_(spec_, {}) {
  TERRACE_CHECK(chunk_bytes % kLayerBytes == 0 && num_layers_ > 0) << chunk_bytes;
  std::iota(block_table_.begin(), block_table_.end(), 0);
  std::shuffle(block_table_.begin(), block_table_.end(), std::mt19937_64(1));
}

PagedKvView EnginePages::ViewOf(std::byte* memory, std::vector<PlaneView>& planes) const {
  const auto num_blocks = static_cast<int64_t>(block_table_.size());
  const int64_t head_bytes = kHeadBytes;
  const int64_t token_bytes = shape_.heads * head_bytes;
  const int64_t plane_bytes = shape_.tokens_per_block * token_bytes;  // of a block: K, or V, of one layer
  PlaneView k = {.base = memory,
                 .token_stride = token_bytes,
                 .head_stride = head_bytes,
                 .num_heads = shape_.heads,
                 .run_bytes = kHeadBytes};
  int64_t to_v = 0;
  switch (shape_.layout) {
    case EngineLayout::kVllmFlashAttention:
      k.layer_stride = 2 * num_blocks * plane_bytes;
      k.block_stride = plane_bytes;
      to_v = num_blocks * plane_bytes;
      break;
    case EngineLayout::kSglangMha:
      k.layer_stride = num_blocks * plane_bytes;
      k.block_stride = plane_bytes;
      to_v = num_layers_ * num_blocks * plane_bytes;
      break;
    case EngineLayout::kTrtllmCrossLayer:
      k.token_stride = head_bytes;
      k.head_stride = shape_.tokens_per_block * head_bytes;
      [[fallthrough]];
    case EngineLayout::kVllmCrossLayer:
      k.layer_stride = 2 * plane_bytes;
      k.block_stride = num_layers_ * 2 * plane_bytes;
      to_v = plane_bytes;
      break;
  }
  PlaneView v = k;
  v.base += to_v;
  planes = {k, v};
  PagedKvView view;
  view.planes = planes;
  view.block_table = block_table_;
  view.tokens_per_block = shape_.tokens_per_block;
  view.num_tokens = num_chunks_ * tokens_per_chunk_;
  return view;
}

}  // namespace terrace::bench
