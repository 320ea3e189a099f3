// Host copies between pages and canonical payloads: every layout of the engines as a filling of PagedKvView,
// against index formulas written by hand.
#include "lib/codec/paged_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/core/paged_layouts.h"

namespace terrace {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kFewGeometries = true;  // byte by byte formulas are slow there
#else
constexpr bool kFewGeometries = false;
#endif
constexpr uint64_t kSeed = 77;

void CheckGather(Pages& pages, TokenRange payload_tokens, TokenRange tokens, LayerSpan layers) {
  std::vector<std::byte> payload(pages.PayloadBytes(payload_tokens), kUntouched);
  std::vector<std::byte> expected = payload;
  pages.ForEachRun(payload_tokens, tokens, layers, [&](Place from, int64_t to) {
    std::memcpy(expected.data() + to, pages.memory[static_cast<size_t>(from.allocation)].data() + from.offset,
                static_cast<size_t>(pages.g.head_bytes));
  });
  ASSERT_TRUE(GatherLayers(pages.CopyOf(payload_tokens), tokens, layers, payload).ok());
  ASSERT_TRUE(payload == expected);
}

// Scatters into memory of which all else must stay as it is. `tokens` may lie outside the view.
void CheckScatter(Pages& pages, TokenRange payload_tokens, TokenRange tokens, LayerSpan layers,
                  std::mt19937_64& random) {
  std::vector<std::byte> payload(pages.PayloadBytes(payload_tokens));
  FillRandom(payload, random);
  for (auto& allocation : pages.memory) std::fill(allocation.begin(), allocation.end(), kUntouched);
  Memory expected = pages.memory;
  const TokenRange held = {std::max(tokens.begin, pages.view.first_token),
                           std::min(tokens.end, pages.view.first_token + pages.view.num_tokens)};
  pages.ForEachRun(payload_tokens, held, layers, [&](Place to, int64_t from) {
    std::memcpy(expected[static_cast<size_t>(to.allocation)].data() + to.offset, payload.data() + from,
                static_cast<size_t>(pages.g.head_bytes));
  });
  ScatterLayers(pages.CopyOf(payload_tokens), tokens, layers, payload);
  ASSERT_TRUE(pages.memory == expected);
}

class PagedCopyTest : public testing::TestWithParam<Layout> {
 protected:
  template <typename Check>
  void ForEachGeometry(const Check& check) {
    for (const int64_t heads : {1, 2, 3, 8}) {
      for (const int64_t head_bytes : {128, 160, 1152}) {
        for (const int64_t block_tokens : {1, 16, 32}) {
          if (kFewGeometries && (heads == 2 || heads == 8 || block_tokens == 32)) continue;
          Geometry g;
          g.heads = heads;
          g.head_bytes = head_bytes;
          g.block_tokens = block_tokens;
          if (GetParam().latent) g.kv = 1;
          if (GetParam().latent && heads > 1) continue;
          SCOPED_TRACE("heads " + std::to_string(heads) + " of " + std::to_string(head_bytes) +
                       " bytes, blocks of " + std::to_string(block_tokens) + ", seed " +
                       std::to_string(kSeed));
          check(g);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  std::mt19937_64 random_{kSeed};
};

TEST_P(PagedCopyTest, WholePayloadsInBothDirections) {
  // In order (neighbours in memory), reversed, shuffled.
  for (const std::vector<int64_t>& table :
       {std::vector<int64_t>{1, 2, 3, 4}, std::vector<int64_t>{6, 5, 2, 0},
        std::vector<int64_t>{3, 0, 6, 1}}) {
    ForEachGeometry([&](const Geometry& g) {
      Pages pages(GetParam(), g, table);
      ASSERT_TRUE(pages.view.Validate(pages.spec, true).ok());
      pages.Fill(random_);
      const TokenRange all = {pages.view.first_token, pages.view.first_token + pages.view.num_tokens};
      const LayerSpan layers = {0, static_cast<uint32_t>(g.layers)};
      const Memory before = pages.memory;
      CheckGather(pages, all, all, layers);
      ASSERT_TRUE(pages.memory == before) << "a gather wrote to the engine's memory";
      CheckScatter(pages, all, all, layers, random_);
    });
  }
}

TEST_P(PagedCopyTest, PartsOfPayloadsTokensAndLayers) {
  ForEachGeometry([&](const Geometry& g) {
    Pages pages(GetParam(), g, {6, 2, 3, 0});
    pages.Fill(random_);
    const uint64_t begin = pages.view.first_token;
    const uint64_t n = pages.view.num_tokens;
    // The payload begins before the view, or ends behind it; tokens begin and end inside of blocks.
    const TokenRange payload_tokens = {begin - 5, begin + n + 3};
    for (const TokenRange tokens :
         {TokenRange{begin, begin}, TokenRange{begin + n, begin + n},
          TokenRange{begin + n / 2, begin + n / 2 + 1}, TokenRange{begin + n / 3, begin + n - n / 4}}) {
      for (const LayerSpan layers : {LayerSpan{0, 0}, LayerSpan{1, 2}, LayerSpan{0, 3}}) {
        CheckGather(pages, payload_tokens, tokens, layers);
        if (HasFatalFailure()) return;
      }
    }
    CheckScatter(pages, payload_tokens, payload_tokens, {0, 3}, random_);
    CheckScatter(pages, payload_tokens, {begin + 1, begin + n + 2}, {1, 3}, random_);
    CheckScatter(pages, payload_tokens, {begin - 5, begin - 1}, {0, 3}, random_);
    CheckScatter(pages, payload_tokens, {begin + n, begin + n + 3}, {0, 3}, random_);
  });
}

TEST_P(PagedCopyTest, NegativeBlocksAreSkippedOrRefused) {
  ForEachGeometry([&](const Geometry& g) {
    Pages pages(GetParam(), g, {-1, 2, -7, 0, -1});
    ASSERT_TRUE(pages.view.Validate(pages.spec, true).ok());
    const uint64_t begin = pages.view.first_token;
    const TokenRange all = {begin, begin + pages.view.num_tokens};
    const LayerSpan layers = {0, static_cast<uint32_t>(g.layers)};
    CheckScatter(pages, all, all, layers, random_);
    pages.Fill(random_);
    std::vector<std::byte> payload(pages.PayloadBytes(all), kUntouched);
    const std::vector<std::byte> before = payload;
    const auto block = static_cast<uint64_t>(g.block_tokens);
    EXPECT_EQ(GatherLayers(pages.CopyOf(all), all, layers, payload).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(GatherLayers(pages.CopyOf(all), {begin + block, begin + 2 * block + 1}, layers, payload).code(),
              StatusCode::kInvalidArgument);
    EXPECT_TRUE(payload == before);
    CheckGather(pages, all, {begin + block, begin + 2 * block}, layers);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, PagedCopyTest, testing::ValuesIn(kLayouts),
                         [](const testing::TestParamInfo<Layout>& layout) { return layout.param.name; });

TEST(PagedCopyViewTest, GatherOutsideTheViewIsRefused) {
  Pages pages(kLayouts[0], {}, {0, 1});
  const TokenRange payload_tokens = {0, 100};
  std::vector<std::byte> payload(pages.PayloadBytes(payload_tokens), kUntouched);
  const std::vector<std::byte> before = payload;
  const PagedCopy copy = pages.CopyOf(payload_tokens);
  EXPECT_EQ(GatherLayers(copy, {31, 33}, {0, 1}, payload).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(GatherLayers(copy, {60, 65}, {0, 1}, payload).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(payload == before);
  EXPECT_TRUE(GatherLayers(copy, {32, 64}, {0, 1}, payload).ok());
}

TEST(PagedCopyViewTest, BlocksMayRepeatInASource) {
  Pages pages(kLayouts[0], {}, {3, 3, 1});
  EXPECT_TRUE(pages.view.Validate(pages.spec, false).ok());
  std::mt19937_64 random(kSeed);
  pages.Fill(random);
  CheckGather(pages, {32, 80}, {32, 80}, {0, 3});
}

TEST(PagedCopyViewTest, StridesMayBeNegative) {
  const Geometry g;
  Pages pages(kLayouts[0], g, {0, 2, 5});
  std::mt19937_64 random(kSeed);
  pages.Fill(random);
  const TokenRange all = {32, 80};
  std::vector<std::byte> straight(pages.PayloadBytes(all));
  ASSERT_TRUE(GatherLayers(pages.CopyOf(all), all, {0, 3}, straight).ok());
  // The same bytes, laid out from the end: block, token and head 0 come last.
  const PlaneView strides = pages.planes[0];
  std::vector<std::byte> reversed(static_cast<size_t>(g.blocks * g.S()));
  PlaneView back = strides;
  back.layer_bases = {};
  back.base = reversed.data() + reversed.size() - back.run_bytes;
  back.block_stride = -strides.block_stride;
  back.token_stride = -strides.token_stride;
  back.head_stride = -strides.head_stride;
  KvSpec spec = pages.spec;
  spec.layers.resize(1);
  spec.layers[0].planes.resize(1);
  const PayloadLayout layout(spec, {});
  PagedKvView view = pages.view;
  view.planes = {&back, 1};
  ASSERT_TRUE(view.Validate(spec, true).ok());
  const PagedCopy copy = {layout, view, all};
  ScatterLayers(copy, all, {0, 1}, straight);
  std::vector<std::byte> again(layout.bytes_per_token() * 48);
  ASSERT_TRUE(GatherLayers(copy, all, {0, 1}, again).ok());
  EXPECT_EQ(std::memcmp(again.data(), straight.data(), again.size()), 0);
  EXPECT_EQ(std::memcmp(back.base, straight.data(), back.run_bytes), 0) << "head 0 of the first token";
  EXPECT_EQ(std::memcmp(back.base - back.run_bytes, straight.data() + back.run_bytes, back.run_bytes), 0);
}

// Group 0: layers 0 and 2 (K of 4 heads, V of 4 heads, and one replicated scale; only K and V in layer 2);
// group 1: layer 1, latent. Two tensor-parallel ranks.
KvSpec MixedSpec() {
  KvSpec spec;
  spec.model_id = "m";
  spec.payload_form = PayloadForm::kCanonical;
  spec.groups = {GroupSpec{}, GroupSpec{Retention::kWindow, 64}};
  const PlaneSpec k{PlaneKind::kK, DType::kF16, 4, 64, 512};
  const PlaneSpec v{PlaneKind::kV, DType::kF16, 4, 32, 256};
  const PlaneSpec scale{PlaneKind::kKScale, DType::kF32, 1, 1, 4};
  const PlaneSpec latent{PlaneKind::kLatent, DType::kBF16, 4, 144, 1152};
  spec.layers = {{0, {k, v, scale}}, {1, {latent}}, {0, {k, v}}};
  spec.shards = {{0, 2, 0, 3}, {1, 2, 0, 3}};
  EXPECT_TRUE(spec.Validate().ok());
  return spec;
}

TEST(PayloadLayoutTest, PlanesAndLayersOfAShard) {
  const KvSpec spec = MixedSpec();
  EXPECT_EQ(spec.PlaneBytesPerToken(0, 0, {0, 1}), 256u);
  EXPECT_EQ(spec.PlaneBytesPerToken(0, 2, {0, 1}), 4u) << "replicated";
  EXPECT_EQ(spec.PlaneBytesPerToken(1, 0, {1, 0}), 1152u) << "replicated";
  EXPECT_EQ(spec.PlaneBytesPerToken(1, 0, {0, 0}), 0u) << "another group";
  EXPECT_EQ(spec.PlaneBytesPerToken(0, 3, {0, 0}), 0u);
  EXPECT_EQ(spec.PlaneBytesPerToken(3, 0, {0, 0}), 0u);
  const PayloadLayout layout(spec, {0, 1});
  ASSERT_EQ(layout.num_layers(), 2u);
  EXPECT_FALSE(layout.is_uniform());
  EXPECT_EQ(layout.bytes_per_token() * 10, spec.PayloadBytes({0, 1}, 10));
  EXPECT_EQ(layout.planes(1)[1].begin_per_token, 256u + 128 + 4 + 256);
  EXPECT_EQ(layout.LayerRange(0, 1, 10).offset, 0u);
  EXPECT_EQ(layout.LayerRange(0, 1, 10).length, 3880u);
  EXPECT_EQ(layout.LayerRange(1, 2, 10).offset, 3880u);
  EXPECT_EQ(layout.LayerRange(1, 2, 10).length, 3840u);
  EXPECT_EQ(layout.LayerRange(2, 2, 10).offset, 7720u);
  EXPECT_EQ(layout.LayerRange(2, 2, 10).length, 0u);
  EXPECT_EQ(PayloadLayout(spec, {1, 0}).bytes_per_token(), 1152u);
  KvSpec opaque;
  EXPECT_EQ(PayloadLayout(opaque, {}).num_layers(), 0u);
  EXPECT_EQ(PayloadLayout(opaque, {}).bytes_per_token(), 0u);
  EXPECT_EQ(PayloadLayout(opaque, {}).LayerRange(0, 0, 10).length, 0u);
}

TEST(PagedCopyViewTest, OneEntryPerLayerAndPlaneWhereLayersDiffer) {
  const KvSpec spec = MixedSpec();
  const PayloadLayout layout(spec, {0, 1});
  // Blocks of two tokens, five of them, a place of its own for each plane.
  const uint32_t sizes[] = {256, 128, 4, 256, 128};
  std::vector<std::vector<std::byte>> memory;
  std::vector<PlaneView> planes;
  std::mt19937_64 random(kSeed);
  for (const uint32_t size : sizes) {
    auto& plane = memory.emplace_back(size * 10);
    FillRandom(plane, random);
    planes.push_back(
        {.base = plane.data(), .block_stride = 2 * size, .token_stride = size, .run_bytes = size});
  }
  const std::vector<int64_t> table = {4, 0};
  const PagedKvView view{{0, 1}, planes, table, 2, 0, 3};
  ASSERT_TRUE(view.Validate(spec, true).ok());
  std::vector<std::byte> payload(layout.bytes_per_token() * 3);
  ASSERT_TRUE(GatherLayers({layout, view, {0, 3}}, {0, 3}, {0, 2}, payload).ok());
  size_t at = 0;
  for (size_t p = 0; p < memory.size(); ++p) {
    for (const size_t slot : {8u, 9u, 0u}) {  // tokens 0, 1 in block 4, token 2 in block 0
      EXPECT_EQ(std::memcmp(payload.data() + at, memory[p].data() + slot * sizes[p], sizes[p]), 0);
      at += sizes[p];
    }
  }
  const auto before = memory;
  for (auto& plane : memory) std::fill(plane.begin(), plane.end(), std::byte{0});
  ScatterLayers({layout, view, {0, 3}}, {0, 3}, {1, 2}, payload);
  EXPECT_TRUE(std::equal(before[3].begin() + 2048, before[3].end(), memory[3].begin() + 2048));
  EXPECT_EQ(memory[0], std::vector<std::byte>(memory[0].size())) << "layer 0 was not asked for";
}

}  // namespace
}  // namespace terrace
