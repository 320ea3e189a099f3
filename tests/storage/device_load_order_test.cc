// Loads into a device's pages over many seeds: the engine's earlier use of the blocks sees the old bytes, its
// later use the loaded ones; and each edge of the order, taken away, is noticed.
#include <gtest/gtest.h>

#include "tests/storage/device_load_fixture.h"

namespace terrace {
namespace {

enum class How { kWait, kWaitOn, kWaitLayer, kWaitLayerOn };

constexpr CopyStrategy kStrategies[] = {CopyStrategy::kPlain, CopyStrategy::kBatched, CopyStrategy::kStaged,
                                        CopyStrategy::kMapped};

struct Seen {
  uint64_t loads = 0;
  uint64_t old_wrong = 0;
  uint64_t layers_wrong = 0;
  uint64_t ends_wrong = 0;
  uint64_t uses = 0;
  uint64_t bytes = 0;
  uint64_t wrong() const { return old_wrong + layers_wrong + ends_wrong; }
};

// A part of the prompt that begins and ends anywhere, and a view of some tokens around the boundary of two
// chunks, which may reach beyond it.
std::pair<TokenRange, DevicePages::Shape> DrawPlace(const StoredPrompt& prompt, std::mt19937_64& random) {
  const uint64_t all = prompt.tokens.size();
  const uint64_t chunk = prompt.spec.tokens_per_chunk;
  const uint64_t middle = chunk * (1 + random() % (all / chunk));
  DevicePages::Shape shape;
  shape.first_token = middle - random() % std::min<uint64_t>(chunk, 24);
  shape.num_tokens = 1 + random() % 40;
  shape.tokens_per_block = std::array{1u, 8u, 16u}[random() % 3];
  shape.missing_of_256 = random() % 2 == 0 ? 0 : 64;
  TokenRange range{0, all};
  if (random() % 2 == 0) range.begin = std::min(all, shape.first_token + random() % 16);
  if (random() % 2 == 0) range.end = std::max(range.begin, std::min(all, middle + random() % 16));
  return {range, shape};
}

void LoadOnce(DeviceWorld& world, How how, LoadOrder order, std::mt19937_64& random, Seen& seen) {
  const auto [range, shape] = DrawPlace(world.prompt, random);
  DeviceLoad load(world, range, order, shape, random);
  load.Start();
  if (how == How::kWaitOn) {
    EXPECT_TRUE(load.UseAllOnStreams().ok());
  }
  for (uint32_t layer = 0; layer < kDeviceLoadLayers; ++layer) {
    if (how == How::kWaitLayerOn) {
      EXPECT_TRUE(load.UseLayerOnStreams(layer).ok());
    }
    if (how == How::kWaitLayer) {
      EXPECT_TRUE(load.handle.WaitLayer(layer, InAMinute()).ok());
      load.UseLayer(layer);
    }
  }
  const LoadReport report = load.handle.Wait(InAMinute());
  EXPECT_TRUE(report.status.ok()) << report.status.ToString();
  EXPECT_EQ(report.recompute_from, range.end);
  EXPECT_EQ(report.loaded_tokens, range.end - range.begin);
  if (order == LoadOrder::kLayerMajor) {
    EXPECT_EQ(report.loaded_layers, kDeviceLoadLayers);
  }
  seen.ends_wrong += load.IsRight() ? 0 : 1;  // read by the host, with no wait for the device
  world.Synchronize();
  ++seen.loads;
  seen.old_wrong += load.old_seen_wrong;
  seen.layers_wrong += load.layer_seen_wrong;
  seen.uses += load.num_seen;
  seen.bytes += report.loaded_bytes;
}

struct SeedRun {
  const StoredPrompt& prompt;
  SimulatedDeviceOptions device = {};
  std::optional<CopyStrategy> strategy = {};  // empty: each in turn
  uint64_t first_seed = 1;
  uint64_t pool_bytes = 8 << 20;
  uint64_t num_seeds = 100;
  uint64_t loads_per_seed = 8;
  uint64_t wrong_is_enough = UINT64_MAX;
};

// A manager per seed, whose first loads come from the disk and later ones from the host tier.
Seen RunSeeds(const SeedRun& run) {
  Seen seen;
  for (uint64_t seed = run.first_seed; seed < run.first_seed + run.num_seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    DeviceWorldOptions options;
    options.device = run.device;
    options.device.seed = seed;
    options.device.delay_of_256 = std::array{0u, 64u, 200u}[random() % 3];
    options.strategy = run.strategy ? *run.strategy : kStrategies[seed % 4];
    options.with_host = seed % 4 != 3;
    options.pool_bytes = run.pool_bytes;
    DeviceWorld world(run.prompt, options);
    for (uint64_t i = 0; i < run.loads_per_seed; ++i) {
      const auto how = static_cast<How>(random() % 4);
      const bool by_layer = how == How::kWaitLayer || how == How::kWaitLayerOn || random() % 2 == 0;
      LoadOnce(world, how, by_layer ? LoadOrder::kLayerMajor : LoadOrder::kChunkMajor, random, seen);
    }
    for (const auto& device : world.devices) EXPECT_EQ(device->counters().unregistered, 0u);
    if (seen.wrong() >= run.wrong_is_enough) return seen;
  }
  return seen;
}

TEST_F(DeviceLoadTest, NoBlockIsWrittenBeforeItsLastUseNorReadBeforeItsCopyOfManyChunks) {
  const Seen seen = RunSeeds({.prompt = *small_, .num_seeds = 120 / kSeedShare, .loads_per_seed = 20});
  EXPECT_EQ(seen.old_wrong, 0u);
  EXPECT_EQ(seen.layers_wrong, 0u);
  EXPECT_EQ(seen.ends_wrong, 0u);
  EXPECT_EQ(seen.loads, 120 / kSeedShare * 20);
  EXPECT_GT(seen.uses, 2 * seen.loads);
  EXPECT_GT(seen.bytes, 0u);
}

TEST_F(DeviceLoadTest, NoBlockIsWrittenBeforeItsLastUseNorReadBeforeItsCopyLayerByLayer) {
  const Seen seen = RunSeeds(
      {.prompt = *wide_, .pool_bytes = 32 << 20, .num_seeds = 30 / kSeedShare, .loads_per_seed = 20});
  EXPECT_EQ(seen.old_wrong, 0u);
  EXPECT_EQ(seen.layers_wrong, 0u);
  EXPECT_EQ(seen.ends_wrong, 0u);
  EXPECT_EQ(seen.loads, 30 / kSeedShare * 20);
}

TEST_F(DeviceLoadTest, WithoutTheWaitForTheLastUseItSeesNewBytes) {
  SeedRun run{.prompt = *small_, .num_seeds = 400, .wrong_is_enough = 1};
  run.device.ignore_waits_to_device = true;
  EXPECT_GT(RunSeeds(run).old_wrong, 0u);
}

TEST_F(DeviceLoadTest, WithEventsThatLieLoadedBytesAreMissing) {
  SeedRun run{.prompt = *small_, .num_seeds = 400, .wrong_is_enough = 40};
  run.device.events_lie_to_device = true;
  const Seen seen = RunSeeds(run);
  EXPECT_GT(seen.layers_wrong, 0u) << "a stream that waits for the copies";
  EXPECT_GT(seen.ends_wrong, 0u) << "the host that waits for them";
}

TEST_F(DeviceLoadTest, WithUnorderedStreamsStagedCopiesAreWrong) {
  SeedRun run{.prompt = *small_, .strategy = CopyStrategy::kStaged, .num_seeds = 400, .wrong_is_enough = 1};
  run.device.streams_are_unordered = true;
  EXPECT_GT(RunSeeds(run).wrong(), 0u);
}

}  // namespace
}  // namespace terrace
