// The pipeline of the bulk engine on a model of its instructions: loads and stores happen at any time that
// the instructions allow, which is drawn from a seed. Taking one wait away must be noticed.
#include "kernels/cuda/bulk_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/host_launcher.h"
#include "lib/codec/paged_copy.h"
#include "tests/core/paged_layouts.h"

namespace terrace {
namespace {

struct ModelOptions {
  uint64_t seed = 1;
  bool forgets_loads = false;  // WaitLoad answers at once
  bool forgets_reads = false;  // WaitStoresRead answers at once
  bool forgets_end = false;    // WaitStoresDone too
};

// One warp's stages, and what its thread has issued.
class BulkModel {
 public:
  explicit BulkModel(const ModelOptions& options) : options_(options), random_(options.seed) {
    buffers_.assign(BulkCopyShape::kStages,
                    std::vector<std::byte>(BulkCopyShape::kStageBytes, std::byte{0x5a}));
    loads_.resize(BulkCopyShape::kStages);
  }

  void Load(uint32_t stage, const std::byte* src, uint32_t bytes) {
    ASSERT_LE(bytes, BulkCopyShape::kStageBytes);
    ASSERT_EQ((reinterpret_cast<uintptr_t>(src) | bytes) % 16, 0u);
    if (loads_[stage].src != nullptr) FinishLoad(stage);  // both write it; in tests of order the bytes tell
    loads_[stage].src = src;
    loads_[stage].bytes = bytes;
    Progress();
  }
  void WaitLoad(uint32_t stage, uint32_t parity) {
    // A barrier of the other parity answers for the phase before.
    if (!options_.forgets_loads && loads_[stage].num_done % 2 == parity) FinishLoad(stage);
    Progress();
  }
  void Store(uint32_t stage, std::byte* dst, uint32_t bytes) {
    ASSERT_EQ((reinterpret_cast<uintptr_t>(dst) | bytes) % 16, 0u);
    stores_.push_back({stage, dst, bytes});
    Progress();
  }
  template <uint32_t kPending>
  void WaitStoresRead() {
    if (!options_.forgets_reads) {
      while (stores_.size() > kPending) FinishStore();
    }
    Progress();
  }
  void WaitStoresDone() {
    if (options_.forgets_end) return;
    while (!stores_.empty()) FinishStore();
  }

 private:
  struct PendingLoad {
    const std::byte* src = nullptr;
    uint32_t bytes = 0;
    uint32_t num_done = 0;
  };
  struct PendingStore {
    uint32_t stage;
    std::byte* dst;
    uint32_t bytes;
  };

  // What may happen by itself.
  void Progress() {
    for (uint32_t stage = 0; stage < BulkCopyShape::kStages; ++stage) {
      if (loads_[stage].src != nullptr && random_() % 4 == 0) FinishLoad(stage);
    }
    if (!stores_.empty() && random_() % 4 == 0) FinishStore();
  }
  void FinishLoad(uint32_t stage) {
    PendingLoad& load = loads_[stage];
    if (load.src == nullptr) return;
    std::memcpy(buffers_[stage].data(), load.src, load.bytes);
    load.src = nullptr;
    ++load.num_done;
  }
  void FinishStore() {
    const PendingStore store = stores_.front();
    stores_.pop_front();
    std::memcpy(store.dst, buffers_[store.stage].data(), store.bytes);
  }

