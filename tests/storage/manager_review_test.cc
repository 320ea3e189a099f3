// Corners in which a manager has handed out wrong bytes, waited for ever or lost count: one test each.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "terrace/backend_wrapper.h"
#include "terrace/token_hasher.h"
#include "tests/support/manager_fixture.h"

namespace terrace {
namespace {

constexpr uint64_t kSmallPayload = 5'000;

Result<PrepareResult> PrepareAll(ManagerFixture& f, const TokenView& prompt, TokenRange range,
                                 uint64_t payload_bytes, std::vector<ObjectPart> parts = {}) {
  return f.manager->Prepare(
      f.root, prompt, range, [=](TokenRange, ObjectPart) { return payload_bytes; }, parts);
}

void CommitAll(ManagerFixture& f, PrepareResult& prepared) {
  std::vector<WritableChunk> filled;
  for (PreparedChunk& chunk : prepared.chunks) {
    if (!chunk.writable) continue;
    FillPayload(*chunk.writable);
    filled.push_back(*std::move(chunk.writable));
  }
  f.manager->Commit(std::move(filled));
}

ChunkKey KeyOfChunk(const ManagerFixture& f, const std::vector<Token>& prompt, size_t chunk) {
  TokenHasher hasher(f.root, kTestChunk);
  EXPECT_TRUE(hasher.Append(prompt).ok());
  return hasher.full_keys()[chunk];
}

// Get of one part fails; everything else passes.
class OnePartFails final : public BackendWrapper {
 public:
  OnePartFails(std::unique_ptr<Backend> base, std::function<bool(const ObjectId&)> fails)
      : BackendWrapper(std::move(base)), fails_(std::move(fails)) {}

 protected:
  void DoGet(std::vector<GetOp> ops, GetDone done) override {
    const auto failed = std::find_if(ops.begin(), ops.end(), [&](const GetOp& op) { return fails_(op.id); });
    if (failed == ops.end()) return base().Get(std::move(ops), std::move(done));
    const auto at = failed - ops.begin();
    ops.erase(failed);
    auto finish = [at, done = std::move(done)](std::span<const GetResult> answers) {
      std::vector<GetResult> all(answers.begin(), answers.end());
      all.insert(all.begin() + at, GetResult{UnavailableError("injected"), 0});
      done(all);
    };
    if (ops.empty()) return finish({});
    base().Get(std::move(ops), std::move(finish));
  }

 private:
  const std::function<bool(const ObjectId&)> fails_;
};

// Puts are refused while `refusing`.
class RefusedPuts final : public BackendWrapper {
 public:
  RefusedPuts(std::unique_ptr<Backend> base, const std::atomic<bool>& refusing)
      : BackendWrapper(std::move(base)), refusing_(refusing) {}

 protected:
  void DoPut(std::vector<PutOp> ops, PutDone done) override {
    if (!refusing_) return base().Put(std::move(ops), std::move(done));
    done(std::vector<Status>(ops.size(), UnavailableError("injected")));
  }

 private:
  const std::atomic<bool>& refusing_;
};

// Erases wait until they are let through.
class HeldErases final : public BackendWrapper {
 public:
  struct Gate {
    std::mutex mutex;
    bool holding = false;
    std::vector<std::function<void()>> held;
    size_t Release() {
      std::vector<std::function<void()>> work;
      {
        std::lock_guard lock(mutex);
        work.swap(held);
      }
      for (const auto& run : work) run();
      return work.size();
    }
  };
  HeldErases(std::unique_ptr<Backend> base, std::shared_ptr<Gate> gate)
      : BackendWrapper(std::move(base)), gate_(std::move(gate)) {}

 protected:
  void DoErase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) override {
    {
      std::lock_guard lock(gate_->mutex);
      if (gate_->holding) {
        gate_->held.push_back([this, ids, mode, done] { base().Erase(ids, mode, done); });
        return;
      }
    }
    base().Erase(std::move(ids), mode, std::move(done));
  }

 private:
  const std::shared_ptr<Gate> gate_;
};

// Work that is posted is dropped unrun while `dropping`.
class DroppingExecutor final : public Executor {
 public:
  explicit DroppingExecutor(std::shared_ptr<std::atomic<bool>> dropping)
      : dropping_(std::move(dropping)), pool_(*MakeThreadPool({})) {}
  void Post(std::function<void()> work) override {
    if (!dropping_->load()) pool_->Post(std::move(work));
  }
  // Until everything posted before has run: the pool has one thread.
  void WaitUntilIdle() {
    std::promise<void> ran;
    pool_->Post([&] { ran.set_value(); });
    ran.get_future().wait();
  }

