// Layer-major loads.
#include <gtest/gtest.h>

#include <thread>

#include "tests/storage/load_fixture.h"
#include "tests/support/step_executor.h"

namespace terrace {
namespace {

constexpr TimePoint kSoon = TimePoint(std::chrono::nanoseconds(0));  // has passed

LoadHandle LoadByLayer(LoadFixture& f, const Lease& lease, const SinkMemory& memory) {
  return f.manager->Load(lease, {0, lease.matched_tokens()}, memory.sink(), LoadOrder::kLayerMajor);
}

// Layers [begin, end) of a chunk in memory are what was stored.
bool LayersAreRight(const LoadFixture& f, const SinkMemory& memory, size_t chunk, uint32_t begin,
                    uint32_t end) {
  const std::vector<std::byte> payload = f.Payload(chunk);
  const uint64_t layer_bytes = payload.size() / f.spec.layers.size();
  return std::memcmp(memory.objects[chunk].data() + begin * layer_bytes, payload.data() + begin * layer_bytes,
                     (end - begin) * layer_bytes) == 0;
}

uint64_t ReadBytes(LoadFixture& f) {
  std::lock_guard lock(f.platters->mutex);
  return f.platters->get_bytes;
}

// A throttled disk: one batch after another, until `bytes` were read.
void ReleaseUntilRead(LoadFixture& f, uint64_t bytes) {
  while (ReadBytes(f) < bytes) {
    std::function<void()> first;
    {
      std::lock_guard lock(f.platters->mutex);
      ASSERT_FALSE(f.platters->held.empty());
      first = std::move(f.platters->held.front());
      f.platters->held.erase(f.platters->held.begin());
    }
    first();
  }
}

TEST(LoadLayerTest, TheFirstLayerIsThereBeforeHalfOfTheBytesAreRead) {
  LoadFixture f;
  f.options.load_window_bytes = 48 << 20;
  f.Begin(8 * kTestChunk);
  f.platters->holding_gets = true;
  const Lease lease = f.Look();
  SinkMemory memory(8, kWidePayload);
  LoadHandle handle = LoadByLayer(f, lease, memory);
  EXPECT_EQ(handle.WaitLayer(0, kSoon).code(), StatusCode::kDeadlineExceeded);
  // No more than the headers and the first layer.
  ReleaseUntilRead(f, 8 * (kWideLayerBytes + 4096));
  EXPECT_TRUE(handle.WaitLayer(0).ok());
  EXPECT_LT(ReadBytes(f), 8 * kWidePayload / 2);
  for (size_t chunk = 0; chunk < 8; ++chunk) EXPECT_TRUE(LayersAreRight(f, memory, chunk, 0, 1));
  f.platters->holding_gets = false;
  f.platters->ReleaseHeld();
  const LoadReport report = handle.Wait();
  ASSERT_TRUE(report.status.ok()) << report.status.ToString();
  EXPECT_EQ(report.loaded_layers, kWideLayers);
  EXPECT_EQ(report.loaded_tokens, f.prompt.size());
  EXPECT_EQ(report.loaded_objects, 8u);
  EXPECT_EQ(report.loaded_bytes, 8 * kWidePayload);
  for (size_t chunk = 0; chunk < 8; ++chunk) EXPECT_TRUE(LayersAreRight(f, memory, chunk, 0, kWideLayers));
  EXPECT_EQ(handle.WaitLayer(kWideLayers).code(), StatusCode::kInvalidArgument);
  // Each byte was read once, and the whole frames are in the host tier.
  EXPECT_EQ(f.platters->get_bytes, 8 * (kWidePayload + 4096));
  EXPECT_EQ(f.manager->Stats().tiers[0].objects, 8u);
  EXPECT_EQ(f.manager->Stats().tiers[1].hits, 8u);
  // From there the same bytes, and nothing is read.
  SinkMemory again(8, kWidePayload);
  const Lease warm = f.Look();
  EXPECT_TRUE(LoadByLayer(f, warm, again).Wait().status.ok());
  for (size_t chunk = 0; chunk < 8; ++chunk) EXPECT_TRUE(LayersAreRight(f, again, chunk, 0, kWideLayers));
  EXPECT_EQ(f.platters->get_bytes, 8 * (kWidePayload + 4096));
  EXPECT_EQ(f.manager->Stats().tiers[0].hits, 8u);
}

TEST(LoadLayerTest, ARangeLargerThanTheWindowStreamsAndIsNotPromoted) {
  LoadFixture f;
  f.options.pool_bytes = 16 << 20;
  f.options.load_window_bytes = 6 << 20;
  f.Begin(8 * kTestChunk);
  const Lease lease = f.Look();
  SinkMemory memory(8, kWidePayload);
  const LoadReport report = LoadByLayer(f, lease, memory).Wait();
  ASSERT_TRUE(report.status.ok()) << report.status.ToString();
  EXPECT_EQ(report.loaded_tokens, f.prompt.size());
  EXPECT_EQ(report.loaded_layers, kWideLayers);
  for (size_t chunk = 0; chunk < 8; ++chunk) EXPECT_TRUE(LayersAreRight(f, memory, chunk, 0, kWideLayers));
  EXPECT_EQ(f.manager->Stats().tiers[0].objects, 0u);
  EXPECT_EQ(f.manager->Stats().tiers[1].hits, 8u);
  EXPECT_EQ(f.manager->Stats().pool_used_bytes, 0u);
}

// A wrong piece in one layer of one chunk: the layers before it are whole, the chunks before it are finished.
TEST(LoadLayerTest, AWrongPieceEndsTheLoadAtItsChunk) {
  for (const uint64_t window : {uint64_t{48} << 20, uint64_t{6} << 20}) {
    SCOPED_TRACE("window " + std::to_string(window));
    LoadFixture f;
    f.options.load_window_bytes = window;
    f.Begin(8 * kTestChunk);
    f.Corrupt(5, 2 * kWideLayerBytes + 17);
    const Lease lease = f.Look();
    SinkMemory memory(8, kWidePayload);
    LoadHandle handle = LoadByLayer(f, lease, memory);
    const LoadReport report = handle.Wait();
    EXPECT_EQ(report.status.code(), StatusCode::kDataLoss);
    EXPECT_EQ(report.loaded_layers, 2u);
    EXPECT_EQ(report.recompute_from, 5u * kTestChunk);
    EXPECT_EQ(report.loaded_tokens, 5u * kTestChunk);
    EXPECT_EQ(report.loaded_objects, 5u);
    for (size_t chunk = 0; chunk < 8; ++chunk)
      EXPECT_TRUE(LayersAreRight(f, memory, chunk, 0, chunk < 5 ? kWideLayers : 2)) << chunk;
    EXPECT_FALSE(LayersAreRight(f, memory, 5, 2, 3)) << "the wrong piece must not have been handed over";
    EXPECT_TRUE(handle.WaitLayer(1).ok());
    EXPECT_EQ(handle.WaitLayer(2).code(), StatusCode::kDataLoss);
    EXPECT_EQ(f.manager->Stats().corrupt_objects, 1u);
    EXPECT_EQ(f.manager->Lookup(f.root, f.prompt)->matched_tokens(), 5u * kTestChunk);
  }
}

TEST(LoadLayerTest, AFrameThatIsNotTheOneAskedForIsNeverHandedOver) {
  LoadFixture f;
  f.Begin(4 * kTestChunk);
  std::swap(f.platters->objects.at(f.Id(1)).frame, f.platters->objects.at(f.Id(2)).frame);
  const Lease lease = f.Look();
  SinkMemory memory(4, kWidePayload);
  const LoadReport report = LoadByLayer(f, lease, memory).Wait();
  EXPECT_EQ(report.status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(report.recompute_from, uint64_t{kTestChunk});
  EXPECT_TRUE(LayersAreRight(f, memory, 0, 0, kWideLayers));
  EXPECT_TRUE(memory.IsUntouched(1));
  EXPECT_TRUE(memory.IsUntouched(2));
}

TEST(LoadLayerTest, CancelAtEachStageLeavesMemoryAndPoolAlone) {
  for (size_t stage = 0; stage < kWideLayers; ++stage) {
    SCOPED_TRACE(stage);
    LoadFixture f;
    f.Begin(4 * kTestChunk);
    f.platters->holding_gets = true;
    {
      const Lease lease = f.Look();
      SinkMemory memory(4, kWidePayload);
      LoadHandle handle = LoadByLayer(f, lease, memory);
      if (stage > 0) {
        ReleaseUntilRead(f, 4 * (stage * kWideLayerBytes + 4096));
        ASSERT_TRUE(handle.WaitLayer(static_cast<uint32_t>(stage) - 1).ok());
      }
      handle.Cancel();
      const LoadReport report = handle.report();
      EXPECT_EQ(report.status.code(), StatusCode::kCancelled);
      EXPECT_EQ(report.recompute_from, 0u);
      const auto copy = memory.objects;
      f.platters->ReleaseHeld();
      EXPECT_EQ(copy, memory.objects);
      EXPECT_EQ(handle.WaitLayer(kWideLayers - 1).code(), StatusCode::kCancelled);
    }
    f.platters->holding_gets = false;
    f.platters->ReleaseHeld();
    EXPECT_EQ(f.manager->Stats().active_leases, 0u);
    EXPECT_EQ(f.manager->Stats().pool_used_bytes, f.manager->Stats().tiers[0].used_bytes);
  }
}

// The window has room for one step at a time, so what is left waits for the step that fails.
TEST(LoadLayerTest, AFailureDoesNotStopTheChunksBeforeIt) {
  LoadFixture f;
  f.options.load_window_bytes = 1;
  f.Begin(2 * kTestChunk);
  f.Corrupt(1, 0);
  const auto steps = std::make_shared<StepExecutor>();
  f.options.executor = steps;
  f.Open(f.spec);
  steps->RunAll();
  const Lease lease = f.Look();
  SinkMemory memory(2, kWidePayload);
  const LoadHandle handle = LoadByLayer(f, lease, memory);
  steps->RunAll();  // no caller waits, which would start what is next
  EXPECT_EQ(handle.report().status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(handle.report().loaded_tokens, kTestChunk);
  EXPECT_TRUE(LayersAreRight(f, memory, 0, 0, kWideLayers));
}

TEST(LoadLayerTest, NeedsCanonicalPayloadsAndASink) {
  LoadFixture f(CanonicalSpec(3, 64));
  f.Begin(2 * kTestChunk);
  const Lease lease = f.Look();
  const auto status = [&](const LoadSink& sink) {
    return f.manager->Load(lease, {0, f.prompt.size()}, sink, LoadOrder::kLayerMajor).report().status.code();
  };
  EXPECT_EQ(status({}), StatusCode::kInvalidArgument);
  SinkMemory memory(2, f.spec.PayloadBytes({}, kTestChunk));
  EXPECT_EQ(status(memory.sink()), StatusCode::kOk);
  // Small payloads are one read each, and promoted.
  SinkMemory again(2, f.spec.PayloadBytes({}, kTestChunk));
  const LoadReport report = LoadByLayer(f, lease, again).Wait();
  EXPECT_EQ(report.loaded_layers, 3u);
  EXPECT_TRUE(LayersAreRight(f, again, 1, 0, 3));
  EXPECT_EQ(f.manager->Stats().tiers[0].objects, 2u);
  ManagerFixture opaque;
  opaque.Open();
  opaque.Store(f.prompt);
  ASSERT_TRUE(opaque.manager->Flush().ok());
  const Lease other = *opaque.manager->Lookup(opaque.root, f.prompt);
  SinkMemory opaque_memory(2, kTestPayload);
  EXPECT_EQ(opaque.manager->Load(other, {0, f.prompt.size()}, opaque_memory.sink(), LoadOrder::kLayerMajor)
                .Wait()
                .status.code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace terrace
