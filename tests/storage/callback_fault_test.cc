// A caller's plug-ins that throw, lie or drop what they were given: the manager counts that and goes on.
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

#include "terrace/backend_wrapper.h"
#include "tests/support/manager_fixture.h"
#include "tests/support/step_executor.h"

namespace terrace {
namespace {

TimePoint InAMinute() { return std::chrono::steady_clock::now() + std::chrono::minutes(1); }

int64_t Exceptions(ManagerFixture& f) {
  return f.manager->metrics().Value("terrace_manager_callback_exceptions_total");
}

// A manager of which every tier has the policy that `make` gives.
void OpenWith(ManagerFixture& f, const std::function<std::unique_ptr<EvictionPolicy>()>& make) {
  std::vector<Tier> tiers(2);
  tiers[0] = {.backend = *MakeHostBackend({.capacity_bytes = f.options.pool_bytes}), .policy = make()};
  tiers[1] = {.backend = MakeMemoryDisk(f.platters, f.disk_bytes), .policy = make()};
  Result<std::unique_ptr<StorageManager>> opened = StorageManager::Open(f.options, std::move(tiers));
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  f.manager = *std::move(opened);
  f.root = *f.manager->Root(TestSpec());
}

// Least recently used, but for the calls that throw.
class ThrowingPolicy final : public EvictionPolicy {
 public:
  explicit ThrowingPolicy(std::shared_ptr<std::atomic<bool>> throws) : throws_(std::move(throws)) {}
  void Insert(const ObjectId& id, uint64_t bytes) override {
    lru_->Insert(id, bytes);
    MaybeThrow();
  }
  void Touch(const ObjectId& id) override {
    lru_->Touch(id);
    MaybeThrow();
  }
  void Remove(const ObjectId& id) override {
    lru_->Remove(id);
    MaybeThrow();
  }
  std::optional<ObjectId> Victim(const std::function<bool(const ObjectId&)>& allowed) override {
    MaybeThrow();
    return lru_->Victim(allowed);
  }
  uint64_t Heat(const ObjectId& id) const override {
    MaybeThrow();
    return lru_->Heat(id);
  }

 private:
  void MaybeThrow() const {
    if (throws_->load()) throw std::runtime_error("by the test");
  }
  const std::unique_ptr<EvictionPolicy> lru_ = MakeLruPolicy();
  const std::shared_ptr<std::atomic<bool>> throws_;
};

TEST(CallbackFaultTest, APolicyThatThrowsLosesNothing) {
  ManagerFixture f;
  f.options.pool_bytes = 8 * 128 * 1024;
  const auto throws = std::make_shared<std::atomic<bool>>(false);
  OpenWith(f, [&] { return std::make_unique<ThrowingPolicy>(throws); });
  *throws = true;
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  ASSERT_EQ(f.Store(prompt), 2u);
  ASSERT_TRUE(f.manager->Flush(InAMinute()).ok());
  EXPECT_GT(Exceptions(f), 0);
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
  EXPECT_EQ(f.manager->Stats().tiers[0].objects, 2u);
  EXPECT_EQ(f.manager->Stats().tiers[1].objects, 2u);
  // No victim while it throws, and then there is one again.
  for (Token i = 0; i < 8; ++i) f.Store(TestTokens(kTestChunk, 20 + i));
  ASSERT_TRUE(f.manager->Flush(InAMinute()).ok());
  *throws = false;
  for (Token i = 0; i < 8; ++i) {
    EXPECT_EQ(f.Store(TestTokens(kTestChunk, 40 + i)), 1u) << i;
    ASSERT_TRUE(f.manager->Flush(InAMinute()).ok());
  }
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
  EXPECT_EQ(*f.manager->ErasePrefix(f.root, std::span(prompt).first(kTestChunk)), 2u);
  EXPECT_EQ(f.Match(prompt), 0u);
}

// Names what it likes, whatever may go.
class StubbornPolicy final : public EvictionPolicy {
 public:
  void Insert(const ObjectId& id, uint64_t) override { known_.insert(id); }
  void Touch(const ObjectId&) override {}
  void Remove(const ObjectId&) override {}
  std::optional<ObjectId> Victim(const std::function<bool(const ObjectId&)>&) override {
    if (known_.empty()) return ObjectId{};
    return *known_.begin();
  }