 private:
  std::shared_ptr<std::atomic<bool>> dropping_;
  std::unique_ptr<Executor> pool_;
};

TEST(ManagerReviewTest, AnotherSaveOfAnotherLengthIsNotReadThroughAnOldLease) {
  for (const bool with_host : {true, false}) {
    ManagerFixture f;
    f.with_host = with_host;
    f.Open();
    const std::vector<Token> prompt = TestTokens(kTestChunk);
    f.Store(prompt);
    ASSERT_TRUE(f.manager->Flush().ok());
    Result<Lease> lease = f.manager->Lookup(f.root, prompt);
    ASSERT_EQ(lease->num_objects(), 1u);
    const ChunkKey key = KeyOfChunk(f, prompt, 0);
    ASSERT_EQ(*f.manager->Erase({&key, 1}), 1u);
    Result<PrepareResult> again = PrepareAll(f, prompt, {0, kTestChunk}, kSmallPayload);
    ASSERT_TRUE(again.ok() && again->chunks[0].writable);
    CommitAll(f, *again);
    ASSERT_TRUE(f.manager->Flush().ok());
    LoadHandle handle = f.manager->Load(*lease, {0, kTestChunk});
    Result<std::optional<LeasedChunk>> chunk = handle.Next();
    ASSERT_TRUE(chunk.ok());
    EXPECT_FALSE(chunk->has_value()) << "its payload would end beyond its buffer";
    EXPECT_EQ(handle.report().recompute_from, 0u);
    // The new save is neither dropped nor called corrupt.
    EXPECT_EQ(f.manager->Stats().corrupt_objects, 0u);
    lease = f.manager->Lookup(f.root, prompt);
    handle = f.manager->Load(*lease, {0, kTestChunk});
    chunk = handle.Next();
    ASSERT_TRUE(chunk.ok() && chunk->has_value());
    EXPECT_EQ((*chunk)->payload().size(), kSmallPayload);
    EXPECT_TRUE(PayloadIsRight(**chunk));
  }
}

TEST(ManagerReviewTest, AReadThatBeganBeforeAnEraseIsNotPromotedAfterIt) {
  std::atomic<bool> refusing = false;
  ManagerFixture f;
  f.wrap_host = [&](std::unique_ptr<Backend> base) {
    return std::make_unique<RefusedPuts>(std::move(base), refusing);
  };
  f.Open();
  const std::vector<Token> prompt = TestTokens(kTestChunk);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Close().ok());
  f.Open();
  Result<Lease> lease = f.manager->Lookup(f.root, prompt);
  f.platters->holding_gets = true;
  LoadHandle handle = f.manager->Load(*lease, {0, kTestChunk});
  ASSERT_EQ(f.platters->num_held(), 1u);
  const ChunkKey key = KeyOfChunk(f, prompt, 0);
  // The device read the old bytes already; only its completion is late: they are put back for it.
  auto object = f.platters->objects.begin()->second;
  ASSERT_EQ(*f.manager->Erase({&key, 1}), 1u);
  refusing = true;  // stored anew, but on the disk alone
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Flush().ok());
  refusing = false;
  ASSERT_EQ(f.platters->objects.size(), 1u);
  ASSERT_EQ(f.manager->Stats().tiers[0].objects, 0u);
  f.platters->objects.begin()->second = object;
  f.platters->holding_gets = false;
  EXPECT_EQ(f.platters->ReleaseHeld(), 1u);
  EXPECT_TRUE(handle.Next()->has_value());
  EXPECT_EQ(f.manager->Stats().tiers[0].objects, 0u) << "erased bytes came back";
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
  EXPECT_EQ(f.manager->Stats().tiers[0].objects, 1u);
}

