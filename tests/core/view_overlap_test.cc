// What Validate says of a destination's bytes against an oracle that writes down the address of every single
// one: what is accepted names no byte twice; and legal interleavings are accepted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "terrace/paged_kv_view.h"

namespace terrace {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRounds = 6'000;
#else
constexpr int kRounds = 60'000;
#endif
constexpr uintptr_t kOrigin = uintptr_t{1} << 40;  // no byte of it is touched

std::byte* At(int64_t offset) {
  return reinterpret_cast<std::byte*>(kOrigin + static_cast<uintptr_t>(offset));
}

KvSpec SpecOf(uint32_t layers, const std::vector<PlaneView>& planes) {
  KvSpec spec;
  spec.model_id = "m";
  spec.payload_form = PayloadForm::kCanonical;
  LayerSpec layer;
  for (const PlaneView& plane : planes)
    layer.planes.push_back(
        {PlaneKind::kRaw, DType::kU8, plane.num_heads, plane.run_bytes, plane.num_heads * plane.run_bytes});
  spec.layers.assign(layers, layer);
  return spec;
}

// Addresses by the formula of paged_kv_view.h; whether one comes twice. One entry per plane.
bool NamesAByteTwice(const PagedKvView& view, uint32_t layers) {
  std::unordered_set<uintptr_t> seen;
  for (const PlaneView& plane : view.planes) {
    for (int64_t l = 0; l < layers; ++l) {
      const auto base = reinterpret_cast<uintptr_t>(
          plane.layer_bases.empty() ? plane.base : plane.layer_bases[static_cast<size_t>(l)]);
      const int64_t layer = plane.layer_bases.empty() ? l * plane.layer_stride : 0;
      for (uint64_t i = 0; i < view.num_tokens; ++i) {
        const int64_t block = view.block_table[i / view.tokens_per_block];
        if (block < 0) continue;
        for (int64_t h = 0; h < plane.num_heads; ++h) {
          for (int64_t b = 0; b < plane.run_bytes; ++b) {
            const int64_t offset = layer + block * plane.block_stride +
                                   static_cast<int64_t>(i % view.tokens_per_block) * plane.token_stride +
                                   h * plane.head_stride + b;
            if (!seen.insert(base + static_cast<uintptr_t>(offset)).second) return true;
          }
        }
      }
    }
  }
  return false;
}

struct RandomView {
  uint32_t layers = 1;
  std::vector<PlaneView> planes;
  std::vector<std::vector<std::byte*>> bases;
  std::vector<int64_t> table;
  PagedKvView view;

  RandomView() = default;
  RandomView(const RandomView&) = delete;
  RandomView& operator=(const RandomView&) = delete;

  void Finish(uint32_t block_tokens, uint64_t num_tokens) {
    for (size_t p = 0; p < bases.size(); ++p) planes[p].layer_bases = bases[p];
    view = {.part = {},
            .planes = planes,
            .block_table = table,
            .tokens_per_block = block_tokens,
            .first_token = 7,
            .num_tokens = num_tokens,
            .stream = nullptr};
  }
  Status Validate() const {
    const KvSpec spec = SpecOf(layers, planes);
    EXPECT_TRUE(spec.Validate().ok());
    return view.Validate(spec, true);
  }
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int64_t Up(int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random_); }
  bool Once(int64_t in) { return Up(1, in) == 1; }
  template <typename List>
  void Shuffle(List& list) {
    std::shuffle(list.begin(), list.end(), random_);
  }
  std::vector<int64_t> Table(int64_t blocks, int64_t length) {
    std::vector<int64_t> ids;
    for (int64_t b = 0; b < blocks; ++b) ids.push_back(b);
    Shuffle(ids);
    ids.resize(static_cast<size_t>(length));
    for (int64_t& id : ids) {
      if (Once(9)) id = -1;
    }
    return ids;
  }

 private:
  std::mt19937_64 random_;
};

