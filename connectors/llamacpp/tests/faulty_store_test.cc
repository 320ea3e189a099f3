// A store whose disk fails, lies, forgets, is late, never answers or throws: the host's answers are the
// engine's, and nothing hangs.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "connectors/llamacpp/tests/engine_host.h"
#include "connectors/llamacpp/tests/shaped_store.h"
#include "tests/support/fault_backend.h"
#include "tests/support/throwing_backend.h"

namespace terrace::llamacpp {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kMiB = uint64_t{1} << 20;

class FaultyStoreTest : public testing::Test {
 protected:
  std::unique_ptr<LlamaCache> Cache(const std::shared_ptr<StorageManager>& store,
                                    LlamaCacheOptions options = {}) {
    return MakeCache(model_.get(), params_, store, options);
  }
  std::shared_ptr<StorageManager> Open(const StoreShape& shape) {
    auto store = OpenShaped(shape);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? *store : nullptr;
  }
  // The prompt's chunks, in the directory.
  void Write(const std::vector<llama_token>& prompt) {
    const auto store = Open({.directory = directory_.path()});
    ASSERT_NE(store, nullptr);
    ASSERT_EQ(RunPrompt(*Cache(store), 0, prompt).stored_objects, prompt.size() / 256);
    CloseStore(*store);
  }

  const ModelPtr model_ = MakeTinyModel(TinyArchitecture::kGqa);
  const llama_context_params params_ = TinyContextParams();
  const TemporaryDirectory directory_;
  BareEngine bare_{model_.get(), params_};
};

// Three prompts that part on chunk boundaries, so that how a stored row was computed does not depend on which
// of them stored it.
class FaultSequenceTest : public FaultyStoreTest {
 protected:
  FaultSequenceTest() {
    const std::vector<llama_token> document = RandomTokens(700, 91);
    prompts_ = {document, Joined(document, 512, RandomTokens(150, 92)),
                Joined(document, 256, RandomTokens(300, 93))};
    rates_.get = {.error = 0.12, .not_found = 0.08, .corrupt = 0.15, .late = 0.2};
    rates_.put = {.error = 0.1, .error_after = 0.1, .late = 0.2};
    rates_.erase = {.error = 0.1, .error_after = 0.1};
    rates_.flush = {.error = 0.1};
    rates_.late_by = std::chrono::milliseconds(1);
  }

  // The engine alone: the prompt in chunks, cut where the hit ended, then the rest.
  const std::vector<float>& Reference(size_t index, size_t ready) {
    std::vector<float>& logits = references_[{index, ready}];
    if (!logits.empty()) return logits;
    const std::vector<llama_token>& prompt = prompts_[index];
    bare_.Clear();
    std::vector<size_t> ends;
    for (size_t end = 256; end < prompt.size(); end += 256) ends.push_back(end);
    ends.push_back(prompt.size());
    logits = bare_.Decode(prompt, 0, ends);
    if (ready % 256 != 0) {
      EXPECT_EQ(ready, prompt.size() - 1);
      bare_.Cut(ready);
      logits = bare_.Decode(prompt, ready, {prompt.size()});
    }
    return logits;
  }

