// Stores out of a device's pages that do not come to their end: cancelled, failed by the device at each of
// its operations, closed, dropped by the executor, without room. Every buffer comes back once the device has
// let go of it, nothing hangs, and what is published is right.
#include <gtest/gtest.h>

#include <thread>

#include "tests/storage/device_store_fixture.h"

namespace terrace {
namespace {

constexpr uint64_t kChunks = 4;

MetricLabels ToHost() { return {{"device", "simulated:0"}, {"direction", "to_host"}}; }

// What the report says is stored is there, with the bytes that were computed; the tokens that are.
uint64_t CheckStored(StoreWorld& world, const EngineRequest& request, const StoreReport& report) {
  EXPECT_TRUE(world.Flush());
  uint64_t wrong = 0;
  const uint64_t loaded = world.LoadAndCompare(request.tokens, request.prompt, wrong);
  EXPECT_EQ(wrong, 0u);
  EXPECT_GE(loaded, report.stored_tokens);
  EXPECT_LE(loaded, report.stored_tokens + kTestChunk);
  return loaded;
}

TEST(DeviceStoreEndTest, ADeviceThatFailsOrRefusesAtEachOperation) {
  for (const CopyStrategy strategy : kStoreStrategies) {
    for (const bool refuses : {false, true}) {
      uint64_t n = 1;
      for (bool all_was_well = false; !all_was_well; ++n) {
        SCOPED_TRACE(std::string(CopyStrategyName(strategy)) + (refuses ? " refuses " : " fails ") +
                     std::to_string(n));
        std::mt19937_64 random(n);
        StoreWorldOptions options;
        options.device.seed = n;
        options.strategy = strategy;
        StoreWorld world(options);
        EngineRequest request(world, n, kChunks * kTestChunk, random);
        request.Compute();
        refuses ? world.devices[0]->RefuseAfter(n) : world.devices[0]->FailAfter(n);
        std::atomic<int> told{0};
        ASSERT_TRUE(request.Store({.on_source_free = [&](const StoreReport&) { ++told; }}).ok());
        if (n % 2 == 0) {
          ASSERT_TRUE(request.ReuseOnStreams().ok());
        }
        const StoreReport report = request.handle.Wait(StoreDeadline());
        all_was_well = report.status.ok();
        if (all_was_well) {
          EXPECT_EQ(report.stored_objects, kChunks);
        } else {
          EXPECT_LT(report.stored_objects, kChunks);
          EXPECT_GT(world.manager->metrics().Value("terrace_device_copy_errors_total", ToHost()), 0);
        }
        EXPECT_EQ(report.stored_tokens, report.stored_objects * kTestChunk);
        EXPECT_EQ(CheckStored(world, request, report), report.stored_tokens);
        EXPECT_EQ(told, 1);
        EXPECT_EQ(world.manager->metrics().Value("terrace_device_copies_in_flight"), 0);
        EXPECT_TRUE(world.IsEmptyAfterClear());
        ASSERT_LT(n, 2000u);
      }
      EXPECT_GT(n, kChunks) << "one operation per chunk at least";
    }
  }
}

TEST(DeviceStoreEndTest, ACancelBeforeAndWhileItCopies) {
  for (int steps_before = 0; steps_before < 3; ++steps_before) {
    SCOPED_TRACE(std::to_string(steps_before) + " steps");
    std::mt19937_64 random(1);
    StoreWorldOptions options;
    options.steps = std::make_shared<StepExecutor>();
    StoreWorld world(options);
    EngineRequest request(world, 7, kChunks * kTestChunk, random);
    request.Compute();
    world.devices[0]->Pause();
    ASSERT_TRUE(request.Store().ok());
    for (int i = 0; i < steps_before; ++i) options.steps->RunOne();
    EXPECT_FALSE(request.handle.IsSourceFree());
    request.handle.Cancel();
    options.steps->RunAll();
    EXPECT_EQ(request.handle.IsSourceFree(), steps_before == 0) << "copies that were enqueued are waited for";
    world.devices[0]->Resume();
    EXPECT_TRUE(world.StepUntil([&] { return request.handle.IsSourceFree(); }));
    const StoreReport report = request.handle.Wait(StoreDeadline());
    EXPECT_EQ(report.status.code(), steps_before == 0 ? StatusCode::kCancelled : StatusCode::kOk);
    EXPECT_EQ(report.stored_objects, steps_before == 0 ? 0 : kChunks);
    CheckStored(world, request, report);
    EXPECT_TRUE(world.IsEmptyAfterClear());
  }
}

// A window of a few chunks: what is enqueued is done before the next ones are.
TEST(DeviceStoreEndTest, ACancelInTheMiddleStoresWhatWasBegun) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    StoreWorldOptions options;
    options.device.seed = seed;
    options.pool_bytes = 24 * (uint64_t{64} << 10);
    StoreWorld world(options);
    EngineRequest request(world, seed, 16 * kTestChunk, random);
    request.Compute();
    ASSERT_TRUE(request.Store().ok());
    for (uint64_t i = 0; i < random() % 2000; ++i) std::this_thread::yield();
    request.handle.Cancel();
    const StoreReport report = request.handle.Wait(StoreDeadline());
    request.Reuse();
    EXPECT_TRUE(report.status.ok() || report.status.code() == StatusCode::kCancelled);
    EXPECT_EQ(report.stored_tokens, report.stored_objects * kTestChunk);
    CheckStored(world, request, report);
    EXPECT_TRUE(world.IsEmptyAfterClear());
  }
}