// Dense tensors with the dimensions (layer, plane, block, token, head) in any order and the run innermost,
// some with padding and with axes that run backwards: what an engine may have.
void MakeTensor(Draw& draw, RandomView& out, bool own_head_axis) {
  out.layers = static_cast<uint32_t>(draw.Up(1, 3));
  const int64_t kv = draw.Up(1, 3), blocks = draw.Up(1, 5), tokens = draw.Up(1, 4), heads = draw.Up(1, 3);
  const int64_t run = draw.Up(1, 3);
  const int64_t counts[] = {out.layers, kv, blocks, tokens, heads};
  std::vector<size_t> order = {0, 1, 2, 3, 4};
  draw.Shuffle(order);
  int64_t strides[5];
  int64_t size = run + (own_head_axis ? draw.Up(0, 2) : 0);
  for (const size_t axis : order) {
    strides[axis] = size;
    size *= counts[axis];
    if (draw.Once(4)) size += draw.Up(1, 5);
  }
  int64_t origin = 0;
  for (const size_t axis : {0, 2, 3, 4}) {  // backwards: from the last one on
    if (!draw.Once(4)) continue;
    origin += strides[axis] * (counts[axis] - 1);
    strides[axis] = -strides[axis];
  }
  for (int64_t p = 0; p < kv; ++p) {
    out.planes.push_back({.base = At(origin + p * strides[1]),
                          .layer_stride = strides[0],
                          .block_stride = strides[2],
                          .token_stride = strides[3],
                          .head_stride = strides[4],
                          .num_heads = static_cast<uint32_t>(heads),
                          .run_bytes = static_cast<uint32_t>(run)});
    if (draw.Once(2)) continue;
    out.bases.resize(static_cast<size_t>(p) + 1);
    for (int64_t l = 0; l < out.layers; ++l)
      out.bases[static_cast<size_t>(p)].push_back(At(origin + p * strides[1] + l * strides[0]));
  }
  out.table = draw.Table(blocks, draw.Up(1, blocks));
  const int64_t slots = static_cast<int64_t>(out.table.size()) * tokens;
  out.Finish(static_cast<uint32_t>(tokens), static_cast<uint64_t>(draw.Up(slots - tokens + 1, slots)));
}

TEST(ViewOverlapTest, TensorsWithTheirAxesInAnyOrderAreAccepted) {
  Draw draw(1);
  for (int round = 0; round < kRounds / 6; ++round) {
    RandomView random;
    MakeTensor(draw, random, true);
    ASSERT_FALSE(NamesAByteTwice(random.view, random.layers)) << "the test's own tensor, round " << round;
    const Status status = random.Validate();
    ASSERT_TRUE(status.ok()) << status.ToString() << ", round " << round;
  }
}

// A tensor with one number changed is often still free of overlaps, and often not.
TEST(ViewOverlapTest, ATensorWithOneWrongNumber) {
  Draw draw(2);
  int accepted = 0, refused_rightly = 0, refused_needlessly = 0;
  for (int round = 0; round < kRounds / 3; ++round) {
    RandomView random;
    MakeTensor(draw, random, false);
    PlaneView& plane = random.planes[static_cast<size_t>(draw.Up(1, 64)) % random.planes.size()];
    const int64_t by = draw.Once(2) ? draw.Up(-3, 3) : draw.Up(-40, 40);
    switch (draw.Up(1, 5)) {
      case 1:
        plane.base += by;
        for (auto& bases : random.bases) {
          if (!bases.empty()) bases.back() += by;
        }
        break;
      case 2:
        plane.layer_stride += by;
        break;
      case 3:
        plane.block_stride += by;
        break;
      case 4:
        plane.token_stride += by;
        break;
      default:
        plane.head_stride += by;
    }
    const bool twice = NamesAByteTwice(random.view, random.layers);
    const Status status = random.Validate();
    ASSERT_FALSE(status.ok() && twice) << "round " << round;
    ++(status.ok() ? accepted : twice ? refused_rightly : refused_needlessly);
  }
  EXPECT_GT(accepted, kRounds / 40);
  EXPECT_GT(refused_rightly, kRounds / 40);
  EXPECT_LT(refused_needlessly, (accepted + refused_rightly) / 5);
}