TEST(ManagerReviewTest, AFailureInAStateOrAWindowSaysFromWhereToCompute) {
  const std::vector<std::vector<GroupSpec>> models = {
      {GroupSpec{}, GroupSpec{.rule = Retention::kState}},
      {GroupSpec{}, GroupSpec{.rule = Retention::kWindow, .window_tokens = kTestChunk}},
  };
  for (const auto& groups : models) {
    const bool is_state = groups[1].rule == Retention::kState;
    ManagerFixture f;
    std::atomic<bool> failing = false;
    ObjectId wrong;
    f.wrap_disk = [&](std::unique_ptr<Backend> base) {
      return std::make_unique<OnePartFails>(std::move(base),
                                            [&](const ObjectId& id) { return failing && id == wrong; });
    };
    f.Open(TestSpec(Cut::kNone, groups));
    const std::vector<Token> prompt = TestTokens(6 * kTestChunk);
    f.Store(prompt);
    ASSERT_TRUE(f.manager->Close().ok());
    f.Open(TestSpec(Cut::kNone, groups));
    failing = true;
    // State: only the last chunk has one. Window of one chunk: the last two are loaded, the end and the
    // boundary before it can be computed from, others cannot.
    wrong = {KeyOfChunk(f, prompt, is_state ? 5 : 4), {1, 0}};
    LoadReport report;
    EXPECT_EQ(f.LoadAll(prompt, {}, &report), 0u) << "a full group alone is no prefix to go on from";
    EXPECT_EQ(report.recompute_from, 0u);
    EXPECT_FALSE(report.status.ok());
    if (!is_state) {
      f.Open(TestSpec(Cut::kNone, groups));  // what was read beyond the failure is in the host tier
      wrong = {KeyOfChunk(f, prompt, 5), {1, 0}};
      EXPECT_EQ(f.LoadAll(prompt, {}, &report), 5 * kTestChunk);
      EXPECT_EQ(report.recompute_from, 5 * kTestChunk);
    }
    failing = false;
    EXPECT_EQ(f.LoadAll(prompt, {}, &report), prompt.size());
    EXPECT_EQ(report.recompute_from, prompt.size());
  }
}

TEST(ManagerReviewTest, HostTokensNeedEveryGroupOfTheChunk) {
  const std::vector<GroupSpec> groups = {GroupSpec{}, GroupSpec{}};
  ManagerFixture f;
  f.Open(TestSpec(Cut::kNone, groups));
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Close().ok());
  f.Open(TestSpec(Cut::kNone, groups));
  EXPECT_EQ(f.LoadAll(prompt, {{0, 0}}), prompt.size());  // group 0 is in the host tier now
  EXPECT_EQ(f.manager->Lookup(f.root, prompt, {.parts = {{0, 0}}})->host_tokens(), prompt.size());
  EXPECT_EQ(f.manager->Lookup(f.root, prompt)->host_tokens(), 0u);
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
  EXPECT_EQ(f.manager->Lookup(f.root, prompt)->host_tokens(), prompt.size());
}

// A caller that holds a chunk while it waits for the next, and a pool that others fill.
TEST(ManagerReviewTest, ALoadThatHoldsAChunkGetsTheRoomThatOthersGiveBack) {
  for (const bool room_comes : {true, false}) {
    ManagerFixture f;
    f.options.pool_bytes = 3 * 128 * 1024;  // three frames, of which one is reserved for stores
    f.options.load_window_bytes = f.options.pool_bytes;
    f.options.io_deadline = room_comes ? std::chrono::seconds(60) : std::chrono::milliseconds(20);
    f.with_host = false;
    f.Open();
    const std::vector<Token> prompt = TestTokens(3 * kTestChunk);
    const std::vector<Token> other = TestTokens(2 * kTestChunk, 9);
    for (size_t n = 1; n <= 3; ++n) {
      f.Store(std::vector<Token>(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(n * kTestChunk)));
      ASSERT_TRUE(f.manager->Flush().ok());
    }
    // Another's buffers leave room for one frame.
    Result<PrepareResult> foreign = PrepareAll(f, other, {0, 2 * kTestChunk}, kTestPayload);
    ASSERT_TRUE(foreign.ok() && foreign->status.ok()) << foreign->status.ToString();
    Result<Lease> lease = f.manager->Lookup(f.root, prompt);
    LoadHandle handle = f.manager->Load(*lease, {0, lease->matched_tokens()});
    Result<std::optional<LeasedChunk>> first = handle.Next();
    ASSERT_TRUE(first.ok() && first->has_value());
    EXPECT_EQ(handle.Next(std::chrono::steady_clock::now()).status().code(), StatusCode::kDeadlineExceeded);
    if (room_comes) foreign->chunks.clear();  // abandoned, without a word to the load
    Result<std::optional<LeasedChunk>> second =
        handle.Next(std::chrono::steady_clock::now() + std::chrono::seconds(30));
    ASSERT_TRUE(second.ok()) << second.status().ToString();
    EXPECT_EQ(second->has_value(), room_comes);
    if (!room_comes) {
      EXPECT_EQ(handle.report().status.code(), StatusCode::kResourceExhausted);
      EXPECT_EQ(handle.report().recompute_from, kTestChunk);
    }
  }
}

