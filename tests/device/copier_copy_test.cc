// Copies by every strategy under many orders of the device: the bytes are right when the event says so, and a
// device that leaves an edge of the order out is noticed.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/device/copier_fixture.h"

namespace terrace {
namespace {

constexpr uint64_t kSeeds = 250;
constexpr int kCopies = 6;

std::string Name(const testing::TestParamInfo<CopyStrategy>& info) { return CopyStrategyName(info.param); }

CopyDirection DirectionOf(uint64_t number) {
  return number % 2 == 0 ? CopyDirection::kToHost : CopyDirection::kToDevice;
}

class CopierCopyTest : public testing::TestWithParam<CopyStrategy> {
 protected:
  static RigOptions OptionsOf(uint64_t seed) {
    RigOptions options;
    options.device.seed = seed;
    options.strategy = GetParam();
    // From less than a plane to more than a copy.
    options.staging_bytes = uint64_t{2048} << (seed % 8);
    return options;
  }
  // Several copies in both directions, all of them enqueued before the first is done. Each is looked at as
  // soon as its own event is done; or all at the end, where the device leaves edges out.
  static bool AreRight(const RigOptions& options, uint64_t seed, bool at_the_end = false) {
    Rig rig(options);
    std::mt19937_64 random(seed);
    std::vector<std::unique_ptr<RandomCopy>> copies;
    rig.device->Pause();
    for (int i = 0; i < kCopies; ++i) {
      copies.push_back(std::make_unique<RandomCopy>(DirectionOf(random()), random, rig));
      EXPECT_TRUE(copies.back()->Enqueue().ok());
    }
    rig.device->Resume();
    bool are_right = true;
    for (const auto& copy : copies) {
      const Status status = copy->Wait();
      EXPECT_TRUE(status.ok()) << status.ToString();
      are_right &= at_the_end || copy->IsRight();
    }
    rig.device->Synchronize();
    for (const auto& copy : copies) are_right &= copy->IsRight();
    return are_right;
  }
};

TEST_P(CopierCopyTest, EqualsTheReference) {
  for (uint64_t seed = 1; seed <= kSeeds / 2; ++seed) {
    Rig rig(OptionsOf(seed));
    std::mt19937_64 random(seed);
    RandomCopy copy(DirectionOf(seed), random, rig);
    ASSERT_TRUE(copy.Enqueue().ok());
    ASSERT_TRUE(copy.Wait().ok());
    ASSERT_TRUE(copy.IsRight()) << "seed " << seed;
  }
}

TEST_P(CopierCopyTest, ManyInFlightInBothDirections) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ASSERT_TRUE(AreRight(OptionsOf(seed), seed)) << "seed " << seed;
  }
}

TEST_P(CopierCopyTest, WithoutWaitsItIsNoticed) {
  for (const bool to_host : {true, false}) {
    int wrong = 0;
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      RigOptions options = OptionsOf(seed);
      (to_host ? options.device.ignore_waits_to_host : options.device.ignore_waits_to_device) = true;
      wrong += AreRight(options, seed, /*at_the_end=*/true) ? 0 : 1;
    }
    EXPECT_GT(wrong, 0) << (to_host ? "to host" : "to device");
  }
}

TEST_P(CopierCopyTest, FromManyThreads) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Rig rig(OptionsOf(seed));
    std::mt19937_64 random(seed);
    // Four threads with two copies each; the engine's stream has one user.
    std::vector<std::unique_ptr<RandomCopy>> copies;
    for (uint64_t i = 0; i < 8; ++i) {
      copies.push_back(std::make_unique<RandomCopy>(DirectionOf(i / 4), random, rig));
      copies.back()->Compute();
    }
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (uint64_t i = t; i < copies.size(); i += 4) EXPECT_TRUE(copies[i]->EnqueueCopy().ok());
        for (uint64_t i = t; i < copies.size(); i += 4) EXPECT_TRUE(copies[i]->Wait().ok());
        for (uint64_t i = t; i < copies.size(); i += 4) EXPECT_TRUE(copies[i]->IsRight());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_P(CopierCopyTest, NoTokensAreACopyToo) {
  Rig rig(OptionsOf(1));
  const PagedCopyArgs args;
  auto done = rig.copier->Copy(args, nullptr);
  ASSERT_TRUE(done.ok());
  EXPECT_TRUE((*done)->Wait(Soon()).ok());
  EXPECT_EQ(rig.device->counters().copies + rig.device->counters().kernels, 0u);
}

INSTANTIATE_TEST_SUITE_P(Strategies, CopierCopyTest, testing::ValuesIn(kAllStrategies), Name);