  void RunSession(uint64_t seed, std::mt19937_64& random) {
    FaultBackend* faults = nullptr;
    rates_.seed = seed;
    StoreShape shape{.directory = directory_.path() / std::to_string(seed / 100)};
    shape.wrap_nvme = WrapIn(&faults, rates_);
    if (seed % 2 == 1) shape.host_bytes = 1 * kMiB;
    const std::shared_ptr<StorageManager> store = Open(shape);
    ASSERT_NE(store, nullptr);
    const auto cache = Cache(store);
    for (int step = 0; step < 8; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      const size_t index = random() % prompts_.size();
      if (random() % 4 != 0) EmptySlot(*cache, 0);
      const HostRun run = RunPrompt(*cache, 0, prompts_[index], random() % 3 == 0);
      EXPECT_EQ(run.decoded, prompts_[index].size() - run.fetch.ready_tokens);
      ASSERT_TRUE(SameBytes(run.logits, Reference(index, run.fetch.ready_tokens)));
      loaded_tokens_ += run.fetch.loaded_tokens;
      if (!run.fetch.reason.ok()) ++failed_loads_;
      if (random() % 2 == 0) {
        const Status flushed = store->Flush(steady_clock::now() + std::chrono::seconds(60));
        ASSERT_NE(flushed.code(), StatusCode::kDeadlineExceeded) << flushed.ToString();
      }
    }
    EXPECT_EQ(cache->counters().injection_failures, 0u);
    corrupt_objects_ += store->Stats().corrupt_objects;
    const FaultCounts counts = faults->counts();
    total_.errors += counts.errors;
    total_.errors_after += counts.errors_after;
    total_.not_found += counts.not_found;
    total_.corrupt += counts.corrupt;
    total_.late += counts.late;
    const Status closed = store->Close(steady_clock::now() + std::chrono::seconds(60));
    ASSERT_NE(closed.code(), StatusCode::kDeadlineExceeded) << closed.ToString();
  }

  std::vector<std::vector<llama_token>> prompts_;
  FaultOptions rates_;
  std::map<std::pair<size_t, size_t>, std::vector<float>> references_;
  FaultCounts total_;
  uint64_t loaded_tokens_ = 0;
  uint64_t failed_loads_ = 0;
  uint64_t corrupt_objects_ = 0;
};

TEST_F(FaultSequenceTest, EveryAnswerIsTheEngines) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    // Two lives of one directory.
    for (uint64_t life = 0; life < 2; ++life) {
      SCOPED_TRACE("life " + std::to_string(life));
      RunSession(seed * 100 + life, random);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(total_.errors, 0u);
  EXPECT_GT(total_.errors_after, 0u);
  EXPECT_GT(total_.not_found, 0u);
  EXPECT_GT(total_.corrupt, 0u);
  EXPECT_GT(total_.late, 0u);
  EXPECT_GT(corrupt_objects_, 0u);
  EXPECT_GT(failed_loads_, 10u);
  EXPECT_GT(loaded_tokens_, 10u * 512);
}

class HeldReadsTest : public FaultyStoreTest {
 protected:
  // Fetch returns while the store still holds its reads from the `passed`-th on.
  void ExpectGivenUp(size_t passed) {
    HeldBackend* held = nullptr;
    // One chunk per call of the store: small ones would be read together.
    const auto store =
        Open({.load_window_bytes = 1, .directory = directory_.path(), .wrap_nvme = WrapIn(&held)});
    ASSERT_NE(store, nullptr);
    LlamaCacheOptions options;
    options.load_deadline = std::chrono::seconds(2);  // long enough for what is not held, on any machine
    const auto cache = Cache(store, options);
    held->HoldGets(passed);
    const HostRun run = RunPrompt(*cache, 0, prompt_);
    EXPECT_GT(held->held(), 0u);
    EXPECT_EQ(run.fetch.reason.code(), StatusCode::kDeadlineExceeded) << run.fetch.reason.ToString();
    EXPECT_EQ(run.fetch.ready_tokens, passed * 256);
    EXPECT_EQ(run.decoded, prompt_.size() - passed * 256);
    EXPECT_TRUE(SameBytes(run.logits, bare_.OneShot(prompt_)));
    // The late bytes go nowhere; the next prompts are served.
    held->Release();
    const std::vector<llama_token> other = RandomTokens(300, 96);
    EXPECT_TRUE(SameBytes(RunPrompt(*cache, 0, other).logits, bare_.OneShot(other)));
    const HostRun hit = RunPrompt(*cache, 0, prompt_);
    EXPECT_EQ(hit.fetch.loaded_tokens, 768u) << hit.fetch.reason.ToString();
    EXPECT_TRUE(SameBytes(hit.logits, run.logits));
    CloseStore(*store);
  }

