#include "pages.h"

namespace paged_engine {
namespace {

constexpr int kNan = 0xff;  // every byte of a bf16

}  // namespace

using terrace::PagedKvView;
using terrace::PlaneView;

// [readme:begin]
// Two layouts as two fillings of one description: base addresses and strides, K first, then V.
KvPages::KvPages(const ModelShape& shape, PageLayout layout, uint32_t num_blocks, Compute& compute)
    : shape_(shape), layout_(layout), compute_(compute), used_(num_blocks) {
  constexpr int64_t kHeadBytes = kHeadDim * sizeof(uint16_t);
  const int64_t token_bytes = shape.kv_heads * kHeadBytes;
  const int64_t plane_bytes = kTokensPerBlock * token_bytes;  // K, or V, of a block of one layer
  PlaneView plane = {.num_heads = shape.kv_heads, .run_bytes = kHeadBytes};
  if (layout == PageLayout::kPerLayer) {
    block_bytes_ = plane_bytes;
    for (uint32_t i = 0; i < shape.layers; ++i) {
      k_bases_.push_back(AddRegion());
      v_bases_.push_back(AddRegion());
    }
    plane.block_stride = plane_bytes;
    plane.token_stride = token_bytes;
    plane.head_stride = kHeadBytes;
    plane.layer_bases = k_bases_;
    planes_.push_back(plane);
    plane.layer_bases = v_bases_;
    planes_.push_back(plane);
  } else {
    block_bytes_ = shape.layers * 2 * plane_bytes;
    plane.base = AddRegion();
    plane.layer_stride = 2 * plane_bytes;
    plane.block_stride = shape.layers * 2 * plane_bytes;
    plane.head_stride = kTokensPerBlock * kHeadBytes;
    plane.token_stride = kHeadBytes;
    planes_.push_back(plane);
    plane.base += plane_bytes;
    planes_.push_back(plane);
  }
}

PagedKvView KvPages::ViewOf(const Sequence& sequence) const {
  PagedKvView view;
  view.planes = planes_;
  view.block_table = sequence.blocks;
  view.tokens_per_block = kTokensPerBlock;
  view.num_tokens = sequence.tokens.size();
  view.stream = compute_.stream();
  return view;
}
// [readme:end]

std::byte* KvPages::AddRegion() {
  regions_.push_back(compute_.Allocate(used_.size() * block_bytes_));
  compute_.Fill(regions_.back().get(), kNan, used_.size() * block_bytes_);
  return regions_.back().get();
}

LayerPages KvPages::Layer(uint32_t layer, const int64_t* blocks) const {
  const auto base = [&](const PlaneView& plane) {
    return plane.layer_bases.empty() ? plane.base + layer * plane.layer_stride : plane.layer_bases[layer];
  };
  return {base(planes_[0]),       base(planes_[1]), planes_[0].block_stride, planes_[0].token_stride,
          planes_[0].head_stride, blocks,           kTokensPerBlock};
}

bool KvPages::Reserve(Sequence& sequence, uint64_t tokens, bool descending) {
  const uint64_t wanted = (sequence.tokens.size() + tokens + kTokensPerBlock - 1) / kTokensPerBlock;
  const auto num_blocks = static_cast<int64_t>(used_.size());
  for (int64_t i = 0; i < num_blocks && sequence.blocks.size() < wanted; ++i) {
    const int64_t block = descending ? num_blocks - 1 - i : i;
    if (used_[block]) continue;
    used_[block] = true;
    sequence.blocks.push_back(block);
  }
  return sequence.blocks.size() >= wanted;
}

void KvPages::Free(Sequence& sequence) {
  for (const int64_t block : sequence.blocks) {
    for (const auto& region : regions_)
      compute_.Fill(region.get() + block * block_bytes_, kNan, block_bytes_);
    used_[block] = false;
  }
  sequence.blocks.clear();
}

}  // namespace paged_engine