// A copy that is enqueued, of which the device does not say when it ends.
TEST(DeviceStoreEndTest, WithoutAnEventTheBufferIsKeptUntilThereIsOne) {
  for (uint64_t refused = 1; refused <= 5; ++refused) {
    SCOPED_TRACE(std::to_string(refused) + " events are refused");
    std::mt19937_64 random(refused);
    StoreWorldOptions options;
    options.steps = std::make_shared<StepExecutor>();
    StoreWorld world(options);
    EngineRequest request(world, 3, kChunks * kTestChunk, random);
    request.Compute();
    world.devices[0]->Pause();
    ASSERT_TRUE(request.Store().ok());
    world.devices[0]->RefuseRecords(refused);
    options.steps->RunAll();
    EXPECT_FALSE(request.handle.IsSourceFree());
    EXPECT_GT(world.manager->Stats().pool_used_bytes, 0u);
    if (refused > 1) {
      EXPECT_EQ(request.handle.ReleaseTo(*world.streams[0], TimePoint{}).code(),
                StatusCode::kDeadlineExceeded)
          << "there is nothing to wait for yet";
    }
    world.devices[0]->Resume();
    EXPECT_TRUE(world.StepUntil([&] { return request.handle.IsSourceFree(); }));
    request.Reuse();
    const StoreReport report = request.handle.Wait(StoreDeadline());
    EXPECT_EQ(report.status.code(), StatusCode::kUnavailable) << report.status.ToString();
    EXPECT_EQ(report.stored_objects, 0u);
    CheckStored(world, request, report);
    EXPECT_TRUE(world.IsEmptyAfterClear());
  }
}