// Anything at all: planes with strides of their own, on one another.
TEST(ViewOverlapTest, NumbersOutOfNowhere) {
  Draw draw(3);
  int accepted = 0, refused = 0;
  for (int round = 0; round < kRounds; ++round) {
    RandomView random;
    random.layers = static_cast<uint32_t>(draw.Up(1, 3));
    const int64_t kv = draw.Up(1, 3), blocks = draw.Up(1, 4), tokens = draw.Up(1, 3);
    const int64_t spread = draw.Up(2, 60);
    for (int64_t p = 0; p < kv; ++p) {
      random.planes.push_back({.base = At(draw.Up(0, spread * 4)),
                               .layer_stride = draw.Up(-spread, spread) * draw.Up(1, 4),
                               .block_stride = draw.Up(-spread, spread),
                               .token_stride = draw.Up(-12, 12),
                               .head_stride = draw.Up(-12, 12),
                               .num_heads = static_cast<uint32_t>(draw.Up(1, 2)),
                               .run_bytes = static_cast<uint32_t>(draw.Up(1, 4))});
      if (p > 0 && draw.Once(2)) {  // as the plane before, elsewhere
        std::byte* const base = random.planes.back().base;
        const uint32_t run_bytes = random.planes.back().run_bytes;
        random.planes.back() = random.planes[random.planes.size() - 2];
        random.planes.back().base = base;
        if (draw.Once(2)) random.planes.back().run_bytes = run_bytes;
      }
    }
    random.table = draw.Table(blocks, draw.Up(1, blocks));
    const int64_t slots = static_cast<int64_t>(random.table.size()) * tokens;
    random.Finish(static_cast<uint32_t>(tokens), static_cast<uint64_t>(draw.Up(0, slots)));
    const Status status = random.Validate();
    ASSERT_FALSE(status.ok() && NamesAByteTwice(random.view, random.layers)) << "round " << round;
    ++(status.ok() ? accepted : refused);
    ASSERT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument);
  }
  EXPECT_GT(accepted, kRounds / 50);
  EXPECT_GT(refused, kRounds / 50);
}

// Planes of one block stride that interleave by their position in a block, or by the blocks that are used.
TEST(ViewOverlapTest, WhichBlocksAreUsedCounts) {
  std::vector<PlaneView> planes(
      2, {.base = At(0), .block_stride = 10, .token_stride = 5, .num_heads = 1, .run_bytes = 5});
  planes[1].base = At(30);  // of block 0: what block 3 is of the other
  const std::vector<int64_t> meet = {0, 3}, apart = {0, 4, 5, 9, 10};
  const KvSpec spec = SpecOf(1, planes);
  PagedKvView view{.part = {},
                   .planes = planes,
                   .block_table = meet,
                   .tokens_per_block = 2,
                   .first_token = 0,
                   .num_tokens = 4,
                   .stream = nullptr};
  const Status status = view.Validate(spec, true);
  EXPECT_NE(status.message().find("planes[1].base"), std::string::npos) << status.ToString();
  EXPECT_NE(status.message().find("planes[0], layer 0"), std::string::npos) << status.ToString();
  EXPECT_TRUE(view.Validate(spec, false).ok()) << "of no concern in a source";
  view.block_table = apart;
  view.num_tokens = 10;
  EXPECT_FALSE(NamesAByteTwice(view, 1));
  EXPECT_TRUE(view.Validate(spec, true).ok());
}

