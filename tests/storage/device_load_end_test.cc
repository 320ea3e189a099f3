// Loads into a device's pages that wait, end early or fail: what the report says is valid is, nothing is
// written once a call has returned that promises it, and every buffer comes back.
#include <gtest/gtest.h>

#include <condition_variable>
#include <thread>

#include "terrace/nvme_backend.h"
#include "tests/storage/device_load_fixture.h"
#include "tests/support/step_executor.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

constexpr TimePoint kPast = TimePoint(std::chrono::nanoseconds(0));
constexpr DevicePages::Shape kMiddle = {.first_token = 1010, .num_tokens = 40};

TokenRange All(const StoredPrompt& prompt) { return {0, prompt.tokens.size()}; }

// Work of the engine's that stands on its streams until it is let go.
class Gate {
 public:
  explicit Gate(DeviceWorld& world) {
    for (uint16_t rank = 0; rank < kRanks; ++rank) {
      world.devices[rank]->Enqueue(*world.streams[rank], [state = state_] {
        std::unique_lock lock(state->mutex);
        state->changed.wait(lock, [&] { return state->is_open; });
      });
    }
  }
  ~Gate() { Open(); }
  void Open() {
    std::lock_guard lock(state_->mutex);
    state_->is_open = true;
    state_->changed.notify_all();
  }
  bool is_open() const {
    std::lock_guard lock(state_->mutex);
    return state_->is_open;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_open = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

uint64_t Operations(const DeviceWorld& world) {
  uint64_t n = 0;
  for (const auto& device : world.devices) {
    const SimulatedDevice::Counters c = device->counters();
    n += c.copies + c.batches + c.kernels;
  }
  return n;
}

TEST_F(DeviceLoadTest, AStreamWaitsForCopiesThatTheHostDoesNotWaitFor) {
  DeviceWorld world(*wide_, {});
  std::mt19937_64 random(1);
  DeviceLoad load(world, All(*wide_), LoadOrder::kLayerMajor, kMiddle, random);
  Gate gate(world);
  load.Start();
  for (uint32_t layer = 0; layer < kDeviceLoadLayers; ++layer)
    EXPECT_TRUE(load.UseLayerOnStreams(layer).ok());
  EXPECT_TRUE(load.handle.WaitOn(*world.streams[0], InAMinute()).ok());
  EXPECT_EQ(load.handle.WaitLayer(0, kPast).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(load.handle.report().loaded_tokens, 0u);
  EXPECT_TRUE(load.IsOld());
  EXPECT_EQ(load.num_seen, 0u);
  gate.Open();
  for (uint32_t layer = 0; layer < kDeviceLoadLayers; ++layer) {
    EXPECT_TRUE(load.handle.WaitLayer(layer, InAMinute()).ok());
    load.UseLayer(layer);
  }
  const LoadReport report = load.handle.Wait(InAMinute());
  EXPECT_TRUE(report.status.ok()) << report.status.ToString();
  EXPECT_EQ(report.loaded_objects, 3u * kRanks);
  EXPECT_TRUE(load.IsRight());
  world.Synchronize();
  EXPECT_EQ(load.num_seen, kRanks * (1 + kDeviceLoadLayers));
  EXPECT_EQ(load.layer_seen_wrong + load.old_seen_wrong, 0u);
  const Status beyond = load.handle.WaitLayerOn(kDeviceLoadLayers, *world.streams[0], InAMinute());
  EXPECT_EQ(beyond.code(), StatusCode::kInvalidArgument);
  load.handle = LoadHandle();
  EXPECT_TRUE(world.BuffersAreBack());
}

// Bytes are counted: a disk that gives one batch after another.
TEST_F(DeviceLoadTest, TheFirstLayerIsOnTheDeviceBeforeHalfOfTheBytesAreRead) {
  DeviceWorld world(*wide_, {.pool_bytes = 64 << 20});
  MemoryPlatters& disk = *world.platters;
  std::mt19937_64 random(2);
  DeviceLoad load(world, All(*wide_), LoadOrder::kLayerMajor, kMiddle, random);
  {
    std::lock_guard lock(disk.mutex);
    disk.holding_gets = true;
  }
  load.Start();
  EXPECT_EQ(load.handle.WaitLayerOn(0, *world.streams[0], kPast).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(load.handle.WaitOn(*world.streams[0], kPast).code(), StatusCode::kDeadlineExceeded);
  uint64_t all_bytes = 0;
  for (const auto& [id, payload] : wide_->payloads) all_bytes += payload.size();
  const auto read_bytes = [&] {
    std::lock_guard lock(disk.mutex);
    return disk.get_bytes;
  };
  while (read_bytes() < all_bytes / 2) {
    std::function<void()> first;
    {
      std::lock_guard lock(disk.mutex);
      if (disk.held.empty()) break;
      first = std::move(disk.held.front());
      disk.held.erase(disk.held.begin());
    }
    first();
    if (load.handle.WaitLayerOn(0, *world.streams[0], kPast).ok() && load.handle.report().loaded_layers > 0)
      break;
    // What was read last may be on its way to the device.
    if (read_bytes() * kDeviceLoadLayers >= all_bytes) {
      EXPECT_TRUE(load.UseLayerOnStreams(0).ok());
      EXPECT_TRUE(load.handle.WaitLayer(0, InAMinute()).ok());
      break;
    }
  }
  EXPECT_GE(load.handle.report().loaded_layers, 1u);
  load.UseLayer(0);
  EXPECT_LT(read_bytes(), all_bytes / 2);
  EXPECT_GT(read_bytes(), 0u);
  {
    std::lock_guard lock(disk.mutex);
    disk.holding_gets = false;
  }
  disk.ReleaseHeld();
  EXPECT_TRUE(load.handle.Wait(InAMinute()).status.ok());
  EXPECT_TRUE(load.IsRight());
  world.Synchronize();
  EXPECT_EQ(load.layer_seen_wrong, 0u);
}

// Cancel, the handle's end, the deadline of Wait, and Close: at any moment.
enum class End { kCancel, kHandle, kDeadline, kClose };

TEST_F(DeviceLoadTest, NothingIsWrittenOnceALoadHasEndedEarly) {
  uint64_t ended_early = 0, some_were_loaded = 0;
  for (uint64_t seed = 1; seed <= 180 / kSeedShare; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const bool is_wide = seed % 6 == 0;
    const StoredPrompt& prompt = is_wide ? *wide_ : *small_;
    DeviceWorldOptions options;
    options.device.seed = seed;
    options.device.delay_of_256 = 200;
    options.strategy = static_cast<CopyStrategy>(1 + seed % 4);
    options.with_host = seed % 2 == 0;
    if (seed % 3 != 0) options.window_bytes = 400 << 10;  // of small chunks a few, so that it takes a while
    DeviceWorld world(prompt, options);
    const LoadOrder order = random() % 2 == 0 ? LoadOrder::kChunkMajor : LoadOrder::kLayerMajor;
    const DevicePages::Shape shape = is_wide ? kMiddle : DevicePages::Shape{3, 190, 8, 16};
    DeviceLoad load(world, All(prompt), order, shape, random);
    load.Start();
    const uint64_t wanted = random() % 3 == 0 ? 0 : random() % (prompt.payloads.size() + 1);
    if (!Eventually([&] { return load.handle.report().loaded_objects >= wanted; })) ADD_FAILURE();
    LoadReport report;
    const auto end = static_cast<End>(seed / 4 % 4);
    if (end == End::kCancel) load.handle.Cancel();
    if (end == End::kDeadline) (void)load.handle.Wait(kPast);
    if (end == End::kClose) {
      EXPECT_TRUE(world.manager->Close().ok());
    }
    if (end == End::kHandle) {
      load.handle = LoadHandle();
    } else {
      report = load.handle.report();
      EXPECT_TRUE(load.IsValid(report));
      ended_early += report.status.ok() ? 0 : 1;
      some_were_loaded += report.loaded_tokens > 0 && !report.status.ok() ? 1 : 0;
    }
    std::vector<std::vector<std::byte>> then;
    for (const auto& p : load.pages) then.emplace_back(p->bytes().begin(), p->bytes().end());
    world.Synchronize();
    for (const auto& p : load.pages)
      EXPECT_TRUE(std::equal(p->bytes().begin(), p->bytes().end(), then[p->rank].begin()));
    EXPECT_EQ(load.old_seen_wrong, 0u);
    load.handle = LoadHandle();
    if (end == End::kClose) {
      EXPECT_EQ(world.manager->Stats().pool_used_bytes, 0u);
    } else {
      EXPECT_TRUE(world.BuffersAreBack());
    }
  }
  EXPECT_GT(ended_early, 30u / kSeedShare);
  EXPECT_GT(some_were_loaded, 5u);
}

// Copies that wait for the engine's own work: whoever ends the load waits with them.
TEST_F(DeviceLoadTest, ACallThatEndsALoadReturnsBehindTheEnginesWork) {
  for (const End end : {End::kCancel, End::kHandle, End::kDeadline, End::kClose}) {
    DeviceWorld world(*small_, {});
    std::mt19937_64 random(3);
    DeviceLoad load(world, All(*small_), LoadOrder::kChunkMajor, {.num_tokens = 190}, random);
    Gate gate(world);
    load.Start();
    EXPECT_TRUE(load.handle.WaitOn(*world.streams[0], InAMinute()).ok());
    EXPECT_TRUE(load.IsOld());
    std::atomic<bool> has_returned_early{false};
    std::thread ender([&] {
      if (end == End::kCancel) load.handle.Cancel();
      if (end == End::kDeadline) (void)load.handle.Wait(kPast);
      if (end == End::kClose) (void)world.manager->Close();
      if (end == End::kHandle) load.handle = LoadHandle();
      has_returned_early = !gate.is_open();
    });
    for (int i = 0; i < 20; ++i) std::this_thread::yield();  // a chance to return too early
    gate.Open();
    ender.join();
    EXPECT_FALSE(has_returned_early);
    // Everything was enqueued: it is loaded, and counts.
    EXPECT_TRUE(load.IsRight());
    if (end == End::kHandle) continue;
    EXPECT_TRUE(load.handle.report().status.ok());
    EXPECT_EQ(load.handle.report().loaded_tokens, small_->tokens.size());
  }
}

// No copy's end needs the executor: not a cancel on its only thread either.
TEST_F(DeviceLoadTest, TheEndOfCopiesNeedsNoExecutor) {
  const auto steps = std::make_shared<StepExecutor>();
  DeviceWorld world(*small_, {.executor = steps});
  std::mt19937_64 random(4);
  DeviceLoad load(world, All(*small_), LoadOrder::kChunkMajor, {.num_tokens = 190}, random);
  load.Start();
  EXPECT_TRUE(load.IsOld());
  steps->RunAll();
  EXPECT_TRUE(Eventually([&] { return load.handle.report().loaded_tokens == small_->tokens.size(); }));
  EXPECT_TRUE(load.IsRight());
  DeviceLoad other(world, All(*small_), LoadOrder::kChunkMajor, {.num_tokens = 190}, random);
  Gate gate(world);
  other.Start();
  steps->RunAll();
  gate.Open();
  other.handle.Cancel();
  EXPECT_TRUE(other.IsRight());
  DeviceLoad unrun(world, All(*small_), LoadOrder::kChunkMajor, {.num_tokens = 190}, random);
  unrun.Start();
  unrun.handle.Cancel();
  steps->RunAll();
  EXPECT_TRUE(unrun.IsOld());
  EXPECT_EQ(unrun.handle.report().status.code(), StatusCode::kCancelled);
}

struct Fault {
  bool refuses = false;
  CopyStrategy strategy = CopyStrategy::kPlain;
  LoadOrder order = LoadOrder::kChunkMajor;
};

// The n-th operation of the first rank's device fails; true: the load came so far.
bool FailsAt(const StoredPrompt& prompt, const Fault& fault, const DevicePages::Shape& shape, uint64_t n) {
  SCOPED_TRACE("operation " + std::to_string(n) + " by " + CopyStrategyName(fault.strategy));
  DeviceWorldOptions options;
  options.device.seed = n;
  options.strategy = fault.strategy;
  DeviceWorld world(prompt, options);
  std::mt19937_64 random(n);
  DeviceLoad load(world, All(prompt), fault.order, shape, random);
  if (fault.refuses) {
    world.devices[0]->RefuseAfter(n);
  } else {
    world.devices[0]->FailAfter(n);
  }
  load.Start();
  const bool on_stream = n % 2 == 0;
  if (on_stream && fault.order == LoadOrder::kLayerMajor) {
    for (uint32_t layer = 0; layer < kDeviceLoadLayers; ++layer)
      (void)load.handle.WaitLayerOn(layer, *world.streams[1], InAMinute());
  } else if (on_stream) {
    (void)load.handle.WaitOn(*world.streams[1], InAMinute());
  }
  const LoadReport report = load.handle.Wait(InAMinute());
  EXPECT_TRUE(load.IsValid(report, /*may_be_garbage=*/true));
  EXPECT_EQ(report.status.ok(), load.IsRight());
  EXPECT_EQ(report.status.ok(), report.recompute_from == prompt.tokens.size());
  if (!report.status.ok() && fault.order == LoadOrder::kLayerMajor) {
    EXPECT_LT(report.loaded_layers, kDeviceLoadLayers);
    EXPECT_FALSE(load.handle.WaitLayer(kDeviceLoadLayers - 1, InAMinute()).ok());
    EXPECT_FALSE(load.handle.WaitLayerOn(kDeviceLoadLayers - 1, *world.streams[1], InAMinute()).ok());
    EXPECT_FALSE(load.handle.WaitOn(*world.streams[1], InAMinute()).ok());
  }
  const auto then = std::vector<std::byte>(load.pages[0]->bytes().begin(), load.pages[0]->bytes().end());
  world.Synchronize();
  EXPECT_TRUE(std::equal(then.begin(), then.end(), load.pages[0]->bytes().begin()));
  load.handle = LoadHandle();
  EXPECT_TRUE(world.BuffersAreBack());
  return !report.status.ok();
}

TEST_F(DeviceLoadTest, AnErrorOfEachOperationIsReportedWithWhatIsValid) {
  for (const bool refuses : {false, true}) {
    for (const CopyStrategy strategy :
         {CopyStrategy::kPlain, CopyStrategy::kBatched, CopyStrategy::kStaged, CopyStrategy::kMapped}) {
      uint64_t n = 1;
      while (FailsAt(*small_, {refuses, strategy}, {.first_token = 24, .num_tokens = 16}, n) && n < 2000)
        n += n < 8 ? 1 : 13;
      EXPECT_GT(n, 1u);
      EXPECT_LT(n, 2000u);
    }
  }
}

TEST_F(DeviceLoadTest, AnErrorOfEachOperationLeavesTheLayersBeforeIt) {
  uint64_t failures = 0;
  for (const bool refuses : {false, true}) {
    for (const CopyStrategy strategy : {CopyStrategy::kBatched, CopyStrategy::kMapped}) {
      const DevicePages::Shape shape = {.first_token = 1000, .num_tokens = 30};
      uint64_t n = 1;
      while (FailsAt(*wide_, {refuses, strategy, LoadOrder::kLayerMajor}, shape, n) && n < 100) ++n;
      failures += n - 1;
    }
  }
  EXPECT_EQ(failures, 4u * 2 * kDeviceLoadLayers) << "two chunks of the view, layer by layer";
}

// An event that the device refuses: for the engine's last use the load does not begin, for a copy it fails
// behind what is enqueued.
TEST_F(DeviceLoadTest, ARefusedEventFailsWhatItStandsFor) {
  const auto steps = std::make_shared<StepExecutor>();
  DeviceWorld world(*small_, {.executor = steps});
  std::mt19937_64 random(8);
  DeviceLoad refused(world, All(*small_), LoadOrder::kChunkMajor, {.num_tokens = 190}, random);
  world.devices[1]->RefuseRecords(1);
  refused.Start();
  EXPECT_EQ(refused.handle.report().status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(refused.handle.Wait(InAMinute()).recompute_from, 0u);
  EXPECT_TRUE(refused.IsOld());
  refused.handle = LoadHandle();
  // The copy's own event, then also the fence behind it: what it reads stays until the device is done with
  // it.
  for (const uint64_t num_refused : {1, 2, 40}) {
    DeviceLoad unfenced(world, All(*small_), LoadOrder::kChunkMajor, {.num_tokens = 190}, random);
    unfenced.Start();
    world.devices[0]->RefuseRecords(num_refused);
    steps->RunAll();
    const LoadReport report = unfenced.handle.Wait(InAMinute());
    EXPECT_EQ(report.status.code(), StatusCode::kUnavailable);
    EXPECT_EQ(report.recompute_from, 0u);
    EXPECT_TRUE(unfenced.IsValid(report));
  }
  steps->RunAll();
  DeviceLoad load(world, All(*small_), LoadOrder::kChunkMajor, {.num_tokens = 190}, random);
  load.Start();
  steps->RunAll();
  EXPECT_TRUE(load.handle.Wait(InAMinute()).status.ok());
  EXPECT_TRUE(load.IsRight());
  load.handle = LoadHandle();
  steps->RunAll();
  EXPECT_TRUE(world.BuffersAreBack());
}

// A disk that is one: read by io_uring into the pool that the device copies out of.
TEST_F(DeviceLoadTest, FromNvmeToADeviceWithoutACopyOnTheHost) {
  TemporaryDirectory directory;
  DeviceWorld world(*wide_, {.strategy = CopyStrategy::kStaged});
  const auto open = [&](std::vector<DeviceOptions> devices) {
    StorageOptions options;
    options.pool_bytes = 48 << 20;
    options.huge_pages = false;
    options.log = MakeNullLogSink();
    options.devices = std::move(devices);
    std::vector<Tier> tiers;
    tiers.push_back({.backend = *MakeHostBackend({.capacity_bytes = options.pool_bytes})});
    tiers.push_back(
        {.backend = *MakeNvmeBackend(
             {.directory = directory / "cache", .capacity_bytes = 128 << 20, .segment_bytes = 32 << 20})});
    world.manager = *StorageManager::Open(options, std::move(tiers));
    world.root = *world.manager->Root(wide_->spec);
  };
  std::vector<DeviceOptions> devices = world.options.devices;
  world.manager.reset();  // the devices' pool goes with it
  open({});
  wide_->StoreAgain(*world.manager, world.root);
  ASSERT_TRUE(world.manager->Flush().ok());
  ASSERT_TRUE(world.manager->Close().ok());
  open(devices);
  for (const LoadOrder order : {LoadOrder::kLayerMajor, LoadOrder::kChunkMajor}) {
    std::mt19937_64 random(9);
    DeviceLoad load(world, All(*wide_), order, kMiddle, random);
    load.Start();
    if (order == LoadOrder::kLayerMajor) {
      for (uint32_t layer = 0; layer < kDeviceLoadLayers; ++layer)
        EXPECT_TRUE(load.UseLayerOnStreams(layer).ok());
    }
    const LoadReport report = load.handle.Wait(InAMinute());
    EXPECT_TRUE(report.status.ok()) << report.status.ToString();
    EXPECT_TRUE(load.IsRight());
    world.Synchronize();
    EXPECT_EQ(load.layer_seen_wrong + load.old_seen_wrong, 0u);
  }
  EXPECT_GT(world.manager->Stats().tiers[1].hits, 0u);
  EXPECT_GT(world.manager->Stats().tiers[0].hits, 0u);
  for (const auto& device : world.devices) EXPECT_EQ(device->counters().unregistered, 0u);
}

// A frame that is wrong on the disk: what was enqueued before is valid, nothing of the wrong piece is copied.
TEST_F(DeviceLoadTest, AWrongPieceOfTheDiskEndsTheLoadAtItsChunk) {
  StoredPrompt prompt(16, 16, 6 * 16);
  const ObjectId id{prompt.keys[3], {0, 1}};
  {
    std::lock_guard lock(prompt.platters->mutex);
    std::vector<std::byte>& frame = prompt.platters->objects.at(id).frame;
    frame[frame.size() - 4096 + 100] ^= std::byte{1};
  }
  DeviceWorld world(prompt, {});
  std::mt19937_64 random(5);
  DeviceLoad load(world, All(prompt), LoadOrder::kChunkMajor, {.num_tokens = 96}, random);
  load.Start();
  (void)load.handle.WaitOn(*world.streams[0], InAMinute());
  const LoadReport report = load.handle.Wait(InAMinute());
  EXPECT_EQ(report.status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(report.recompute_from, 3 * 16u);
  EXPECT_TRUE(load.IsValid(report));
  EXPECT_FALSE(load.IsRight());
}

TEST_F(DeviceLoadTest, TwoLoadsOfMoreThanThePoolFinish) {
  // 7 MiB: a part of a payload lies at the pool's begin, with where the payload would begin before it.
  for (const uint64_t window_bytes : {uint64_t{0}, uint64_t{2} << 20, uint64_t{1}, uint64_t{7} << 20}) {
    for (const bool with_host : {true, false}) {
      SCOPED_TRACE(window_bytes);
      DeviceWorldOptions options;
      if (window_bytes == uint64_t{7} << 20) options.strategy = CopyStrategy::kMapped;
      options.device.delay_of_256 = 128;
      options.pool_bytes = 9 << 20;  // of 18
      options.window_bytes = window_bytes;
      options.with_host = with_host;
      DeviceWorld world(*wide_, options);
      std::vector<std::thread> engines;
      std::vector<std::unique_ptr<DeviceLoad>> loads;
      for (uint64_t i = 0; i < 2; ++i) {
        std::mt19937_64 random(i);
        const LoadOrder order = i == 0 ? LoadOrder::kLayerMajor : LoadOrder::kChunkMajor;
        loads.push_back(std::make_unique<DeviceLoad>(world, All(*wide_), order, kMiddle, random));
        loads.back()->Start();
      }
      for (uint64_t i = 0; i < 2; ++i) {
        engines.emplace_back([&load = *loads[i]] {
          const LoadReport report = load.handle.Wait(InAMinute());
          EXPECT_TRUE(report.status.ok()) << report.status.ToString();
        });
      }
      for (std::thread& engine : engines) engine.join();
      for (const auto& load : loads) EXPECT_TRUE(load->IsRight());
      loads.clear();
      EXPECT_TRUE(world.BuffersAreBack());
    }
  }
}

TEST_F(DeviceLoadTest, ALoadThatStarvesGetsWhatCopiesInFlightGiveBack) {
  DeviceWorldOptions options;
  options.pool_bytes = 1 << 20;  // 8 frames of small chunks, two of them for stores
  options.with_host = false;
  DeviceWorld world(*small_, options);
  std::mt19937_64 random(6);
  DeviceLoad load(world, All(*small_), LoadOrder::kChunkMajor, {.num_tokens = 190}, random);
  Gate gate(world);
  load.Start();
  EXPECT_EQ(load.handle.WaitOn(*world.streams[0], kPast).code(), StatusCode::kDeadlineExceeded);
  // More time than a load that starves has: its copies hold the pool, not others.
  world.clock.Advance(std::chrono::hours(2));
  EXPECT_EQ(load.handle.WaitOn(*world.streams[0], kPast).code(), StatusCode::kDeadlineExceeded);
  gate.Open();
  const LoadReport report = load.handle.Wait(InAMinute());
  EXPECT_TRUE(report.status.ok()) << report.status.ToString();
  EXPECT_TRUE(load.IsRight());
}

TEST_F(DeviceLoadTest, HostMemoryIsWaitedForAsBeforeAndForeignDevicesAreRefused) {
  DeviceWorld world(*wide_, {});
  std::mt19937_64 random(7);
  {  // null streams, and the stream of a device of the host
    DeviceLoad load(world, All(*wide_), LoadOrder::kLayerMajor, kMiddle, random);
    load.views[0].stream = nullptr;
    load.views[1].stream = *MakeHostDevice()->MakeStream();
    load.Start();
    for (uint32_t layer = 0; layer < kDeviceLoadLayers; ++layer) {
      EXPECT_TRUE(load.handle.WaitLayerOn(layer, *world.streams[0], InAMinute()).ok());
      load.UseLayer(layer);
    }
    EXPECT_TRUE(load.handle.WaitOn(*world.streams[0], InAMinute()).ok());
    EXPECT_TRUE(load.IsRight());
    EXPECT_EQ(load.layer_seen_wrong, 0u);
    EXPECT_EQ(Operations(world), 0u);
  }
  {  // one rank on the host, one on a device
    DeviceLoad load(world, All(*wide_), LoadOrder::kLayerMajor, kMiddle, random);
    load.views[0].stream = nullptr;
    load.Start();
    EXPECT_TRUE(load.UseLayerOnStreams(0).ok());
    EXPECT_TRUE(load.handle.Wait(InAMinute()).status.ok());
    EXPECT_TRUE(load.IsRight());
    EXPECT_GT(Operations(world), 0u);
  }
  {
    DeviceLoad load(world, All(*wide_), LoadOrder::kChunkMajor, kMiddle, random);
    load.views[1].stream = SimulatedDevice::Make()->EngineStream();
    load.Start();
    EXPECT_EQ(load.handle.Wait(InAMinute()).status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(load.handle.WaitOn(*world.streams[0]).code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(load.IsOld());
  }
  DeviceLoad by_chunk(world, All(*wide_), LoadOrder::kChunkMajor, kMiddle, random);
  by_chunk.Start();
  EXPECT_EQ(by_chunk.handle.WaitLayerOn(0, *world.streams[0]).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(LoadHandle().WaitOn(*world.streams[0]).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(by_chunk.handle.Wait(InAMinute()).status.ok());
}

}  // namespace
}  // namespace terrace
