// The fillings of PagedKvView against places counted by hand: small tensors whose bytes are numbered, and
// what each layout must read out of them.
#include "terrace/paged_layouts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "terrace/kv_spec.h"

namespace terrace {
namespace {

// An engine's memory of which the bytes are never touched: one range per tensor, far apart.
MutableBytes Tensor(int number, size_t bytes) {
  return {reinterpret_cast<std::byte*>((uintptr_t{1} << 40) + static_cast<uintptr_t>(number) * 0x1'0000),
          bytes};
}
std::vector<MutableBytes> Tensors(int first, int n, size_t bytes) {
  std::vector<MutableBytes> tensors;
  for (int i = 0; i < n; ++i) tensors.push_back(Tensor(first + i, bytes));
  return tensors;
}

// Where byte 0 of a head lies.
struct Index {
  size_t plane;
  size_t layer;
  int64_t block, token, head;
};
struct Place {
  int tensor;
  int64_t offset;
  friend bool operator==(const Place&, const Place&) = default;
  friend void PrintTo(const Place& place, std::ostream* out) { *out << place.tensor << "+" << place.offset; }
};

Place PlaceOf(const PagedPlanes& planes, const Index& i) {
  const PlaneView& plane = planes.planes()[i.plane];
  std::byte* base = plane.layer_bases.empty()
                        ? plane.base + static_cast<int64_t>(i.layer) * plane.layer_stride
                        : plane.layer_bases[i.layer];
  base += i.block * plane.block_stride + i.token * plane.token_stride + i.head * plane.head_stride;
  const uintptr_t offset = reinterpret_cast<uintptr_t>(base) - (uintptr_t{1} << 40);
  return {static_cast<int>(offset / 0x1'0000), static_cast<int64_t>(offset % 0x1'0000)};
}

// Two layers, five blocks of three tokens, two KV heads (the count that shapes mistake for K and V), heads of
// 8 bytes: a token's K is 16 bytes, a block's 48.
constexpr PagedGeometry kTwoHeads{.num_layers = 2,
                                  .num_blocks = 5,
                                  .tokens_per_block = 3,
                                  .num_heads = 2,
                                  .head_bytes = 8,
                                  .v_head_bytes = 0,
                                  .element_bytes = 2};

KvSpec SpecOf(const PagedGeometry& g, bool has_v, bool has_scales = false) {
  KvSpec spec;
  spec.model_id = "m";
  spec.payload_form = PayloadForm::kCanonical;
  const uint32_t v = g.v_head_bytes == 0 ? g.head_bytes : g.v_head_bytes;
  const DType dtype = g.element_bytes == 2 ? DType::kBF16 : DType::kF8E4M3;
  LayerSpec layer;
  layer.planes.push_back({has_v ? PlaneKind::kK : PlaneKind::kLatent, dtype, g.num_heads,
                          g.head_bytes / g.element_bytes, g.num_heads * g.head_bytes});
  if (has_v)
    layer.planes.push_back({PlaneKind::kV, dtype, g.num_heads, v / g.element_bytes, g.num_heads * v});
  for (const PlaneKind kind : {PlaneKind::kKScale, PlaneKind::kVScale}) {
    if (has_scales) layer.planes.push_back({kind, DType::kF32, g.num_heads, 1, g.num_heads * 4});
  }
  spec.layers.assign(g.num_layers, layer);
  EXPECT_TRUE(spec.Validate().ok());
  return spec;
}

// Each place as counted; and the whole of it is a destination within its memory, and not one byte further.
struct Expected {
  Index index;
  Place place;
};
void Check(Result<PagedPlanes> made, const PagedGeometry& g, const KvSpec& spec,
           std::vector<MutableBytes> memory, const std::vector<Expected>& expected) {
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const PagedPlanes planes = *std::move(made);  // moved: the spans stay good
  for (const Expected& e : expected) {
    EXPECT_EQ(PlaceOf(planes, e.index), e.place)
        << "plane " << e.index.plane << " layer " << e.index.layer << " block " << e.index.block << " token "
        << e.index.token << " head " << e.index.head;
  }
  // Each byte of the tensors is named once.
  std::set<std::pair<int, int64_t>> named;
  uint64_t num_named = 0, num_bytes = 0;
  for (const MutableBytes tensor : memory) num_bytes += tensor.size();
  for (size_t plane = 0; plane < planes.planes().size(); ++plane) {
    for (size_t at = 0; at < size_t{g.num_layers} * g.num_blocks * g.tokens_per_block; ++at) {
      const auto slot = static_cast<int64_t>(at % (g.num_blocks * g.tokens_per_block));
      for (int64_t head = 0; head < planes.planes()[plane].num_heads; ++head) {
        Place place = PlaceOf(planes, {plane, at / (g.num_blocks * g.tokens_per_block),
                                       slot / g.tokens_per_block, slot % g.tokens_per_block, head});
        for (uint32_t b = 0; b < planes.planes()[plane].run_bytes; ++b, ++place.offset, ++num_named)
          named.emplace(place.tensor, place.offset);
      }
    }
  }
  EXPECT_EQ(named.size(), num_named);
  EXPECT_EQ(num_named, num_bytes);
  std::vector<int64_t> table;
  for (auto b = static_cast<int64_t>(g.num_blocks); b-- > 0;) table.push_back(b);
  PagedKvView view{.part = {},
                   .planes = planes.planes(),
                   .block_table = table,
                   .tokens_per_block = g.tokens_per_block,
                   .first_token = 0,
                   .num_tokens = g.num_blocks * g.tokens_per_block,
                   .stream = nullptr,
                   .memory = memory};
  EXPECT_TRUE(view.Validate(spec, true).ok()) << view.Validate(spec, true).ToString();
  for (size_t i = 0; i < memory.size(); ++i) {
    std::vector<MutableBytes> less = memory;
    less[i] = less[i].first(less[i].size() - 1);
    view.memory = less;
    EXPECT_EQ(view.Validate(spec, true).code(), StatusCode::kInvalidArgument) << "memory " << i;
  }
}

TEST(PagedLayoutsTest, VllmFlashAttention) {
  const std::vector<MutableBytes> layers = Tensors(0, 2, 480);  // [2][5][3][2][8]
  Check(FlashAttentionPlanes(kTwoHeads, layers, HeadOrder::kTokensFirst), kTwoHeads, SpecOf(kTwoHeads, true),
        layers,
        {{{0, 0, 0, 0, 0}, {0, 0}},
         {{0, 0, 0, 0, 1}, {0, 8}},
         {{0, 0, 0, 1, 0}, {0, 16}},
         {{0, 0, 1, 0, 0}, {0, 48}},
         {{1, 0, 0, 0, 0}, {0, 240}},
         {{1, 1, 4, 2, 1}, {1, 472}},
         {{0, 1, 3, 1, 1}, {1, 168}}});
  Check(FlashAttentionPlanes(kTwoHeads, layers, HeadOrder::kHeadsFirst), kTwoHeads, SpecOf(kTwoHeads, true),
        layers,
        {{{0, 0, 0, 0, 1}, {0, 24}},
         {{0, 0, 0, 1, 0}, {0, 8}},
         {{0, 0, 1, 0, 0}, {0, 48}},
         {{1, 0, 0, 0, 0}, {0, 240}},
         {{1, 1, 4, 2, 1}, {1, 472}},
         {{0, 1, 3, 1, 1}, {1, 176}}});
}

TEST(PagedLayoutsTest, VllmFlashInfer) {
  const std::vector<MutableBytes> layers = Tensors(3, 2, 480);  // [5][2][3][2][8]
  Check(FlashInferPlanes(kTwoHeads, layers, HeadOrder::kTokensFirst), kTwoHeads, SpecOf(kTwoHeads, true),
        layers,
        {{{0, 0, 0, 0, 1}, {3, 8}},
         {{0, 0, 0, 1, 0}, {3, 16}},
         {{1, 0, 0, 0, 0}, {3, 48}},
         {{0, 0, 1, 0, 0}, {3, 96}},
         {{1, 1, 4, 2, 1}, {4, 472}},
         {{0, 1, 3, 1, 1}, {4, 312}}});
  Check(FlashInferPlanes(kTwoHeads, layers, HeadOrder::kHeadsFirst), kTwoHeads, SpecOf(kTwoHeads, true),
        layers,
        {{{0, 0, 0, 0, 1}, {3, 24}},
         {{0, 0, 0, 1, 0}, {3, 8}},
         {{1, 0, 0, 0, 0}, {3, 48}},
         {{0, 0, 1, 0, 0}, {3, 96}},
         {{1, 1, 3, 1, 1}, {4, 368}}});
}

TEST(PagedLayoutsTest, VllmCrossLayerAndTensorRtLlm) {
  const MutableBytes memory = Tensor(0, 960);  // [5][2 layers][2][3][2][8]
  Check(CrossLayerPlanes(kTwoHeads, memory, HeadOrder::kTokensFirst), kTwoHeads, SpecOf(kTwoHeads, true),
        {memory},
        {{{0, 0, 0, 0, 1}, {0, 8}},
         {{0, 0, 0, 1, 0}, {0, 16}},
         {{1, 0, 0, 0, 0}, {0, 48}},
         {{0, 1, 0, 0, 0}, {0, 96}},
         {{0, 0, 1, 0, 0}, {0, 192}},
         {{1, 1, 4, 2, 1}, {0, 952}},
         {{0, 1, 3, 1, 1}, {0, 696}}});
  Check(CrossLayerPlanes(kTwoHeads, memory, HeadOrder::kHeadsFirst), kTwoHeads, SpecOf(kTwoHeads, true),
        {memory},
        {{{0, 0, 0, 0, 1}, {0, 24}},
         {{0, 0, 0, 1, 0}, {0, 8}},
         {{1, 0, 0, 0, 0}, {0, 48}},
         {{0, 1, 0, 0, 0}, {0, 96}},
         {{0, 0, 1, 0, 0}, {0, 192}},
         {{0, 1, 3, 1, 1}, {0, 704}}});
}

TEST(PagedLayoutsTest, VllmFusedKAndV) {
  const std::vector<MutableBytes> layers = Tensors(0, 2, 480);  // [5][2 heads][3][8 + 8]
  Check(FusedPlanes(kTwoHeads, layers), kTwoHeads, SpecOf(kTwoHeads, true), layers,
        {{{1, 0, 0, 0, 0}, {0, 8}},
         {{0, 0, 0, 1, 0}, {0, 16}},
         {{0, 0, 0, 0, 1}, {0, 48}},
         {{0, 0, 1, 0, 0}, {0, 96}},
         {{1, 1, 4, 2, 1}, {1, 472}},
         {{0, 1, 3, 1, 1}, {1, 352}}});
  PagedGeometry own = kTwoHeads;  // [5][2 heads][3][8 + 4]
  own.v_head_bytes = 4;
  const std::vector<MutableBytes> smaller = Tensors(0, 2, 360);
  Check(FusedPlanes(own, smaller), own, SpecOf(own, true), smaller,
        {{{1, 0, 0, 0, 0}, {0, 8}},
         {{0, 0, 0, 1, 0}, {0, 12}},
         {{0, 0, 0, 0, 1}, {0, 36}},
         {{0, 0, 1, 0, 0}, {0, 72}},
         {{1, 1, 4, 2, 1}, {1, 356}}});
}

TEST(PagedLayoutsTest, SglangMha) {
  std::vector<MutableBytes> k = Tensors(0, 2, 240), v = Tensors(2, 2, 120);  // [5 * 3][2][8], [5 * 3][2][4]
  PagedGeometry own = kTwoHeads;
  own.v_head_bytes = 4;
  std::vector<MutableBytes> all = k;
  all.insert(all.end(), v.begin(), v.end());
  Check(KAndVApartPlanes(own, k, v), own, SpecOf(own, true), all,
        {{{0, 0, 0, 0, 1}, {0, 8}},
         {{0, 0, 0, 1, 0}, {0, 16}},
         {{0, 1, 1, 0, 0}, {1, 48}},
         {{0, 1, 4, 2, 1}, {1, 232}},
         {{1, 0, 0, 0, 1}, {2, 4}},
         {{1, 0, 0, 1, 0}, {2, 8}},
         {{1, 1, 1, 0, 0}, {3, 24}},
         {{1, 1, 4, 2, 1}, {3, 116}}});
  // Pages of one token: a block is a slot.
  PagedGeometry slots = kTwoHeads;
  slots.num_blocks = 15;
  slots.tokens_per_block = 1;
  v = Tensors(2, 2, 240);
  all = k;
  all.insert(all.end(), v.begin(), v.end());
  Check(KAndVApartPlanes(slots, k, v), slots, SpecOf(slots, true), all,
        {{{0, 0, 14, 0, 1}, {0, 232}}, {{1, 1, 7, 0, 0}, {3, 112}}});
}

TEST(PagedLayoutsTest, MlaOfVllmAndSglang) {
  PagedGeometry latent = kTwoHeads;
  latent.num_heads = 1;
  latent.head_bytes = 1152;
  const std::vector<MutableBytes> layers = Tensors(0, 2, 17'280);  // [5][3][1152]
  Check(LatentPlanes(latent, layers), latent, SpecOf(latent, false), layers,
        {{{0, 0, 0, 1, 0}, {0, 1152}},
         {{0, 0, 1, 0, 0}, {0, 3456}},
         {{0, 1, 4, 2, 0}, {1, 16'128}},
         {{0, 1, 3, 1, 0}, {1, 11'520}}});
  latent.num_heads = 2;
  EXPECT_NE(LatentPlanes(latent, layers).status().message().find("num_heads"), std::string::npos);
  latent.num_heads = 1;
  latent.v_head_bytes = 1152;
  EXPECT_NE(LatentPlanes(latent, layers).status().message().find("v_head_bytes"), std::string::npos);
}

// fp8 K and V in one tensor, their f32 scales (one per token and head) in another: [2][5][3][2][4] bytes.
TEST(PagedLayoutsTest, Fp8WithScales) {
  PagedGeometry fp8 = kTwoHeads;
  fp8.element_bytes = 1;
  fp8.head_bytes = 7;
  PagedGeometry scale = fp8;
  scale.element_bytes = 4;
  scale.head_bytes = 4;
  const std::vector<MutableBytes> values = Tensors(0, 2, 420), scales = Tensors(2, 2, 240);
  Result<PagedPlanes> planes = FlashInferPlanes(fp8, values, HeadOrder::kTokensFirst);
  ASSERT_TRUE(planes.ok());
  Result<PagedPlanes> more = FlashAttentionPlanes(scale, scales, HeadOrder::kTokensFirst);
  ASSERT_TRUE(more.ok()) << more.status().ToString();
  planes->Append(*std::move(more));
  std::vector<MutableBytes> all = values;
  all.insert(all.end(), scales.begin(), scales.end());
  const KvSpec spec = SpecOf(fp8, true, true);
  Check(std::move(planes), fp8, spec, all,
        {{{0, 0, 1, 0, 0}, {0, 84}},
         {{1, 1, 4, 2, 1}, {1, 413}},
         {{2, 0, 0, 0, 1}, {2, 4}},
         {{2, 0, 1, 1, 0}, {2, 32}},
         {{3, 0, 0, 0, 0}, {2, 120}},
         {{3, 1, 4, 2, 1}, {3, 236}}});
  // Scales that lie off their elements' places are no scales.
  std::vector<MutableBytes> odd = Tensors(2, 2, 244);
  for (MutableBytes& memory : odd) memory = memory.subspan(1);
  EXPECT_NE(
      FlashAttentionPlanes(scale, odd, HeadOrder::kTokensFirst).status().message().find("element_bytes"),
      std::string::npos);
}

TEST(PagedPlanesTest, ViewsOutliveMovesOfTheirOwner) {
  const std::vector<MutableBytes> layers = Tensors(0, 2, 480);
  PagedPlanes first = *FlashInferPlanes(kTwoHeads, layers, HeadOrder::kTokensFirst);
  const std::span<const PlaneView> planes = first.planes();
  std::vector<PagedPlanes> kept;
  kept.push_back(std::move(first));
  kept.reserve(100);
  EXPECT_EQ(planes.data(), kept[0].planes().data());
  EXPECT_EQ(planes[1].layer_bases[1], layers[1].data() + 48);
  // A plane that was made elsewhere is taken with its bases.
  PagedPlanes copy;
  {
    std::vector<std::byte*> bases = {layers[0].data(), layers[1].data()};
    copy.Add({.layer_bases = bases, .run_bytes = 8});
    bases.assign(2, nullptr);
  }
  EXPECT_EQ(copy.planes()[0].layer_bases[1], layers[1].data());
}

TEST(PagedLayoutsTest, WhatIsGivenIsChecked) {
  const std::vector<MutableBytes> good = Tensors(0, 2, 480);
  const auto refusal = [&](const PagedGeometry& g, std::vector<MutableBytes> layers) {
    const Result<PagedPlanes> attention = FlashAttentionPlanes(g, layers, HeadOrder::kTokensFirst);
    const Result<PagedPlanes> infer = FlashInferPlanes(g, layers, HeadOrder::kHeadsFirst);
    EXPECT_EQ(attention.status().code(), infer.status().code());
    EXPECT_EQ(attention.status().message(), infer.status().message());
    EXPECT_EQ(attention.status().code(), StatusCode::kInvalidArgument);
    return std::string(attention.status().message());
  };
  const auto with = [&](auto&& change) {
    PagedGeometry g = kTwoHeads;
    change(g);
    return refusal(g, good);
  };
  const auto names = [](const std::string& text, std::string_view what) {
    EXPECT_NE(text.find(what), std::string::npos) << text;
  };
  names(with([](PagedGeometry& g) { g.num_layers = 0; }), "num_layers");
  names(with([](PagedGeometry& g) { g.num_layers = 3; }), "layers has 2 entries");
  names(with([](PagedGeometry& g) { g.num_blocks = 0; }), "num_blocks");
  names(with([](PagedGeometry& g) { g.num_blocks = 6; }), "layers[0] has 480 bytes");
  names(with([](PagedGeometry& g) { g.tokens_per_block = 0; }), "tokens_per_block");
  names(with([](PagedGeometry& g) { g.num_heads = 0; }), "num_heads");
  names(with([](PagedGeometry& g) { g.head_bytes = 0; }), "head_bytes");
  names(with([](PagedGeometry& g) { g.head_bytes = 7; }), "head_bytes");
  names(with([](PagedGeometry& g) { g.v_head_bytes = 4; }), "v_head_bytes");
  names(with([](PagedGeometry& g) { g.element_bytes = 3; }), "element_bytes");
  names(with([](PagedGeometry& g) { g.num_blocks = uint64_t{1} << 62; }), "2^63");
  names(with([](PagedGeometry& g) {
          g.num_heads = g.tokens_per_block = 1u << 31;
          g.head_bytes = 4;
        }),
        "2^63");
  names(refusal(kTwoHeads, {good[0], {}}), "layers[1] is null");
  names(refusal(kTwoHeads, {good[0], {static_cast<std::byte*>(nullptr), 480}}), "layers[1] is null");
  names(refusal(kTwoHeads, {good[0], good[1].first(479)}), "layers[1] has 479 bytes");
  names(refusal(kTwoHeads, {good[0], Tensor(1, 481).subspan(1)}), "element_bytes");
  names(refusal(kTwoHeads, {good[0], good[0]}), "overlaps");
  names(refusal(kTwoHeads, {good[1], Tensor(1, 1000).subspan(478)}), "overlaps");
  EXPECT_TRUE(FlashAttentionPlanes(kTwoHeads, std::vector{good[1], Tensor(1, 1000).subspan(480)},
                                   HeadOrder::kTokensFirst)
                  .ok());
  names(std::string(FlashAttentionPlanes(kTwoHeads, good, HeadOrder{3}).status().message()), "HeadOrder");
  names(std::string(CrossLayerPlanes(kTwoHeads, {}, HeadOrder::kTokensFirst).status().message()), "null");
  names(std::string(CrossLayerPlanes(kTwoHeads, Tensor(0, 959), HeadOrder::kTokensFirst).status().message()),
        "959");
  names(std::string(KAndVApartPlanes(kTwoHeads, good, good).status().message()), "overlaps");
  names(std::string(KAndVApartPlanes(kTwoHeads, good, {}).status().message()), "v_layers");
  names(std::string(FusedPlanes(kTwoHeads, std::span(good).first(1)).status().message()), "layers");
}

}  // namespace
}  // namespace terrace