// One plane runs through its blocks the other way: block 5 lies at 50 in both.
TEST(ViewOverlapTest, BlocksThatRunAgainstEachOther) {
  std::vector<PlaneView> planes(2, {.base = At(0), .block_stride = 10, .num_heads = 1, .run_bytes = 2});
  planes[1].base = At(100);
  planes[1].block_stride = -10;
  const std::vector<int64_t> table = {3, 5, 10};
  PagedKvView view{.part = {},
                   .planes = planes,
                   .block_table = table,
                   .tokens_per_block = 1,
                   .first_token = 0,
                   .num_tokens = 3,
                   .stream = nullptr};
  EXPECT_TRUE(NamesAByteTwice(view, 1));
  EXPECT_FALSE(view.Validate(SpecOf(1, planes), true).ok());
  planes[1].base = At(105);
  EXPECT_FALSE(NamesAByteTwice(view, 1));
  EXPECT_TRUE(view.Validate(SpecOf(1, planes), true).ok());
}

// Modulo the blocks' 20 bytes, planes lie at [0, 2), [2, 9) and [6, 24): the last one goes around to the
// first.
TEST(ViewOverlapTest, AroundTheEndOfABlock) {
  const PlaneView one{.block_stride = 20, .num_heads = 1, .run_bytes = 1};
  std::vector<PlaneView> planes(3, one);
  std::byte* const origin = At(20 - static_cast<int64_t>(kOrigin % 20));  // a multiple of a block
  planes[0].base = origin;                                                // 0, 1
  planes[0].token_stride = 1;
  planes[1].base = origin + 2;  // 2, 8
  planes[1].token_stride = 6;
  planes[2].base = origin + 6;  // 6, 9, 20, 23
  planes[2].token_stride = 14;
  planes[2].head_stride = 3;
  planes[2].num_heads = 2;
  const std::vector<int64_t> table = {1, 0};
  const PagedKvView view{.part = {},
                         .planes = planes,
                         .block_table = table,
                         .tokens_per_block = 2,
                         .first_token = 0,
                         .num_tokens = 4,
                         .stream = nullptr};
  EXPECT_TRUE(NamesAByteTwice(view, 1));
  EXPECT_FALSE(view.Validate(SpecOf(1, planes), true).ok());
  planes[0].base = origin + 4;  // 4, 5
  EXPECT_FALSE(NamesAByteTwice(view, 1));
  EXPECT_TRUE(view.Validate(SpecOf(1, planes), true).ok());
}

// 256 layers with K and V, all in one block (512 places, none apart by its ends), and 64k blocks: by steps,
// not by pairs. A count of pairs would be refused for its steps.
TEST(ViewOverlapTest, ManyLayersInOneBlockAreToldApart) {
  constexpr int64_t kLayers = 256, kTokens = 16, kHeads = 8, kRun = 256;
  for (const bool token_outermost : {false, true}) {
    const int64_t row = kHeads * kRun;
    const int64_t place = token_outermost ? row : kTokens * row;
    std::vector<PlaneView> planes;
    for (int64_t kv = 0; kv < 2; ++kv) {
      planes.push_back({.base = At(kv * place),
                        .layer_stride = 2 * place,
                        .block_stride = 2 * kLayers * kTokens * row,
                        .token_stride = token_outermost ? 2 * kLayers * row : row,
                        .head_stride = kRun,
                        .num_heads = kHeads,
                        .run_bytes = kRun});
    }
    std::vector<int64_t> table;
    for (int64_t b = 0; b < 65'536; ++b) table.push_back(65'535 - b);
    PagedKvView view{.part = {},
                     .planes = planes,
                     .block_table = table,
                     .tokens_per_block = kTokens,
                     .first_token = 0,
                     .num_tokens = table.size() * kTokens,
                     .stream = nullptr};
    const KvSpec spec = SpecOf(kLayers, planes);
    EXPECT_TRUE(view.Validate(spec, true).ok()) << view.Validate(spec, true).ToString();
    planes[1].base -= 1;
    EXPECT_FALSE(view.Validate(spec, true).ok());
    planes[1].base += 1;
    planes[1].layer_stride += row;
    EXPECT_FALSE(view.Validate(spec, true).ok());
  }
}

}  // namespace
}  // namespace terrace