TEST(DeviceStoreEndTest, ReleaseToNeedsNoDeviceAndWaitDoes) {
  std::mt19937_64 random(1);
  StoreWorldOptions options;
  options.steps = std::make_shared<StepExecutor>();
  StoreWorld world(options);
  EngineRequest request(world, 3, kChunks * kTestChunk, random);
  request.Compute();
  world.devices[0]->Pause();
  ASSERT_TRUE(request.Store().ok());
  const TimePoint past{};
  EXPECT_EQ(request.handle.ReleaseTo(*world.streams[0], past).code(), StatusCode::kDeadlineExceeded)
      << "nothing is enqueued yet";
  options.steps->RunAll();
  EXPECT_EQ(request.handle.Wait(past).status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(request.handle.ReleaseTo(*world.streams[0], past).ok());
  request.Reuse();
  // A stream of the host waits itself.
  const std::shared_ptr<Device> host = MakeHostDevice();
  const std::shared_ptr<Stream> host_stream = *host->MakeStream();
  EXPECT_EQ(request.handle.ReleaseTo(*host_stream, past).code(), StatusCode::kDeadlineExceeded);
  EXPECT_GT(world.manager->metrics().Value("terrace_device_copies_in_flight"), 0);
  world.devices[0]->Resume();
  EXPECT_TRUE(world.StepUntil([&] { return request.handle.IsSourceFree(); }));
  EXPECT_TRUE(request.handle.ReleaseTo(*host_stream, past).ok());
  EXPECT_TRUE(request.handle.ReleaseTo(*world.streams[0], past).ok());
  EXPECT_EQ(CheckStored(world, request, request.handle.Wait()), request.tokens.size());
}

TEST(DeviceStoreEndTest, HostMemoryIsReleasedToAStreamOnceItIsCopied) {
  std::mt19937_64 random(1);
  StoreWorldOptions options;
  options.steps = std::make_shared<StepExecutor>();
  options.ranks = 2;
  options.last_is_host = true;
  StoreWorld world(options);
  const ComputedPages pages(5, 0, nullptr, {0, kTestChunk}, 8, random);
  pages.Compute();
  const std::vector<Token> tokens = TestTokens(kTestChunk, 5);
  const std::shared_ptr<Device> host = MakeHostDevice();
  // Without a stream, and with one of the host's.
  for (const std::shared_ptr<Stream>& stream : {std::shared_ptr<Stream>(), *host->MakeStream()}) {
    const PagedKvView view = pages.view(stream);
    StoreHandle handle = *world.manager->Store(world.root, tokens, {0, kTestChunk}, {&view, 1});
    EXPECT_EQ(handle.ReleaseTo(*world.streams[0], TimePoint{}).code(), StatusCode::kDeadlineExceeded);
    EXPECT_FALSE(handle.IsSourceFree());
    options.steps->RunAll();
    EXPECT_TRUE(handle.IsSourceFree());
    EXPECT_TRUE(handle.ReleaseTo(*world.streams[0], TimePoint{}).ok());
    EXPECT_TRUE(handle.Wait().status.ok());
  }
  EXPECT_FALSE(StoreHandle().IsSourceFree());
  EXPECT_EQ(StoreHandle().ReleaseTo(*world.streams[0]).code(), StatusCode::kFailedPrecondition);
}

TEST(DeviceStoreEndTest, AnExecutorThatDropsItsWorkFreesTheSourceAfterTheCopies) {
  for (int drop_at = 0; drop_at < 8; ++drop_at) {
    SCOPED_TRACE("dropped after " + std::to_string(drop_at) + " pieces of work");
    std::mt19937_64 random(1);
    StoreWorldOptions options;
    options.steps = std::make_shared<StepExecutor>();
    StoreWorld world(options);
    EngineRequest request(world, 7, kChunks * kTestChunk, random);
    EngineRequest behind(world, 8, kChunks * kTestChunk, random);
    request.Compute();
    world.devices[0]->Pause();
    std::atomic<int> told{0};
    const StoreOptions more{.on_source_free = [&](const StoreReport&) { ++told; }};
    ASSERT_TRUE(request.Store(more).ok() && behind.Store(more).ok());
    for (int i = 0; i < drop_at; ++i) {
      if (i == 2) world.devices[0]->Resume();
      ASSERT_TRUE(i < 2 || Eventually([&] { return !options.steps->is_idle() || told == 2; }));
      options.steps->RunOne();
    }
    options.steps->DropAll();
    if (drop_at > 0 && drop_at < 2) {
      EXPECT_FALSE(request.handle.IsSourceFree()) << "its copies are still on the device";
    }
    world.devices[0]->Resume();
    EXPECT_TRUE(Eventually([&] {
      options.steps->DropAll();
      return told == 2;
    }));
    request.Reuse();
    EXPECT_TRUE(request.handle.Wait(StoreDeadline()).status.ok() ||
                request.handle.Wait(StoreDeadline()).status.code() == StatusCode::kCancelled);
    EXPECT_TRUE(world.Flush());
    uint64_t wrong = 0;
    world.LoadAndCompare(request.tokens, request.prompt, wrong);
    EXPECT_EQ(wrong, 0u);
    // And goes on when the executor does.
    EngineRequest next(world, 9, kChunks * kTestChunk, random);
    next.Compute();
    ASSERT_TRUE(next.Store().ok());
    EXPECT_TRUE(world.StepUntil([&] { return next.handle.IsSourceFree(); }));
    EXPECT_EQ(CheckStored(world, next, next.handle.Wait()), next.tokens.size());
    EXPECT_TRUE(world.IsEmptyAfterClear());
    EXPECT_TRUE(world.manager->Close().ok());
  }
}

TEST(DeviceStoreEndTest, CloseWaitsForTheDevice) {
  std::mt19937_64 random(1);
  StoreWorld world({.ranks = 2, .with_disk = true});
  EngineRequest request(world, 7, kChunks * kTestChunk, random);
  request.Compute();
  for (const auto& device : world.devices) device->Pause();
  ASSERT_TRUE(request.Store().ok());
  ASSERT_TRUE(request.handle.ReleaseTo(*world.streams[0], StoreDeadline()).ok());
  const Status closed = world.manager->Close(std::chrono::steady_clock::now());
  EXPECT_EQ(closed.code(), StatusCode::kDeadlineExceeded) << closed.ToString();
  EXPECT_FALSE(request.handle.IsSourceFree());
  EXPECT_EQ(world.manager->Close(std::chrono::steady_clock::now()).code(), StatusCode::kDeadlineExceeded);
  std::thread later([&] {
    for (const auto& device : world.devices) device->Resume();
  });
  EXPECT_TRUE(world.manager->Close().ok());
  later.join();
  EXPECT_TRUE(request.handle.IsSourceFree()) << "nothing of it is running any more";
  EXPECT_TRUE(world.manager->Close().ok());
  EXPECT_EQ(request.Store().code(), StatusCode::kFailedPrecondition);
  world.manager.reset();
  for (const auto& device : world.devices) EXPECT_EQ(device->counters().registered_bytes, 0u);
}

TEST(DeviceStoreEndTest, CloseInTheMiddleDrains) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    StoreWorldOptions options;
    options.device.seed = seed;
    options.strategy = kStoreStrategies[seed % 4];
    options.with_disk = true;
    StoreWorld world(options);
    EngineRequest request(world, seed, kChunks * kTestChunk, random);
    EngineRequest other(world, seed + 1000, kChunks * kTestChunk, random);
    request.Compute();
    other.Compute();
    ASSERT_TRUE(request.Store().ok() && other.Store().ok());
    for (uint64_t i = 0; i < random() % 500; ++i) std::this_thread::yield();
    if (seed % 2 == 0) {
      EXPECT_TRUE(world.manager->Close().ok());
    }
    world.manager.reset();
    EXPECT_TRUE(request.handle.IsSourceFree() && other.handle.IsSourceFree());
    EXPECT_TRUE(request.handle.Wait().status.ok()) << request.handle.Wait().status.ToString();
    EXPECT_EQ(world.devices[0]->counters().registered_bytes, 0u);
    EXPECT_EQ(world.platters->objects.size(), 2 * kChunks);
  }
}

