// A prompt whose KV lies in a tier that answers for itself: what it gives is used and counted, and whatever
// it does, the engine waits for it no longer than it was told to. The tier is a test's own;
// cache_server_test.cc has a real server.
#include <gtest/gtest.h>

#include <chrono>

#include "connectors/llamacpp/tests/engine_host.h"
#include "tests/support/match_backend.h"

namespace terrace::llamacpp {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr auto kShort = std::chrono::milliseconds(50);
// The deadline, and what a loaded machine may take beyond it.
constexpr double kMostWaitMs = 50 + 10000;

std::shared_ptr<StorageManager> OpenOver(const std::shared_ptr<MatchShelf>& shelf) {
  StorageOptions options;
  options.pool_bytes = 64 * kMiB;
  options.huge_pages = false;
  std::vector<Tier> tiers(2);
  tiers[0].backend = MakeHostBackend({.capacity_bytes = 48 * kMiB}).value();
  tiers[1].backend = MakeMatchBackend(shelf);
  return StorageManager::Open(std::move(options), std::move(tiers)).value();
}

class RemoteTierTest : public testing::Test {
 protected:
  // The document's KV is in the shelf afterwards, and nowhere else.
  void Compute() {
    const std::shared_ptr<StorageManager> store = OpenOver(shelf_);
    EXPECT_EQ(RunPrompt(*MakeCache(model_.get(), params_, store), 0, document_).stored_objects, 2u);
    CloseStore(*store);
    ASSERT_EQ(shelf_->num_objects(), 2u);
    reference_ = BareEngine(model_.get(), params_).Decode(document_, 0, {256, 512, document_.size()});
  }

  const ModelPtr model_ = MakeTinyModel(TinyArchitecture::kGqa);
  const llama_context_params params_ = TinyContextParams();
  const std::vector<llama_token> document_ = RandomTokens(540, 61);
  const std::shared_ptr<MatchShelf> shelf_ = std::make_shared<MatchShelf>();
  std::vector<float> reference_;
};

TEST_F(RemoteTierTest, WhatItHasIsLoadedCountedAndKeptInHostMemory) {
  Compute();
  const std::shared_ptr<StorageManager> store = OpenOver(shelf_);
  const auto cache = MakeCache(model_.get(), params_, store);
  for (const size_t tier : {1u, 0u}) {
    EmptySlot(*cache, 0);
    const HostRun run = RunPrompt(*cache, 0, document_);
    EXPECT_EQ(run.fetch.loaded_tokens, 512u) << run.fetch.reason.ToString();
    EXPECT_EQ(run.decoded, document_.size() - 512);
    ASSERT_EQ(run.fetch.by_tier.size(), tier + 1);
    EXPECT_EQ(run.fetch.by_tier[tier].tokens, 512u);
    EXPECT_EQ(run.fetch.by_tier[tier].objects, 2u);
    EXPECT_TRUE(SameBytes(run.logits, reference_));
  }
  EXPECT_EQ(shelf_->num_matches(), 3u) << "the store that computed, the first run; and the second's tail";
  CloseStore(*store);
}

// The twin: KV of another prompt under the document's keys would be seen.
TEST_F(RemoteTierTest, AValidFrameOfAnotherPrefixChangesTheLogits) {
  Compute();
  const auto planted = std::make_shared<MatchShelf>();
  std::shared_ptr<StorageManager> store = OpenOver(planted);
  const ChunkKey root = MakeCache(model_.get(), params_, store)->root();
  PlantWrongChunks(*store, root, model_.get(), params_, document_, RandomTokens(document_.size(), 62),
                   {256, 512});
  CloseStore(*store);
  ASSERT_EQ(planted->num_objects(), 2u);
  store = OpenOver(planted);
  const HostRun run = RunPrompt(*MakeCache(model_.get(), params_, store), 0, document_);
  EXPECT_EQ(run.fetch.loaded_tokens, 512u) << run.fetch.reason.ToString();
  EXPECT_FALSE(run.logits.empty());
  EXPECT_FALSE(SameBytes(run.logits, reference_));
  CloseStore(*store);
}

TEST_F(RemoteTierTest, ATierThatSaysNothingCostsItsDeadline) {
  Compute();
  const std::shared_ptr<StorageManager> store = OpenOver(shelf_);
  LlamaCacheOptions options;
  options.remote_deadline = kShort;
  const auto cache = MakeCache(model_.get(), params_, store, options);
  shelf_->Set([](MatchShelf& shelf) { shelf.holding_matches = true; });
  const FetchResult fetched = cache->Fetch(0, document_);
  EXPECT_EQ(fetched.ready_tokens, 0u);
  EXPECT_EQ(fetched.reason.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(cache->counters().remote_timeouts, 1u);
  EXPECT_GE(fetched.remote_ms, 50.0);
  EXPECT_LT(fetched.remote_ms, kMostWaitMs);
  shelf_->Set([](MatchShelf& shelf) { shelf.holding_matches = false; });
  shelf_->ReleaseHeld();
  const HostRun run = RunPrompt(*cache, 0, document_);
  EXPECT_EQ(run.fetch.loaded_tokens, 512u) << run.fetch.reason.ToString();
  EXPECT_TRUE(SameBytes(run.logits, reference_));
  CloseStore(*store);
}

TEST_F(RemoteTierTest, BytesThatDoNotComeCostTheLoadsDeadline) {
  Compute();
  const std::shared_ptr<StorageManager> store = OpenOver(shelf_);
  LlamaCacheOptions options;
  options.load_deadline = kShort;
  const auto cache = MakeCache(model_.get(), params_, store, options);
  shelf_->Set([](MatchShelf& shelf) { shelf.holding_gets = true; });
  const HostRun run = RunPrompt(*cache, 0, document_);
  EXPECT_EQ(run.fetch.ready_tokens, 0u);
  EXPECT_EQ(run.fetch.reason.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(run.fetch.by_tier.empty());
  EXPECT_LT(run.fetch.load_ms, kMostWaitMs);
  EXPECT_EQ(run.decoded, document_.size());
  EXPECT_TRUE(SameBytes(run.logits, reference_));
  shelf_->Set([](MatchShelf& shelf) { shelf.holding_gets = false; });
  shelf_->ReleaseHeld();
  CloseStore(*store);
}

TEST_F(RemoteTierTest, ATierThatFailsOrIsNotAskedIsAMiss) {
  Compute();
  const std::shared_ptr<StorageManager> store = OpenOver(shelf_);
  const auto cache = MakeCache(model_.get(), params_, store);
  shelf_->Set([](MatchShelf& shelf) { shelf.match_status = UnavailableError("gone"); });
  const FetchResult failed = cache->Fetch(0, document_);
  EXPECT_EQ(failed.ready_tokens, 0u);
  EXPECT_TRUE(failed.reason.ok()) << failed.reason.ToString();
  EXPECT_EQ(cache->counters().remote_timeouts, 0u);
  shelf_->Set([](MatchShelf& shelf) { shelf.match_status = OkStatus(); });
  const uint64_t asked = shelf_->num_matches();
  LlamaCacheOptions options;
  options.remote_deadline = Duration::zero();
  const FetchResult alone = MakeCache(model_.get(), params_, store, options)->Fetch(0, document_);
  EXPECT_EQ(alone.ready_tokens, 0u);
  EXPECT_EQ(shelf_->num_matches(), asked);
  CloseStore(*store);
}

}  // namespace
}  // namespace terrace::llamacpp