// A scatter behind a kernel that has not filled its slot yet, a slot that is filled again before its last
// use.
TEST(CopierStagedTest, AStreamWithoutOrderIsNoticed) {
  int wrong = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    RigOptions options;
    options.device.seed = seed;
    options.device.streams_are_unordered = true;
    options.strategy = CopyStrategy::kStaged;
    options.staging_bytes = 8192;
    Rig rig(options);
    std::mt19937_64 random(seed);
    std::vector<std::unique_ptr<RandomCopy>> copies;
    for (int i = 0; i < 4; ++i) {
      copies.push_back(std::make_unique<RandomCopy>(DirectionOf(seed), random, rig));
      ASSERT_TRUE(copies.back()->Enqueue().ok());
    }
    bool are_right = true;
    for (const auto& copy : copies) {
      ASSERT_TRUE(copy->Wait().ok());
      are_right &= copy->IsRight();
    }
    wrong += are_right ? 0 : 1;
  }
  EXPECT_GT(wrong, 20);
}

// Pages of one plane, four tokens of 64 bytes per block.
struct HandMadeCopy {
  explicit HandMadeCopy(Rig& rig, std::vector<int64_t> of_blocks, uint32_t of_planes = 2)
      : blocks(std::move(of_blocks)), pages(of_planes, std::vector<std::byte>(kBlocks * 256)) {
    std::mt19937_64 random(3);
    for (auto& plane : pages) FillRandom(plane, random);
    args.num_tokens = blocks.size() * 4;
    for (uint32_t p = 0; p < of_planes; ++p) {
      planes.push_back({pages[p].data(), p * args.num_tokens * 64, 256, 64, 64, 1, 64});
    }
    args.planes = planes.data();
    args.num_planes = of_planes;
    args.tokens_per_block = 4;
    args.blocks = blocks.data();
    args.payload = rig.TakePayload(of_planes * args.num_tokens * 64);
  }
  static constexpr size_t kBlocks = 8;
  std::vector<int64_t> blocks;
  std::vector<std::vector<std::byte>> pages;
  std::vector<PlaneArgs> planes;
  PagedCopyArgs args;
};

SimulatedDevice::Counters CountOf(Rig& rig, const HandMadeCopy& copy) {
  const SimulatedDevice::Counters before = rig.device->counters();
  auto done = rig.copier->Copy(copy.args, nullptr);
  EXPECT_TRUE(done.ok());
  EXPECT_TRUE((*done)->Wait(Soon()).ok());
  rig.device->Synchronize();
  SimulatedDevice::Counters counters = rig.device->counters();
  counters.copies -= before.copies;
  counters.batches -= before.batches;
  counters.pieces -= before.pieces;
  counters.kernels -= before.kernels;
  return counters;
}

TEST(CopierStrategyTest, WhatEachEnqueues) {
  for (const CopyDirection direction : {CopyDirection::kToHost, CopyDirection::kToDevice}) {
    for (const CopyStrategy strategy : kAllStrategies) {
      RigOptions options;
      options.strategy = strategy;
      Rig rig(options);
      HandMadeCopy copy(rig, {5, 1, 3});  // six pieces
      copy.args.direction = direction;
      EXPECT_EQ(rig.copier->StrategyOf(copy.args), strategy);
      const auto counters = CountOf(rig, copy);
      const bool by_kernel = strategy == CopyStrategy::kStaged || strategy == CopyStrategy::kMapped;
      EXPECT_EQ(counters.kernels, by_kernel ? 1u : 0u);
      EXPECT_EQ(counters.batches, strategy == CopyStrategy::kBatched ? 1u : 0u);
      // Both planes lie behind each other in the payload: one copy over the bus.
      EXPECT_EQ(counters.copies, strategy == CopyStrategy::kPlain    ? 6u
                                 : strategy == CopyStrategy::kStaged ? 1u
                                                                     : 0u);
    }
  }
}

TEST(CopierStrategyTest, OnePieceIsAPlainCopy) {
  for (const CopyStrategy strategy : kAllStrategies) {
    RigOptions options;
    options.strategy = strategy;
    Rig rig(options);
    HandMadeCopy copy(rig, {2, 3, 4}, 1);
    EXPECT_EQ(rig.copier->StrategyOf(copy.args), CopyStrategy::kPlain);
    const auto counters = CountOf(rig, copy);
    EXPECT_EQ(counters.copies, 1u);
    EXPECT_EQ(counters.kernels + counters.batches, 0u);
  }
}

TEST(CopierStrategyTest, BatchesAreBounded) {
  RigOptions options;
  options.strategy = CopyStrategy::kBatched;
  Rig rig(options);
  // 10,000 tokens apart from each other in the pages.
  std::vector<std::byte> pages(10000 * 32);
  PlaneArgs plane{pages.data(), 0, 32, 32, 16, 1, 16};
  std::vector<int64_t> blocks(10000);
  std::iota(blocks.begin(), blocks.end(), 0);
  PagedCopyArgs args;
  args.payload = rig.TakePayload(10000 * 16);
  args.planes = &plane;
  args.num_planes = 1;
  args.blocks = blocks.data();
  args.num_tokens = 10000;
  auto done = rig.copier->Copy(args, nullptr);
  ASSERT_TRUE(done.ok());
  ASSERT_TRUE((*done)->Wait(Soon()).ok());
  rig.device->Synchronize();
  EXPECT_EQ(rig.device->counters().batches, 3u);
  EXPECT_EQ(rig.device->counters().pieces, 10000u);
}