TEST(DeviceStoreEndTest, AFullPoolEndsItEarly) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    StoreWorldOptions options;
    options.device.seed = seed;
    options.ranks = static_cast<uint16_t>(1 + seed % 2);
    options.pool_bytes = 12 * (uint64_t{64} << 10);
    StoreWorld world(options);
    // Buffers in the hands of a caller.
    Result<PrepareResult> held =
        world.manager->Prepare(world.root, TestTokens(5 * kTestChunk, 99), {0, 5 * kTestChunk},
                               [&](TokenRange, ObjectPart part) -> Result<uint64_t> {
                                 return world.spec.PayloadBytes(part, kTestChunk);
                               });
    ASSERT_TRUE(held.ok() && held->status.ok());
    EngineRequest request(world, seed, 16 * kTestChunk, random);
    request.Compute();
    world.devices[0]->Pause();
    ASSERT_TRUE(request.Store().ok());
    if (seed % 3 != 0) world.devices[0]->Resume();
    // More than the window is not enqueued while the device stands still.
    const Status released = request.handle.ReleaseTo(*world.streams[0], TimePoint{});
    EXPECT_TRUE(released.ok() || released.code() == StatusCode::kDeadlineExceeded);
    world.devices[0]->Resume();
    const StoreReport report = request.handle.Wait(StoreDeadline());
    request.Reuse();
    if (!report.status.ok()) {
      EXPECT_EQ(report.status.code(), StatusCode::kResourceExhausted);
    }
    EXPECT_LE(report.stored_tokens, request.tokens.size());
    EXPECT_TRUE(world.Flush());
    uint64_t wrong = 0;
    world.LoadAndCompare(request.tokens, seed, wrong);
    EXPECT_EQ(wrong, 0u);
    held->chunks.clear();
    EXPECT_TRUE(world.IsEmptyAfterClear());
  }
}

