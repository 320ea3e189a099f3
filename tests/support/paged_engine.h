// PagedEngine: the pages that an engine has of one part, in any of the engines' layouts, and what must be in
// them. The KV of a head of a token is a function of where it belongs in the whole model, so that a byte that
// comes from elsewhere shows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "terrace/paged_layouts.h"
#include "terrace/tokens.h"

namespace terrace {

enum class PageLayout {
  kFlashAttentionTokensFirst,
  kFlashAttentionHeadsFirst,
  kFlashInferTokensFirst,
  kFlashInferHeadsFirst,
  kCrossLayerTokensFirst,
  kCrossLayerHeadsFirst,
  kFused,
  kApart,
  kLatent,
};
inline constexpr PageLayout kKAndVLayouts[] = {
    PageLayout::kFlashAttentionTokensFirst,
    PageLayout::kFlashAttentionHeadsFirst,
    PageLayout::kFlashInferTokensFirst,
    PageLayout::kFlashInferHeadsFirst,
    PageLayout::kCrossLayerTokensFirst,
    PageLayout::kCrossLayerHeadsFirst,
    PageLayout::kFused,
    PageLayout::kApart,
};

class PagedEngine {
 public:
  static constexpr std::byte kUntouched{0xa5};

  // What is where, in the model that the part belongs to.
  struct Origin {
    uint32_t first_layer = 0;
    uint32_t first_head = 0;
  };

  // Pages for tokens [first_token, first_token + num_tokens) of a prompt, their blocks shuffled.
  PagedEngine(PageLayout layout, const PagedGeometry& geometry, Origin origin, uint64_t first_token,
              uint64_t num_tokens, uint64_t seed = 1)
      : geometry_(geometry), origin_(origin) {
    const uint64_t v_bytes = geometry.v_head_bytes == 0 ? geometry.head_bytes : geometry.v_head_bytes;
    const uint64_t rows = geometry.num_blocks * geometry.tokens_per_block * geometry.num_heads;
    uint64_t in_each = rows * (geometry.head_bytes + v_bytes);
    uint64_t tensors = geometry.num_layers;
    if (layout == PageLayout::kCrossLayerTokensFirst || layout == PageLayout::kCrossLayerHeadsFirst) {
      in_each *= std::exchange(tensors, 1);
    } else if (layout == PageLayout::kLatent) {
      in_each = rows * geometry.head_bytes;
    } else if (layout == PageLayout::kApart) {
      for (uint64_t i = 0; i < tensors; ++i) memory_.emplace_back(rows * geometry.head_bytes, kUntouched);
      in_each = rows * v_bytes;
    }
    for (uint64_t i = 0; i < tensors; ++i) memory_.emplace_back(in_each, kUntouched);
    std::vector<MutableBytes> all(memory_.begin(), memory_.end());
    Describe(layout, all, first_token, num_tokens, seed);
  }

  // The same in memory of the caller's, for layouts of one tensor.
  PagedEngine(PageLayout layout, const PagedGeometry& geometry, Origin origin, MutableBytes memory,
              std::vector<int64_t> table, uint64_t num_tokens)
      : geometry_(geometry), origin_(origin) {
    Describe(layout, {memory}, 0, num_tokens, 1);
    SetTable(std::move(table));
  }
  PagedEngine(const PagedEngine&) = delete;
  PagedEngine& operator=(const PagedEngine&) = delete;

  PagedKvView view(ObjectPart part = {}) const {
    PagedKvView view = view_;
    view.part = part;
    return view;
  }
  std::vector<int64_t> table() const { return table_; }
  void SetTable(std::vector<int64_t> table) {
    table_ = std::move(table);
    view_.block_table = table_;
  }

  // Puts what the model computes for these tokens where the view says, as far as it has them.
  void Compute(TokenRange tokens) {
    ForEachHead(tokens, [](std::byte* at, uint32_t bytes, uint64_t value) {
      for (uint32_t b = 0; b < bytes; ++b) at[b] = ByteOf(value, b);
    });
  }
  bool Holds(TokenRange tokens) const {
    bool holds = true;
    ForEachHead(tokens, [&](const std::byte* at, uint32_t bytes, uint64_t value) {
      for (uint32_t b = 0; b < bytes; ++b) holds &= at[b] == ByteOf(value, b);
    });
    return holds;
  }
  void Wipe() {
    for (auto& tensor : memory_) std::fill(tensor.begin(), tensor.end(), kUntouched);
  }
  // All bytes of the engine's own memory, also those that no token of the view has.
  bool IsSame(const PagedEngine& other) const { return memory_ == other.memory_; }