TEST(ManagerReviewTest, AWriteWaitsForTheEraseOfTheSameObject) {
  for (const bool by_clear : {false, true}) {
    ManagerFixture f;
    auto gate = std::make_shared<HeldErases::Gate>();
    f.wrap_disk = [&](std::unique_ptr<Backend> base) {
      return std::make_unique<HeldErases>(std::move(base), gate);
    };
    f.Open(TestSpec());
    const std::vector<Token> tail = TestTokens(10);
    f.Store(tail);
    ASSERT_TRUE(f.manager->Flush().ok());
    ASSERT_EQ(f.platters->objects.size(), 1u);
    gate->holding = true;
    // A longer chunk supersedes the tail on the disk; that erase is on its way when the tail is stored again
    // (or erased).
    std::thread eraser;
    const ObjectId id = f.platters->objects.begin()->first;
    if (by_clear) {
      eraser = std::thread([&] { EXPECT_EQ(*f.manager->Erase({&id.key, 1}), 1u); });
    } else {
      f.Store(TestTokens(kTestChunk));
      ASSERT_TRUE(f.manager->Flush().ok());
    }
    while (true) {
      std::lock_guard lock(gate->mutex);
      if (!gate->held.empty()) break;
    }
    EXPECT_EQ(f.Store(tail), 1u);
    // Until its bytes are published in the host tier.
    while (f.manager->Stats().stored_objects < (by_clear ? 2u : 3u)) std::this_thread::yield();
    gate->holding = false;
    EXPECT_EQ(gate->Release(), 1u);
    if (eraser.joinable()) eraser.join();
    ASSERT_TRUE(f.manager->Flush().ok());
    EXPECT_EQ(f.platters->objects.contains(id), true) << "it was written, then erased behind its back";
    EXPECT_EQ(f.manager->Stats().tiers[1].objects, f.platters->objects.size());
  }
}

TEST(ManagerReviewTest, AWriteWaitsForTheEraseThatOpeningBegan) {
  ManagerFixture f;
  auto gate = std::make_shared<HeldErases::Gate>();
  f.wrap_disk = [&](std::unique_ptr<Backend> base) {
    return std::make_unique<HeldErases>(std::move(base), gate);
  };
  f.Open();
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Close().ok());
  // The first chunk is lost, and with it the second one; what opening erases takes its time.
  ASSERT_EQ(f.platters->objects.erase({KeyOfChunk(f, prompt, 0), {}}), 1u);
  gate->holding = true;
  f.Open();
  EXPECT_EQ(f.Match(prompt), 0u);
  EXPECT_EQ(f.Store(prompt), 2u);
  while (f.manager->Stats().stored_objects < 2u) std::this_thread::yield();
  gate->holding = false;
  EXPECT_EQ(gate->Release(), 1u);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.platters->objects.size(), 2u) << "it was written, then erased behind its back";
  EXPECT_EQ(f.manager->Stats().tiers[1].objects, 2u);
}

TEST(ManagerReviewTest, TimesThatNeverEndAreNoSumThatOverflows) {
  ManagerFixture f;
  f.options.lease_time = f.options.io_deadline = Duration::max();
  f.Open();
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  EXPECT_EQ(f.Store(prompt), 2u);
  ASSERT_TRUE(f.manager->Flush().ok());
  const Result<Lease> lease = f.manager->Lookup(f.root, prompt, {.request_id = 1});
  f.clock.Advance(std::chrono::hours(24));
  EXPECT_TRUE(lease->is_protected());
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
}

TEST(ManagerReviewTest, AnAbandonedParentTakesTheChildrenThatWereCommittedBeforeIt) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = TestTokens(3 * kTestChunk);
  Result<PrepareResult> prepared = PrepareAll(f, prompt, {0, prompt.size()}, kTestPayload);
  ASSERT_TRUE(prepared.ok() && prepared->chunks.size() == 3);
  std::vector<WritableChunk> children;
  for (size_t i = 1; i < 3; ++i) {
    FillPayload(*prepared->chunks[i].writable);
    children.push_back(*std::move(prepared->chunks[i].writable));
  }
  f.manager->Commit(std::move(children));
  ASSERT_TRUE(f.manager->Flush().ok());
  ASSERT_EQ(f.manager->Stats().tiers[0].objects, 2u);
  prepared->chunks.clear();
  EXPECT_EQ(f.manager->Stats().tiers[0].objects, 0u);
  EXPECT_EQ(f.manager->Stats().tiers[1].objects, 0u);
  EXPECT_EQ(f.manager->Stats().index_entries, 0u);
  EXPECT_EQ(f.manager->Stats().pool_used_bytes, 0u);
  EXPECT_EQ(f.platters->objects.size(), 0u);
  EXPECT_EQ(f.Store(prompt), 3u) << "and they can be stored again";
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
}

