// Stores out of a device's pages over many seeds: what was computed before the call is what is stored, though
// the engine uses the blocks again as soon as it may; and each edge of the order, taken away, is noticed.
#include <gtest/gtest.h>

#include "tests/storage/device_store_fixture.h"

namespace terrace {
namespace {

enum class How { kWait, kPoll, kCallback, kReleaseTo };

struct Seen {
  uint64_t stores = 0;
  uint64_t objects = 0;
  uint64_t wrong = 0;
  uint64_t bytes = 0;
};

void StoreOnce(StoreWorld& world, uint64_t prompt, How how, std::mt19937_64& random, Seen& seen) {
  EngineRequest request(world, prompt, 1 + random() % (5 * kTestChunk), random);
  request.Compute();
  std::atomic<int> told{0};
  ASSERT_TRUE(request.Store({.on_source_free = [&](const StoreReport&) { ++told; }}).ok());
  switch (how) {
    case How::kWait:
      break;
    case How::kPoll:
      EXPECT_TRUE(Eventually([&] { return request.handle.IsSourceFree(); }));
      break;
    case How::kCallback:
      EXPECT_TRUE(Eventually([&] { return told > 0; }));
      break;
    case How::kReleaseTo:
      // The blocks of a host's rank are not the streams'.
      if (world.set.last_is_host) break;
      EXPECT_TRUE(request.ReuseOnStreams().ok());
      break;
  }
  const StoreReport report = request.handle.Wait(StoreDeadline());
  if (how != How::kReleaseTo || world.set.last_is_host) request.Reuse();
  EXPECT_TRUE(report.status.ok()) << report.status.ToString();
  EXPECT_EQ(report.stored_tokens, request.tokens.size());
  const uint64_t chunks = (request.tokens.size() + kTestChunk - 1) / kTestChunk;
  EXPECT_EQ(report.stored_objects, chunks * world.set.ranks);
  EXPECT_TRUE(world.Flush());
  const uint64_t loaded = world.LoadAndCompare(request.tokens, prompt, seen.wrong);
  EXPECT_EQ(loaded, request.tokens.size());
  EXPECT_TRUE(Eventually([&] { return told > 0; }));
  EXPECT_EQ(told, 1);
  ++seen.stores;
  seen.objects += report.stored_objects;
}

struct Seeds {
  SimulatedDeviceOptions device = {};
  std::optional<CopyStrategy> strategy = {};  // empty: each in turn
  uint16_t ranks = 1;
  bool last_is_host = false;
  uint64_t num_seeds = 100;
  uint64_t stores_per_seed = 8;
  uint64_t wrong_is_enough = UINT64_MAX;
};

Seen RunSeeds(const Seeds& run) {
  Seen seen;
  for (uint64_t seed = 1; seed <= run.num_seeds && seen.wrong < run.wrong_is_enough; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    StoreWorldOptions options;
    options.device = run.device;
    options.device.seed = seed;
    options.device.delay_of_256 = std::array{0u, 64u, 200u}[random() % 3];
    options.strategy = run.strategy ? *run.strategy : kStoreStrategies[seed % 4];
    options.ranks = run.ranks;
    options.last_is_host = run.last_is_host;
    options.with_disk = seed % 4 == 0;
    StoreWorld world(options);
    for (uint64_t i = 0; i < run.stores_per_seed; ++i)
      StoreOnce(world, seed * 1000 + i, static_cast<How>(random() % 4), random, seen);
    for (const auto& device : world.devices) {
      if (!device) continue;
      EXPECT_EQ(device->counters().unregistered, 0u);
      const MetricLabels labels = {{"device", "simulated:" + std::to_string(device->properties().ordinal)},
                                   {"direction", "to_host"}};
      seen.bytes +=
          static_cast<uint64_t>(world.manager->metrics().Value("terrace_device_copied_bytes_total", labels));
    }
    EXPECT_EQ(world.manager->metrics().Value("terrace_device_copies_in_flight"), 0);
    EXPECT_TRUE(world.IsEmptyAfterClear());
  }
  return seen;
}

TEST(DeviceStoreOrderTest, WhatIsStoredIsWhatWasComputedThoughBlocksAreUsedAgain) {
  const Seen seen = RunSeeds({.num_seeds = 160});
  EXPECT_EQ(seen.wrong, 0u);
  EXPECT_EQ(seen.stores, 160 * 8u);
  EXPECT_GT(seen.objects, 2 * seen.stores);
  EXPECT_GT(seen.bytes, seen.stores * kStoreLayers * kStorePlanes * kStoreRow);
}

TEST(DeviceStoreOrderTest, TwoDevicesInOneCall) {
  const Seen seen = RunSeeds({.ranks = 2, .num_seeds = 60});
  EXPECT_EQ(seen.wrong, 0u);
  EXPECT_EQ(seen.stores, 60 * 8u);
}

TEST(DeviceStoreOrderTest, DeviceAndHostMemoryInOneCall) {
  const Seen seen = RunSeeds({.ranks = 2, .last_is_host = true, .num_seeds = 60});
  EXPECT_EQ(seen.wrong, 0u);
  EXPECT_EQ(seen.stores, 60 * 8u);
}

TEST(DeviceStoreOrderTest, WithoutTheWaitForTheComputingItStoresOtherBytes) {
  Seeds run{.num_seeds = 200, .wrong_is_enough = 1};
  run.device.ignore_waits_to_host = true;
  EXPECT_GT(RunSeeds(run).wrong, 0u);
}

TEST(DeviceStoreOrderTest, WithEventsThatLieItStoresOtherBytes) {
  Seeds run{.num_seeds = 200, .wrong_is_enough = 1};
  run.device.events_lie_to_host = true;
  EXPECT_GT(RunSeeds(run).wrong, 0u);
}

TEST(DeviceStoreOrderTest, WithUnorderedStreamsStagedCopiesAreWrong) {
  Seeds run{.strategy = CopyStrategy::kStaged, .num_seeds = 200, .wrong_is_enough = 1};
  run.device.streams_are_unordered = true;
  EXPECT_GT(RunSeeds(run).wrong, 0u);
}

// A stream that goes on without being told to wait.
TEST(DeviceStoreOrderTest, WithoutTheReleaseItStoresOtherBytes) {
  uint64_t wrong = 0;
  for (uint64_t seed = 1; seed <= 100 && wrong == 0; ++seed) {
    std::mt19937_64 random(seed);
    StoreWorldOptions options;
    options.device.seed = seed;
    StoreWorld world(options);
    EngineRequest request(world, seed, 4 * kTestChunk, random);
    request.Compute();
    ASSERT_TRUE(request.Store().ok());
    request.Reuse();
    EXPECT_TRUE(request.handle.Wait(StoreDeadline()).status.ok());
    EXPECT_TRUE(world.Flush());
    EXPECT_EQ(world.LoadAndCompare(request.tokens, seed, wrong), request.tokens.size());
  }
  EXPECT_GT(wrong, 0u);
}

// Stores that are called one after the other, each going on from the last, with none waited for.
TEST(DeviceStoreOrderTest, APromptInManyStoresThatAreInFlightAtOnce) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    StoreWorldOptions options;
    options.device.seed = seed;
    options.strategy = kStoreStrategies[seed % 4];
    options.with_disk = true;
    StoreWorld world(options);
    EngineRequest request(world, seed, 12 * kTestChunk + 3, random);
    std::vector<StoreHandle> handles;
    for (uint64_t begin = 0; begin < request.tokens.size();) {
      const uint64_t end = std::min(begin + (1 + random() % 3) * kTestChunk, uint64_t{request.tokens.size()});
      request.Compute();
      const std::vector<PagedKvView> views = {request.pages[0]->view(world.streams[0])};
      Result<StoreHandle> handle =
          world.manager->Store(world.root, request.tokens, {begin, end}, views, {.request_id = 1});
      ASSERT_TRUE(handle.ok()) << handle.status().ToString();
      handles.push_back(*std::move(handle));
      begin = end;
    }
    ASSERT_TRUE(handles.back().ReleaseTo(*world.streams[0], StoreDeadline()).ok());
    request.Reuse();
    ASSERT_TRUE(world.Flush());
    for (StoreHandle& handle : handles) EXPECT_TRUE(handle.Wait(StoreDeadline()).status.ok());
    uint64_t wrong = 0;
    EXPECT_EQ(world.LoadAndCompare(request.tokens, seed, wrong), request.tokens.size());
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(world.platters->objects.size(), 13u) << "none came to the disk before the one it hangs on";
    EXPECT_TRUE(world.IsEmptyAfterClear());
  }
}

}  // namespace
}  // namespace terrace