 private:
  std::set<ObjectId> known_;
};

TEST(CallbackFaultTest, APolicyThatNamesWhatMayNotGoEvictsNothing) {
  ManagerFixture f;
  f.options.pool_bytes = 4 * 128 * 1024;
  OpenWith(f, [] { return std::make_unique<StubbornPolicy>(); });
  for (Token i = 0; i < 8; ++i) {
    f.Store(TestTokens(kTestChunk, 20 + i));
    ASSERT_TRUE(f.manager->Flush(InAMinute()).ok());
  }
  const ManagerStats stats = f.manager->Stats();
  EXPECT_EQ(stats.tiers[0].evictions, 0u);
  EXPECT_GE(stats.tiers[0].objects, 3u);
  EXPECT_GT(stats.dropped_objects, 0u) << "the pool was never full";
}

class ThrowingLog final : public LogSink {
 public:
  void Log(LogLevel, std::string_view, std::string_view) override { throw std::runtime_error("by the test"); }
};

class FailingPuts final : public BackendWrapper {
 public:
  using BackendWrapper::BackendWrapper;

 protected:
  void DoPut(std::vector<PutOp> ops, PutDone done) override {
    const std::vector<Status> failed(ops.size(), UnavailableError("injected"));
    ops.clear();
    done(failed);
  }
};

TEST(CallbackFaultTest, ALogThatThrowsHoldsUpNoWrite) {
  ManagerFixture f;
  f.options.log = std::make_shared<ThrowingLog>();
  f.wrap_disk = [](std::unique_ptr<Backend> disk) { return std::make_unique<FailingPuts>(std::move(disk)); };
  f.Open();
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  ASSERT_EQ(f.Store(prompt), 2u);
  EXPECT_TRUE(f.manager->Flush(InAMinute()).ok());
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
  EXPECT_EQ(f.manager->Stats().pending_writes, 0u);
  EXPECT_GT(Exceptions(f), 0);
  EXPECT_TRUE(f.manager->Close(InAMinute()).ok());
}

class ThrowingExecutor final : public Executor {
 public:
  void Post(std::function<void()> work) override {
    if (throws) throw std::runtime_error("by the test");
    steps.Post(std::move(work));
  }
  StepExecutor steps;
  bool throws = false;
};

TEST(CallbackFaultTest, AnExecutorThatThrowsLosesOnlyWhatItWasGiven) {
  ManagerFixture f;
  const auto executor = std::make_shared<ThrowingExecutor>();
  f.options.executor = executor;
  f.Open();
  executor->steps.RunAll();
  executor->throws = true;
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  EXPECT_NO_THROW(f.Store(prompt));
  EXPECT_NO_THROW(EXPECT_TRUE(f.manager->Root(TestSpec(Cut::kNone)).ok()));
  EXPECT_GE(Exceptions(f), 2);
  EXPECT_TRUE(f.manager->Flush(InAMinute()).ok()) << "nothing is on its way";
  EXPECT_EQ(f.Match(prompt), 0u);
  EXPECT_EQ(f.manager->Stats().pool_used_bytes, 0u);
  executor->throws = false;
  EXPECT_EQ(f.Store(prompt), 2u) << "a claim stayed";
  executor->steps.RunAll();
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
  EXPECT_TRUE(f.manager->Close(InAMinute()).ok());
}

TEST(CallbackFaultTest, WhatASizeCallbackThrowsIsAStatus) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  const Result<PrepareResult> result = f.manager->Prepare(
      f.root, prompt, {0, prompt.size()}, [](TokenRange tokens, ObjectPart) -> Result<uint64_t> {
        if (tokens.begin > 0) throw std::runtime_error("by the test");
        return kTestPayload;
      });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->chunks.size(), 1u);
  EXPECT_EQ(result->status.code(), StatusCode::kInternal);
  EXPECT_NE(result->status.ToString().find("by the test"), std::string::npos);
  EXPECT_EQ(Exceptions(f), 1);
}

}  // namespace
}  // namespace terrace