TEST(ManagerReviewTest, AChunkLargerThanTheHostTierEvictsNothing) {
  ManagerFixture f;
  f.with_disk = false;
  f.wrap_host = [](std::unique_ptr<Backend>) { return *MakeHostBackend({.capacity_bytes = 1 << 20}); };
  f.Open();
  const std::vector<Token> prompt = TestTokens(4 * kTestChunk);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Flush().ok());
  ASSERT_EQ(f.manager->Stats().tiers[0].objects, 4u);
  Result<PrepareResult> large = PrepareAll(f, TestTokens(kTestChunk, 7), {0, kTestChunk}, 2 << 20);
  ASSERT_TRUE(large.ok() && large->chunks[0].writable);
  CommitAll(f, *large);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.manager->Stats().dropped_objects, 1u);
  EXPECT_EQ(f.manager->Stats().tiers[0].evictions, 0u);
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
}

TEST(ManagerReviewTest, EraseNamesWhatADurableTierEvictedBefore) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = TestTokens(kTestChunk);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Flush().ok());
  const ChunkKey key = KeyOfChunk(f, prompt, 0);
  const auto object = *f.platters->objects.begin();
  ASSERT_EQ(*f.manager->Erase({&key, 1}), 1u);
  // An eviction that a crash undid: the tier has what the index does not know.
  f.platters->objects.insert(object);
  EXPECT_EQ(*f.manager->Erase({&key, 1}), 0u);
  EXPECT_EQ(f.platters->objects.size(), 0u);
}

TEST(ManagerReviewTest, WorkThatAnExecutorDropsDoesNotHangFlushAndClose) {
  ManagerFixture f;
  auto dropping = std::make_shared<std::atomic<bool>>(false);
  const auto executor = std::make_shared<DroppingExecutor>(dropping);
  f.options.executor = executor;
  f.Open();
  ASSERT_TRUE(f.manager->Flush().ok());
  executor->WaitUntilIdle();  // work that still runs would take what is queued behind it along
  *dropping = true;
  Result<PrepareResult> prepared = PrepareAll(f, TestTokens(kTestChunk), {0, kTestChunk}, kTestPayload);
  CommitAll(f, *prepared);
  EXPECT_TRUE(f.manager->Flush().ok());
  EXPECT_TRUE(f.manager->Close().ok());
  EXPECT_EQ(f.manager->Stats().pool_used_bytes, 0u);
}

TEST(ManagerReviewTest, AForkedChildTouchesNothing) {
  ManagerFixture f;
  f.options.load_window_bytes = 1;  // one chunk at a time: releasing one starts the next
  f.Open();
  const std::vector<Token> prompt = TestTokens(3 * kTestChunk);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Close().ok());
  f.Open();
  Result<Lease> lease = f.manager->Lookup(f.root, prompt);
  LoadHandle handle = f.manager->Load(*lease, {0, lease->matched_tokens()});
  auto first = std::make_unique<LeasedChunk>(**handle.Next());
  Result<PrepareResult> prepared = PrepareAll(f, TestTokens(kTestChunk, 8), {0, kTestChunk}, kTestPayload);
  ASSERT_TRUE(prepared.ok());
  ASSERT_TRUE(f.manager->Flush().ok());
  const uint64_t gets = f.platters->gets;
  const pid_t child = fork();
  if (child == 0) {
    int wrong = 0;
    first.reset();
    prepared->chunks.clear();
    wrong |= handle.Next().status().code() != StatusCode::kFailedPrecondition ? 1 : 0;
    handle.Cancel();
    wrong |= f.manager->Lookup(f.root, prompt).status().code() != StatusCode::kFailedPrecondition ? 2 : 0;
    wrong |=
        f.manager->Load(*lease, {0, kTestChunk}).report().status.code() != StatusCode::kFailedPrecondition
            ? 4
            : 0;
    wrong |= f.manager->Flush().code() != StatusCode::kFailedPrecondition ? 8 : 0;
    lease->Release();
    wrong |= f.platters->gets != gets ? 16 : 0;
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  first.reset();
  EXPECT_TRUE(handle.Next()->has_value()) << "the parent goes on";
}

}  // namespace
}  // namespace terrace
