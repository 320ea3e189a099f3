// Loads that share a pool too small for them, that end early, and that nobody waits for.
#include <gtest/gtest.h>

#include <thread>

#include "tests/storage/load_fixture.h"

namespace terrace {
namespace {

constexpr uint64_t kSmallFrame = 128 * 1024;  // of the pool, for the payloads of ManagerFixture

struct TwoPrompts : ManagerFixture {
  std::vector<Token> first;
  std::vector<Token> second;

  // Both on the disk; a pool of `pool_frames`.
  void Begin(size_t chunks, size_t pool_frames) {
    first = TestTokens(chunks * kTestChunk, 1);
    second = TestTokens(chunks * kTestChunk, 2);
    Open();
    for (const auto* prompt : {&first, &second}) {
      for (size_t n = 1; n <= chunks; ++n) {
        Store(std::span(*prompt).first(n * kTestChunk));
        ASSERT_TRUE(manager->Flush().ok());
      }
    }
    ASSERT_TRUE(manager->Close().ok());
    options.pool_bytes = pool_frames * kSmallFrame;
    Open();
  }
  LoadHandle Start(const std::vector<Token>& prompt, size_t chunks = 1000) {
    const Lease lease = *manager->Lookup(root, prompt);
    EXPECT_EQ(lease.matched_tokens(), prompt.size());
    return manager->Load(lease, {0, std::min(prompt.size(), chunks * kTestChunk)});
  }
};

// Takes the next chunk and lets it go.
bool TakeOne(LoadHandle& handle, TimePoint deadline = kNoDeadline) {
  const Result<std::optional<LeasedChunk>> chunk = handle.Next(deadline);
  return chunk.ok() && chunk->has_value() && PayloadIsRight(**chunk);
}

// One thread, two loads, each of twice the pool and with a window of all of it.
TEST(LoadWindowTest, TwoInterleavedLoadsOfTwiceThePoolFinish) {
  for (const bool with_host : {true, false}) {
    for (const size_t pool_frames : {3, 4, 8}) {
      SCOPED_TRACE(pool_frames);
      TwoPrompts f;
      f.with_host = with_host;
      f.Begin(16, 32);
      f.options.load_window_bytes = pool_frames * kSmallFrame;
      f.options.pool_bytes = pool_frames * kSmallFrame;
      f.Open();
      LoadHandle a = f.Start(f.first);
      LoadHandle b = f.Start(f.second);
      for (size_t i = 0; i < 16; ++i) {
        EXPECT_TRUE(TakeOne(a)) << i << " " << a.report().status.ToString();
        EXPECT_TRUE(TakeOne(b)) << i << " " << b.report().status.ToString();
      }
      EXPECT_EQ(a.report().loaded_tokens, f.first.size());
      EXPECT_EQ(b.report().loaded_tokens, f.second.size());
      // With a host tier what was read is content, and the reserve of the stores is left for the other one.
      const int64_t shed = f.manager->metrics().Value("terrace_manager_load_shed_objects_total");
      EXPECT_TRUE(with_host || shed > 0);
    }
  }
}

// What the other one reads ahead is on its way when the second begins to starve.
TEST(LoadWindowTest, AStarvingLoadGetsWhatBecomesReadyForAnotherLater) {
  TwoPrompts f;
  f.Begin(8, 32);
  f.options.pool_bytes = 4 * kSmallFrame;
  f.options.load_window_bytes = 4 * kSmallFrame;
  f.with_host = false;
  f.Open();
  f.platters->holding_gets = true;
  LoadHandle a = f.Start(f.first);
  LoadHandle b = f.Start(f.second);
  f.platters->holding_gets = false;
  std::atomic<bool> waits = false;
  std::thread taker([&] {
    waits = true;
    EXPECT_TRUE(TakeOne(b));
  });
  while (!waits) std::this_thread::yield();
  f.platters->ReleaseHeld();
  taker.join();
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(TakeOne(a)) << i;
  for (size_t i = 1; i < 8; ++i) EXPECT_TRUE(TakeOne(b)) << i;
}

TEST(LoadWindowTest, ACallerThatHoldsEverythingIsToldAfterTheDeadlineOfTheClock) {
  TwoPrompts f;
  f.Begin(8, 32);
  f.options.io_deadline = std::chrono::hours(1);
  f.with_host = false;
  for (const bool by_window : {false, true}) {
    f.options.pool_bytes = 4 * kSmallFrame;
    f.options.load_window_bytes = by_window ? 2 * kSmallFrame : 4 * kSmallFrame;
    f.Open();
    LoadHandle handle = f.Start(f.first);
    std::vector<LeasedChunk> held;
    const size_t room = by_window ? 2 : 3;  // a frame is reserved for stores
    for (size_t i = 0; i < room; ++i) held.push_back(**handle.Next());
    EXPECT_EQ(handle.Next(std::chrono::steady_clock::now()).status().code(), StatusCode::kDeadlineExceeded);
    f.clock.Advance(std::chrono::hours(2));
    EXPECT_FALSE(handle.Next()->has_value());
    EXPECT_EQ(handle.report().status.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(handle.report().recompute_from, room * kTestChunk);
    for (const LeasedChunk& chunk : held) EXPECT_TRUE(PayloadIsRight(chunk));
  }
}

TEST(LoadWindowTest, ReadsOfOneStepAreOneCall) {
  TwoPrompts f;
  f.Begin(16, 64);
  f.platters->holding_gets = true;
  LoadHandle handle = f.Start(f.first);
  EXPECT_EQ(f.platters->num_held(), 1u) << "16 objects of 100 kB";
  f.platters->holding_gets = false;
  f.platters->ReleaseHeld();
  for (size_t i = 0; i < 16; ++i) EXPECT_TRUE(TakeOne(handle));
  LoadFixture wide;
  wide.options.load_window_bytes = 40 << 20;
  wide.Begin(6 * kTestChunk);
  wide.platters->holding_gets = true;
  const Lease lease = wide.Look();
  LoadHandle other = wide.manager->Load(lease, {0, wide.prompt.size()});
  EXPECT_EQ(wide.platters->num_held(), 6u) << "two frames of 4 MiB and their headers are more than 8 MiB";
  wide.platters->holding_gets = false;
  wide.platters->ReleaseHeld();
}

// The device writes late into a buffer that the next request would like to have.
TEST(LoadWindowTest, ALateCompletionAfterCancelDisturbsNobody) {
  TwoPrompts f;
  f.Begin(3, 32);
  f.options.pool_bytes = 4 * kSmallFrame;
  f.options.load_window_bytes = 4 * kSmallFrame;
  f.with_host = false;
  f.Open();
  f.platters->holding_gets = true;
  LoadHandle cancelled = f.Start(f.first, 1);
  cancelled.Cancel();
  f.platters->holding_gets = false;
  LoadHandle next = f.Start(f.second);
  EXPECT_TRUE(TakeOne(next));
  EXPECT_EQ(f.platters->ReleaseHeld(), 1u);
  EXPECT_TRUE(TakeOne(next));
  EXPECT_TRUE(TakeOne(next));
  EXPECT_EQ(f.manager->Stats().pool_used_bytes, 0u);
  EXPECT_EQ(cancelled.report().status.code(), StatusCode::kCancelled);
}

TEST(LoadWindowTest, CloseEndsEveryLoad) {
  LoadFixture f;
  f.Begin(4 * kTestChunk);
  const Lease lease = f.Look();
  f.platters->holding_gets = true;
  SinkMemory memory(4, kWidePayload);
  SinkMemory layers(4, kWidePayload);
  const TokenRange all{0, f.prompt.size()};
  LoadHandle chunks = f.manager->Load(lease, all);
  LoadHandle sink = f.manager->Load(lease, all, memory.sink());
  LoadHandle by_layer = f.manager->Load(lease, all, layers.sink(), LoadOrder::kLayerMajor);
  EXPECT_EQ(*f.manager->Prefetch(f.root, f.prompt), 4 * (kWidePayload + 4096));
  ASSERT_TRUE(f.manager->Close().ok());
  EXPECT_FALSE(chunks.Next()->has_value());
  for (LoadHandle* handle : {&chunks, &sink, &by_layer})
    EXPECT_EQ(handle->Wait().status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(f.manager->Load(lease, all).report().status.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(memory.IsUntouched(0));
  EXPECT_EQ(f.manager->Stats().pool_used_bytes, 0u);
}

// Throws at Post, or drops what it is given, while told so.
class BadExecutor final : public Executor {
 public:
  enum class Mode { kRuns, kThrows, kDrops };
  BadExecutor() : pool_(*MakeThreadPool({})) {}
  void Post(std::function<void()> work) override {
    if (mode == Mode::kThrows) throw std::runtime_error("injected");
    if (mode == Mode::kRuns) pool_->Post(std::move(work));
  }
  std::atomic<Mode> mode = Mode::kRuns;

 private:
  std::unique_ptr<Executor> pool_;
};

TEST(LoadWindowTest, AnExecutorThatThrowsOrDropsEndsTheLoad) {
  const auto executor = std::make_shared<BadExecutor>();
  LoadFixture f;
  f.options.executor = executor;
  f.Begin(2 * kTestChunk);
  const Lease lease = f.Look();
  for (const auto mode : {BadExecutor::Mode::kThrows, BadExecutor::Mode::kDrops}) {
    executor->mode = mode;
    SinkMemory memory(2, kWidePayload);
    const LoadReport report = f.manager->Load(lease, {0, f.prompt.size()}, memory.sink()).Wait();
    EXPECT_EQ(report.status.code(), StatusCode::kUnavailable);
    EXPECT_EQ(report.recompute_from, 0u);
    EXPECT_TRUE(memory.IsUntouched(0));
  }
  executor->mode = BadExecutor::Mode::kRuns;
  EXPECT_GE(f.manager->metrics().Value("terrace_manager_callback_exceptions_total"), 1);
  SinkMemory memory(2, kWidePayload);
  EXPECT_TRUE(f.manager->Load(lease, {0, f.prompt.size()}, memory.sink()).Wait().status.ok());
  EXPECT_EQ(memory.objects[1], f.Payload(1));
}

TEST(LoadWindowTest, PrefetchBringsUpWhatIsBoundedByItsBytes) {
  TwoPrompts f;
  f.Begin(8, 64);
  f.options.load_window_bytes = 3 * kSmallFrame;
  const uint64_t frame = f.Frame();
  EXPECT_EQ(*f.manager->Prefetch(f.root, f.first, 3 * frame + 1), 3 * frame);
  while (f.manager->Stats().tiers[0].objects < 3) std::this_thread::yield();
  EXPECT_EQ(f.platters->gets, 3u);
  EXPECT_EQ(*f.manager->Prefetch(f.root, f.first), 5 * frame);
  while (f.manager->Stats().tiers[0].objects < 8) std::this_thread::yield();
  EXPECT_EQ(*f.manager->Prefetch(f.root, f.first), 0u);
  EXPECT_EQ(*f.manager->Prefetch(f.root, TestTokens(64, 77)), 0u);
  EXPECT_EQ(f.manager->metrics().Value("terrace_manager_prefetched_bytes_total"), 8 * frame);
  EXPECT_EQ(f.LoadAll(f.first), f.first.size());
  EXPECT_EQ(f.platters->gets, 8u) << "the load found everything in the host tier";
  while (f.manager->Stats().active_leases > 0) std::this_thread::yield();
}

}  // namespace
}  // namespace terrace