  const ModelOptions options_;
  std::mt19937_64 random_;
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<PendingLoad> loads_;
  std::deque<PendingStore> stores_;
};

void RunOnModel(const PagedCopyLaunch& launch, uint32_t num_blocks, const ModelOptions& options) {
  const uint32_t num_warps = num_blocks * BulkCopyShape::kWarps;
  for (uint32_t warp = 0; warp < num_warps; ++warp) {
    ModelOptions of_warp = options;
    of_warp.seed = options.seed * 1000 + warp;
    BulkModel model(of_warp);
    BulkStage stages[BulkCopyShape::kStages];
    BulkPipeline<BulkModel> pipeline(model, stages);
    if (launch.direction == CopyDirection::kToHost) {
      RunBulkCopy<CopyDirection::kToHost>(launch, warp, num_warps, pipeline);
    } else {
      RunBulkCopy<CopyDirection::kToDevice>(launch, warp, num_warps, pipeline);
    }
  }
}

bool AllTilesAreForBulkCopy(const PagedCopyLaunch& launch) {
  for (uint32_t index = 0; index < launch.num_tiles; ++index) {
    const Tile tile = TileAt(launch, index);
    if (tile.bytes > 0 && !IsForBulkCopy(tile)) return false;
  }
  return true;
}

struct Tally {
  uint64_t for_bulk = 0, for_vectors = 0, wrong = 0;
};

// A copy of random tokens of a random layout, beside what the host makes of it.
void CopyOnce(uint64_t seed, ModelOptions options, Tally& tally) {
  std::mt19937_64 random(seed);
  options.seed = seed;
  const Layout& layout = kLayouts[random() % std::size(kLayouts)];
  Geometry g;
  g.layers = static_cast<int64_t>(1 + random() % 3);
  g.blocks = static_cast<int64_t>(1 + random() % 5);
  g.block_tokens = std::vector<int64_t>{1, 16, 33}[random() % 3];
  g.heads = layout.latent ? 1 : static_cast<int64_t>(1 + random() % 4);
  g.head_bytes = std::vector<int64_t>{128, 256, 1168, 72}[random() % 4];
  if (g.block_tokens == 1) g.head_bytes *= 16;  // tokens longer than a tile
  g.kv = layout.latent ? 1 : 2;
  std::vector<int64_t> blocks(static_cast<size_t>(g.blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), random);
  const bool has_hole = blocks.size() > 1 && random() % 3 == 0;
  if (has_hole) blocks[random() % blocks.size()] = -1;
  const CopyDirection direction =
      has_hole || random() % 2 == 0 ? CopyDirection::kToDevice : CopyDirection::kToHost;

  Pages pages(layout, g, blocks);
  pages.Fill(random);
  const TokenRange tokens = {32 + random() % pages.view.num_tokens, 32 + pages.view.num_tokens};
  std::vector<std::byte> payload(pages.PayloadBytes(tokens));
  FillRandom(payload, random);
  const auto kernel = MakeKernelCopy(pages.CopyOf(tokens), tokens, {0, static_cast<uint32_t>(g.layers)},
                                     direction, payload.data());
  ASSERT_TRUE(kernel.ok());

  const Memory pages_before = pages.memory;
  const std::vector<std::byte> payload_before = payload;
  bool is_for_bulk = false;
  const Status done = ForEachLaunch(kernel->args, [&](const PagedCopyLaunch& launch) {
    is_for_bulk = IsForBulkCopy(launch);
    EXPECT_TRUE(!is_for_bulk || AllTilesAreForBulkCopy(launch)) << "seed " << seed;
    if (is_for_bulk) RunOnModel(launch, static_cast<uint32_t>(1 + random() % 2), options);
    return OkStatus();
  });
  ASSERT_TRUE(done.ok());
  ++(is_for_bulk ? tally.for_bulk : tally.for_vectors);
  if (!is_for_bulk) return;
  const Memory pages_after = pages.memory;
  const std::vector<std::byte> payload_after = payload;
  for (size_t i = 0; i < pages_before.size(); ++i) {  // in place: the arguments point there
    std::copy(pages_before[i].begin(), pages_before[i].end(), pages.memory[i].begin());
  }
  std::copy(payload_before.begin(), payload_before.end(), payload.begin());
  RunOnHost(kernel->args);
  tally.wrong += pages_after == pages.memory && payload_after == payload ? 0 : 1;
}

Tally CopyMany(uint64_t num_seeds, const ModelOptions& options) {
  Tally tally;
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) CopyOnce(seed, options, tally);
  return tally;
}

TEST(BulkCopyTest, EqualsTheHost) {
  const Tally tally = CopyMany(400, {});
  EXPECT_EQ(tally.wrong, 0u);
  EXPECT_GT(tally.for_bulk, 100u);
  EXPECT_GT(tally.for_vectors, 50u);
}

TEST(BulkCopyTest, EveryWaitIsNeeded) {
  EXPECT_GT(CopyMany(100, {.forgets_loads = true}).wrong, 0u);
  EXPECT_GT(CopyMany(100, {.forgets_reads = true}).wrong, 0u);
  EXPECT_GT(CopyMany(100, {.forgets_end = true}).wrong, 0u);
}

TEST(BulkCopyTest, NothingToCopyWaitsForNothing) {
  BulkModel model({});
  BulkStage stages[BulkCopyShape::kStages];
  BulkPipeline<BulkModel> pipeline(model, stages);
  pipeline.Copy(nullptr, nullptr, 0);
  pipeline.Finish();
}

// What a launch of one plane is for.
bool IsForBulk(uintptr_t engine, uintptr_t payload, uint32_t run_bytes, int64_t token_stride,
               uint32_t num_heads = 1) {
  static PagedCopyLaunch launch;
  launch.num_planes = 1;
  launch.tokens_per_block = 16;
  launch.num_tokens = 64;
  LaunchPlane& plane = launch.planes[0];
  plane.engine = reinterpret_cast<std::byte*>(engine);
  plane.payload = reinterpret_cast<std::byte*>(payload);
  plane.block_stride = 16 * token_stride;
  plane.token_stride = token_stride;
  plane.num_heads = num_heads;
  plane.run_bytes = run_bytes;
  plane.tokens_per_tile = 8;
  return IsForBulkCopy(launch);
}

TEST(BulkCopyTest, IsForLargeAlignedContiguousTiles) {
  EXPECT_TRUE(IsForBulk(0x1000, 0x2000, 1024, 1024));
  EXPECT_FALSE(IsForBulk(0x1008, 0x2000, 1024, 1024));
  EXPECT_FALSE(IsForBulk(0x1000, 0x2008, 1024, 1024));
  EXPECT_FALSE(IsForBulk(0x1000, 0x2000, 1032, 1032));
  EXPECT_FALSE(IsForBulk(0x1000, 0x2000, 1024, 2048));
  EXPECT_FALSE(IsForBulk(0x1000, 0x2000, 1024, 1024, 2));
  EXPECT_FALSE(IsForBulk(0x1000, 0x2000, 128, 128)) << "1 KiB per tile";
}

}  // namespace
}  // namespace terrace