 private:
  void Describe(PageLayout layout, const std::vector<MutableBytes>& memory, uint64_t first_token,
                uint64_t num_tokens, uint64_t seed) {
    bounds_ = memory;
    planes_ = Planes(layout);
    view_.planes = planes_.planes();
    view_.memory = bounds_;
    view_.tokens_per_block = geometry_.tokens_per_block;
    view_.first_token = first_token;
    view_.num_tokens = num_tokens;
    std::vector<int64_t> table;
    const uint64_t used = (num_tokens + geometry_.tokens_per_block - 1) / geometry_.tokens_per_block;
    for (uint64_t b = 0; b < std::max<uint64_t>(used, std::min<uint64_t>(geometry_.num_blocks, 4096)); ++b)
      table.push_back(static_cast<int64_t>(b));
    std::mt19937_64 random(seed);
    std::shuffle(table.begin(), table.end(), random);
    table.resize(used);
    SetTable(std::move(table));
  }

  PagedPlanes Planes(PageLayout layout) const {
    const std::span<const MutableBytes> all = bounds_;
    switch (layout) {
      case PageLayout::kFlashAttentionTokensFirst:
        return *FlashAttentionPlanes(geometry_, all, HeadOrder::kTokensFirst);
      case PageLayout::kFlashAttentionHeadsFirst:
        return *FlashAttentionPlanes(geometry_, all, HeadOrder::kHeadsFirst);
      case PageLayout::kFlashInferTokensFirst:
        return *FlashInferPlanes(geometry_, all, HeadOrder::kTokensFirst);
      case PageLayout::kFlashInferHeadsFirst:
        return *FlashInferPlanes(geometry_, all, HeadOrder::kHeadsFirst);
      case PageLayout::kCrossLayerTokensFirst:
        return *CrossLayerPlanes(geometry_, all[0], HeadOrder::kTokensFirst);
      case PageLayout::kCrossLayerHeadsFirst:
        return *CrossLayerPlanes(geometry_, all[0], HeadOrder::kHeadsFirst);
      case PageLayout::kFused:
        return *FusedPlanes(geometry_, all);
      case PageLayout::kApart:
        return *KAndVApartPlanes(geometry_, all.first(geometry_.num_layers),
                                 all.subspan(geometry_.num_layers));
      case PageLayout::kLatent:
        return *LatentPlanes(geometry_, all);
    }
    return {};
  }

  static std::byte ByteOf(uint64_t value, uint32_t b) {
    return static_cast<std::byte>((value >> (b % 8 * 8)) + b / 8 * 31);
  }

  template <typename Visit>
  void ForEachHead(TokenRange tokens, const Visit& visit) const {
    const TokenRange held = {std::max(tokens.begin, view_.first_token),
                             std::min(tokens.end, view_.first_token + view_.num_tokens)};
    for (size_t p = 0; p < view_.planes.size(); ++p) {
      const PlaneView& plane = view_.planes[p];
      for (uint64_t token = held.begin; token < held.end; ++token) {
        const uint64_t i = token - view_.first_token;
        const int64_t block = table_[i / view_.tokens_per_block];
        if (block < 0) continue;
        const int64_t in_layer = block * plane.block_stride +
                                 static_cast<int64_t>(i % view_.tokens_per_block) * plane.token_stride;
        for (uint32_t l = 0; l < geometry_.num_layers; ++l) {
          std::byte* const base =
              plane.layer_bases.empty() ? plane.base + l * plane.layer_stride : plane.layer_bases[l];
          for (uint32_t h = 0; h < plane.num_heads; ++h) {
            uint64_t value =
                (((origin_.first_layer + l) * 4 + p) * 256 + origin_.first_head + h) << 32 | token;
            value = (value + 1) * 0x9e37'79b9'7f4a'7c15;
            visit(base + in_layer + h * plane.head_stride, plane.run_bytes, value ^ (value >> 29));
          }
        }
      }
    }
  }

  const PagedGeometry geometry_;
  const Origin origin_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<MutableBytes> bounds_;
  PagedPlanes planes_;
  std::vector<int64_t> table_;
  PagedKvView view_;
};

}  // namespace terrace