  const std::vector<llama_token> prompt_ = RandomTokens(800, 95);
};

TEST_F(HeldReadsTest, FetchGivesUpAtItsDeadline) {
  Write(prompt_);
  ExpectGivenUp(0);
}

TEST_F(HeldReadsTest, WhatArrivedInTimeStays) {
  Write(prompt_);
  ExpectGivenUp(1);
}

TEST_F(HeldReadsTest, ACacheThatEndsWithReadsInFlight) {
  Write(prompt_);
  HeldBackend* held = nullptr;
  const auto store = Open({.directory = directory_.path(), .wrap_nvme = WrapIn(&held)});
  ASSERT_NE(store, nullptr);
  LlamaCacheOptions options;
  options.load_deadline = std::chrono::milliseconds(1);
  held->HoldGets();
  EXPECT_EQ(Cache(store, options)->Fetch(0, prompt_).ready_tokens, 0u);
  EXPECT_GT(held->held(), 0u);
  held->Release();
  EXPECT_EQ(Cache(store)->Fetch(0, prompt_).ready_tokens, 768u);
  CloseStore(*store);
}

class ThrowingStoreTest : public FaultyStoreTest {
 protected:
  const std::vector<llama_token> prompt_ = RandomTokens(800, 97);
};

TEST_F(ThrowingStoreTest, NoExceptionOfTheDiskReachesTheHost) {
  Write(prompt_);
  ThrowingBackend* disk = nullptr;
  const auto store = Open({.directory = directory_.path(), .wrap_nvme = WrapIn(&disk)});
  ASSERT_NE(store, nullptr);
  disk->SetThrows(true);
  const auto cache = Cache(store);  // its root is put, too
  const HostRun run = RunPrompt(*cache, 0, prompt_, true);
  EXPECT_EQ(run.fetch.ready_tokens, 0u);
  EXPECT_EQ(run.decoded, 800u);
  EXPECT_TRUE(SameBytes(run.logits, bare_.OneShot(prompt_)));
  const Status flushed = store->Flush(steady_clock::now() + std::chrono::seconds(60));
  EXPECT_FALSE(flushed.ok());
  EXPECT_NE(flushed.code(), StatusCode::kDeadlineExceeded) << flushed.ToString();
  EXPECT_GT(disk->thrown(), 2u);
  EXPECT_FALSE(store->Clear().ok());
  disk->SetThrows(false);
  const std::vector<llama_token> other = RandomTokens(300, 98);
  EXPECT_TRUE(SameBytes(RunPrompt(*cache, 0, other).logits, bare_.OneShot(other)));
  CloseStore(*store);
}

TEST_F(ThrowingStoreTest, NoExceptionOfTheHostTierReachesTheHost) {
  ThrowingBackend* host = nullptr;
  const auto store = Open({.host_bytes = 16 * kMiB, .wrap_host = WrapIn(&host)});
  ASSERT_NE(store, nullptr);
  const auto cache = Cache(store);
  EXPECT_EQ(RunPrompt(*cache, 0, prompt_).stored_objects, 3u);
  ASSERT_TRUE(store->Flush().ok());
  host->SetThrows(true);
  EmptySlot(*cache, 0);
  const HostRun run = RunPrompt(*cache, 0, prompt_, true);
  EXPECT_EQ(run.fetch.ready_tokens, 0u);
  EXPECT_FALSE(run.fetch.reason.ok());
  EXPECT_GT(host->thrown(), 0u);
  EXPECT_EQ(run.decoded, 800u);
  EXPECT_TRUE(SameBytes(run.logits, bare_.OneShot(prompt_)));
  host->SetThrows(false);
  const Status closed = store->Close(steady_clock::now() + std::chrono::seconds(60));
  EXPECT_TRUE(closed.ok()) << closed.ToString();
}

TEST_F(ThrowingStoreTest, ADiskThatThrowsWhileItIsOpenedIsAStatus) {
  Write(prompt_);
  ThrowingBackend* disk = nullptr;
  const auto store = OpenShaped({.directory = directory_.path(), .wrap_nvme = WrapIn(&disk, true)});
  EXPECT_FALSE(store.ok());
}

}  // namespace
}  // namespace terrace::llamacpp