TEST(DeviceStoreEndTest, BuffersOfAFailedStoreAreOrphansUntilTheDeviceLetsGo) {
  std::mt19937_64 random(1);
  StoreWorldOptions options;
  options.ranks = 2;
  StoreWorld world(options);
  EngineRequest request(world, 7, kChunks * kTestChunk, random);
  request.Compute();
  world.devices[1]->Pause();
  world.devices[0]->FailAfter(1);
  ASSERT_TRUE(request.Store().ok());
  const auto orphans = [&] { return world.manager->metrics().Value("terrace_pool_orphaned_bytes"); };
  EXPECT_TRUE(Eventually([&] { return orphans() > 0; })) << "the second device still writes there";
  EXPECT_FALSE(request.handle.IsSourceFree());
  world.devices[1]->Resume();
  const StoreReport report = request.handle.Wait(StoreDeadline());
  EXPECT_FALSE(report.status.ok());
  EXPECT_EQ(report.stored_objects, 0u);
  EXPECT_EQ(report.stored_tokens, 0u);
  EXPECT_TRUE(world.IsEmptyAfterClear());
  EXPECT_EQ(orphans(), 0);
}

TEST(DeviceStoreEndTest, DevicesAreCheckedAtOpenAndInTheCall) {
  StoreWorld world({});
  const auto opened = [&](std::vector<DeviceOptions> devices) {
    StorageOptions options;
    options.pool_bytes = 1 << 20;
    options.devices = std::move(devices);
    return StorageManager::Open(options, {}).status();
  };
  const auto names = [](const Status& status, std::string_view field) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.ToString().find(field), std::string::npos) << status.ToString();
  };
  const std::shared_ptr<Device> other = SimulatedDevice::Make({.has_kernels = false});
  names(opened({DeviceOptions{}}), "devices[0]");
  names(opened({{.device = other}, {.device = other}}), "devices[1]");
  names(opened({{.device = other, .to_host = CopyStrategy::kMapped}}), "to_host");
  // Of a device that the manager does not have.
  std::mt19937_64 random(1);
  const ComputedPages pages(5, 0, nullptr, {0, kTestChunk}, 8, random);
  const std::vector<Token> tokens = TestTokens(kTestChunk);
  const PagedKvView view = pages.view(*other->MakeStream());
  EXPECT_EQ(world.manager->Store(world.root, tokens, {0, kTestChunk}, {&view, 1}).status().code(),
            StatusCode::kInvalidArgument);
  ManagerFixture without;
  without.Open(world.spec);
  EXPECT_EQ(without.manager->Store(without.root, tokens, {0, kTestChunk}, {&view, 1}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(world.manager->Close().ok()) << "nothing was kept of the refused call";
}

}  // namespace
}  // namespace terrace