// Bytes of the slot's last use, another request's, would get into the payload.
TEST(CopierStrategyTest, AGatherWithHolesIsNotStaged) {
  RigOptions options;
  options.strategy = CopyStrategy::kStaged;
  Rig rig(options);
  HandMadeCopy first(rig, {5, 1, 3});
  CountOf(rig, first);
  HandMadeCopy holes(rig, {5, -1, 3});
  std::memset(holes.args.payload, 0x77, PagedCopyBytes(holes.args));
  EXPECT_EQ(rig.copier->StrategyOf(holes.args), CopyStrategy::kPlain);
  CountOf(rig, holes);
  for (size_t i = 256; i < 512; ++i) ASSERT_EQ(holes.args.payload[i], std::byte{0x77});
  holes.args.direction = CopyDirection::kToDevice;
  EXPECT_EQ(rig.copier->StrategyOf(holes.args), CopyStrategy::kStaged);
}

TEST(CopierStrategyTest, ATokenBeyondASlotIsNotStaged) {
  RigOptions options;
  options.strategy = CopyStrategy::kStaged;
  options.staging_bytes = 1024;  // slots of 256
  Rig rig(options);
  HandMadeCopy copy(rig, {5, 1, 3});
  EXPECT_EQ(rig.copier->StrategyOf(copy.args), CopyStrategy::kStaged);
  EXPECT_EQ(CountOf(rig, copy).kernels, 6u);  // four tokens a part
  for (PlaneArgs& plane : copy.planes) plane.run_bytes = 257;
  EXPECT_EQ(rig.copier->StrategyOf(copy.args), CopyStrategy::kPlain);
}

TEST(CopierStrategyTest, AsTheCalibrationSays) {
  PoolMemory pool(size_t{1} << 20);
  const auto device = SimulatedDevice::Make();
  // Staged where pieces are small, batched where they are large; the other way round to the device.
  const CopyCalibration calibration({
      {CopyDirection::kToHost, CopyStrategy::kStaged, 64, 16, 9e9},
      {CopyDirection::kToHost, CopyStrategy::kBatched, 64, 16, 1e9},
      {CopyDirection::kToHost, CopyStrategy::kStaged, 4096, 16, 1e9},
      {CopyDirection::kToHost, CopyStrategy::kBatched, 4096, 16, 9e9},
      {CopyDirection::kToDevice, CopyStrategy::kMapped, 64, 16, 9e9},
      {CopyDirection::kToDevice, CopyStrategy::kBatched, 4096, 16, 9e9},
  });
  CopierOptions options;
  options.device = {device, 65536, {}, {}};
  options.pool = {pool.bytes()};
  options.calibration = &calibration;
  auto copier = DeviceCopier::Open(options);
  ASSERT_TRUE(copier.ok());
  EXPECT_EQ(device->counters().copies + device->counters().kernels, 0u);  // taken, not measured
  const std::vector<int64_t> blocks = {3, 1, 2, -1, 5, 9};
  PlaneArgs plane{nullptr, 0, 1 << 20, 64, 32, 2, 32};
  PagedCopyArgs args;
  args.planes = &plane;
  args.num_planes = 1;
  args.tokens_per_block = 4;
  args.blocks = blocks.data();
  args.num_tokens = 12;
  EXPECT_EQ((*copier)->StrategyOf(args), CopyStrategy::kStaged);  // blocks of 256 bytes
  args.tokens_per_block = 64;
  args.first_slot = 7;
  args.num_tokens = 150;
  EXPECT_EQ((*copier)->StrategyOf(args), CopyStrategy::kBatched);  // of 4 KiB, but for the ends
  plane.token_stride = 128;
  EXPECT_EQ((*copier)->StrategyOf(args), CopyStrategy::kStaged);  // tokens of 64 bytes
  plane.token_stride = 64;
  plane.head_stride = 512;
  EXPECT_EQ((*copier)->StrategyOf(args), CopyStrategy::kStaged);  // heads of 32 bytes
  args.direction = CopyDirection::kToDevice;
  EXPECT_EQ((*copier)->StrategyOf(args), CopyStrategy::kMapped);
  args.num_tokens = 0;
  EXPECT_EQ((*copier)->StrategyOf(args), CopyStrategy::kPlain);
  // Two blocks of 256 bytes: those that are left out make them no larger.
  const std::vector<int64_t> holes = {3, -1, -1, -1, -1, -1, -1, 1};
  plane.head_stride = 32;
  args.blocks = holes.data();
  args.tokens_per_block = 4;
  args.first_slot = 0;
  args.num_tokens = 32;
  EXPECT_EQ((*copier)->StrategyOf(args), CopyStrategy::kMapped);
}

}  // namespace
}  // namespace terrace
