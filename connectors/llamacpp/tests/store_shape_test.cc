// Stores with room for one chunk or none, without a usable directory, full, two of them, closed at work: the
// host's answers are the engine's.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "connectors/llamacpp/tests/engine_host.h"
#include "connectors/llamacpp/tests/shaped_store.h"

namespace terrace::llamacpp {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kChunkBytes =
    192 * kKiB;  // of the tiny model: 136 KiB with tier page and header, in pool units

class StoreShapeTest : public testing::Test {
 protected:
  // In the steps of RunPrompt from the beginning: what any hit on a boundary equals too.
  void ExpectRight(const HostRun& run, const std::vector<llama_token>& prompt) {
    EXPECT_EQ(run.fetch.ready_tokens % 256, 0u);
    EXPECT_EQ(run.decoded, prompt.size() - run.fetch.ready_tokens);
    EXPECT_TRUE(SameBytes(run.logits, bare_.OneShot(prompt)));
  }
  std::unique_ptr<LlamaCache> Cache(const std::shared_ptr<StorageManager>& store) {
    return MakeCache(model_.get(), params_, store);
  }

  const ModelPtr model_ = MakeTinyModel(TinyArchitecture::kGqa);
  const llama_context_params params_ = TinyContextParams();
  const TemporaryDirectory directory_;
  BareEngine bare_{model_.get(), params_};
};

struct CapacityCase {
  const char* name;
  uint64_t pool_bytes;
  std::optional<uint64_t> host_bytes;
  std::optional<uint64_t> nvme_bytes;
  uint64_t second_hit;  // tokens ready when the same prompt comes again
  uint64_t hit_after_reopen;
};

class CapacityTest : public StoreShapeTest, public testing::WithParamInterface<CapacityCase> {};

TEST_P(CapacityTest, InferenceGoesOn) {
  const CapacityCase& tested = GetParam();
  StoreShape shape{.pool_bytes = tested.pool_bytes, .host_bytes = tested.host_bytes};
  if (tested.nvme_bytes) {
    shape.directory = directory_.path() / "tier";
    shape.nvme_bytes = *tested.nvme_bytes;
  }
  const std::vector<llama_token> prompt = RandomTokens(600, 61);
  {
    const auto store = OpenShaped(shape);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const auto cache = Cache(*store);
    ExpectRight(RunPrompt(*cache, 0, prompt), prompt);
    ASSERT_TRUE((*store)->Flush().ok());
    EmptySlot(*cache, 0);
    const HostRun second = RunPrompt(*cache, 0, prompt);
    EXPECT_EQ(second.fetch.ready_tokens, tested.second_hit) << second.fetch.reason.ToString();
    ExpectRight(second, prompt);
    // Others push it out, or find no room.
    for (uint64_t seed = 62; seed < 66; ++seed) {
      const std::vector<llama_token> other = RandomTokens(600, seed);
      ExpectRight(RunPrompt(*cache, 0, other), other);
    }
    ExpectRight(RunPrompt(*cache, 0, prompt), prompt);
    ASSERT_TRUE((*store)->Flush().ok());
    for (const TierStats& tier : (*store)->Stats().tiers) {
      EXPECT_LE(tier.used_bytes, tier.capacity_bytes) << tier.name;
      if (tested.second_hit == 0) {
        EXPECT_EQ(tier.objects, 0u) << tier.name;
      }
    }
    CloseStore(**store);
  }
  const auto store = OpenShaped(shape);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  const auto cache = Cache(*store);
  const HostRun reopened = RunPrompt(*cache, 0, prompt);
  EXPECT_EQ(reopened.fetch.ready_tokens, tested.hit_after_reopen) << reopened.fetch.reason.ToString();
  ExpectRight(reopened, prompt);
  CloseStore(**store);
}

INSTANTIATE_TEST_SUITE_P(
    All, CapacityTest,
    testing::Values(CapacityCase{"nothing", 0, 0, std::nullopt, 0, 0},
                    CapacityCase{"pool_of_zero_over_nvme", 0, 0, 96 * kMiB, 0, 0},
                    CapacityCase{"pool_of_one_chunk", kChunkBytes, kChunkBytes, std::nullopt, 256, 0},
                    CapacityCase{"host_of_zero", 64 * kMiB, 0, std::nullopt, 0, 0},
                    CapacityCase{"host_of_one_chunk", 64 * kMiB, kChunkBytes, std::nullopt, 256, 0},
                    CapacityCase{"nvme_of_zero", 64 * kMiB, std::nullopt, 0, 0, 0},
                    CapacityCase{"nvme_of_one_chunk", 64 * kMiB, std::nullopt, 2 * kMiB, 512, 512},
                    CapacityCase{"host_of_zero_over_nvme", 64 * kMiB, 0, 96 * kMiB, 512, 512},
                    CapacityCase{"one_chunk_over_nvme", 64 * kMiB, kChunkBytes, 96 * kMiB, 512, 512},
                    CapacityCase{"host_over_nvme_of_zero", 64 * kMiB, 48 * kMiB, 0, 512, 0}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST_F(StoreShapeTest, AFullTierEvictsAndAnswersStayRight) {
  const StoreShape shape{.directory = directory_.path() / "tier", .nvme_bytes = 3 * kMiB};
  const auto store = OpenShaped(shape);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  const auto cache = Cache(*store);
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const std::vector<llama_token> prompt = RandomTokens(700, 100 + seed);
    ExpectRight(RunPrompt(*cache, 0, prompt), prompt);
    ASSERT_TRUE((*store)->Flush().ok());
    EmptySlot(*cache, 0);
    const HostRun again = RunPrompt(*cache, 0, prompt);
    EXPECT_EQ(again.fetch.ready_tokens, 512u);  // the newest has room
    ExpectRight(again, prompt);
  }
  const TierStats tier = (*store)->Stats().tiers.at(0);
  EXPECT_GT(tier.evictions, 0u);
  EXPECT_LE(tier.used_bytes, tier.capacity_bytes);
  const std::vector<llama_token> first = RandomTokens(700, 101);
  const HostRun evicted = RunPrompt(*cache, 0, first);
  EXPECT_EQ(evicted.fetch.ready_tokens, 0u);
  ExpectRight(evicted, first);
  CloseStore(**store);
}

TEST_F(StoreShapeTest, AMissingDirectoryIsMade) {
  const std::filesystem::path missing = directory_.path() / "missing";
  const auto store = OpenShaped({.directory = missing});
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  EXPECT_TRUE(std::filesystem::is_directory(missing));
  const auto cache = Cache(*store);
  const std::vector<llama_token> prompt = RandomTokens(300, 66);
  ExpectRight(RunPrompt(*cache, 0, prompt), prompt);
  CloseStore(**store);
}

TEST_F(StoreShapeTest, ADirectoryThatCannotBeIsRefusedAndTheHostGoesOn) {
  const std::filesystem::path file = directory_.path() / "file";
  std::ofstream(file) << "kept";
  for (const std::filesystem::path& path : {file, file / "below", std::filesystem::path("/proc/terrace")}) {
    SCOPED_TRACE(path);
    const auto refused = OpenShaped({.directory = path});
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().ToString().find(path.string()), std::string::npos)
        << refused.status().ToString();
  }
  std::string content;
  std::ifstream(file) >> content;
  EXPECT_EQ(content, "kept");
  const auto cache = Cache(nullptr);
  const std::vector<llama_token> prompt = RandomTokens(300, 67);
  ExpectRight(RunPrompt(*cache, 0, prompt), prompt);
}

TEST_F(StoreShapeTest, TwoManagersAndTwoContextsInOneProcess) {
  const ModelPtr other_model = MakeTinyModel(TinyArchitecture::kGqa, 2);
  BareEngine other_bare(other_model.get(), params_);
  const std::vector<llama_token> prompt = RandomTokens(600, 68);
  const auto first = OpenShaped({.host_bytes = 16 * kMiB, .directory = directory_.path() / "first"});
  const auto second = OpenShaped({.host_bytes = 16 * kMiB, .directory = directory_.path() / "second"});
  ASSERT_TRUE(first.ok() && second.ok());
  // The directory of a manager at work is nobody else's.
  const auto third = OpenShaped({.directory = directory_.path() / "first"});
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.status().code(), StatusCode::kUnavailable) << third.status().ToString();

  const auto cache = Cache(*first);
  const auto other_cache = MakeCache(other_model.get(), params_, *second, {}, "other");
  const HostRun run = RunPrompt(*cache, 0, prompt);
  const HostRun other_run = RunPrompt(*other_cache, 0, prompt);
  EXPECT_EQ(other_run.fetch.ready_tokens, 0u);
  ExpectRight(run, prompt);
  EXPECT_TRUE(SameBytes(other_run.logits, other_bare.OneShot(prompt)));
  EXPECT_FALSE(SameBytes(run.logits, other_run.logits));
  ASSERT_TRUE((*first)->Flush().ok());
  ASSERT_TRUE((*second)->Flush().ok());

  EmptySlot(*cache, 0);
  EmptySlot(*other_cache, 0);
  CloseStore(**first);  // the other works on
  const HostRun other_hit = RunPrompt(*other_cache, 0, prompt);
  EXPECT_EQ(other_hit.fetch.loaded_tokens, 512u);
  EXPECT_TRUE(SameBytes(other_hit.logits, other_run.logits));
  const HostRun computed = RunPrompt(*cache, 0, prompt);
  EXPECT_EQ(computed.decoded, 600u);
  EXPECT_TRUE(SameBytes(computed.logits, run.logits));
  CloseStore(**second);
}

TEST_F(StoreShapeTest, ClosedWithWorkInFlight) {
  HeldBackend* held = nullptr;
  const StoreShape shape{
      .host_bytes = 16 * kMiB, .directory = directory_.path() / "tier", .wrap_nvme = WrapIn(&held)};
  const std::vector<llama_token> prompt = RandomTokens(900, 69);
  {
    const auto store = OpenShaped(shape);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const auto cache = Cache(*store);
    held->HoldPuts();
    const HostRun run = RunPrompt(*cache, 0, prompt);
    EXPECT_EQ(run.stored_objects, 3u);
    ExpectRight(run, prompt);
    EXPECT_EQ((*store)->Flush(std::chrono::steady_clock::now() + std::chrono::milliseconds(20)).code(),
              StatusCode::kDeadlineExceeded);
    EXPECT_GT((*store)->Stats().pending_writes, 0u);
    EXPECT_GT(held->held(), 0u);
    // What is held cannot be drained in this time; it is closed all the same.
    (*store)->Close(std::chrono::steady_clock::now() + std::chrono::milliseconds(20)).IgnoreError();

    EmptySlot(*cache, 0);
    const HostRun computed = RunPrompt(*cache, 0, prompt, true);
    EXPECT_EQ(computed.decoded, 900u);
    EXPECT_EQ(computed.stored_objects, 0u);
    EXPECT_FALSE(computed.save_reason.ok());
    EXPECT_TRUE(SameBytes(computed.logits, run.logits));
    const Status closed = (*store)->Close();
    EXPECT_TRUE(closed.ok()) << closed.ToString();
  }
  // Whatever had arrived is right.
  const auto store = OpenShaped(shape);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  const auto cache = Cache(*store);
  ExpectRight(RunPrompt(*cache, 0, prompt), prompt);
  CloseStore(**store);
}

TEST_F(StoreShapeTest, ClosedWhileSavesAreUnderWay) {
  const StoreShape shape{.host_bytes = 16 * kMiB, .directory = directory_.path() / "tier"};
  const std::vector<llama_token> prompt = RandomTokens(900, 70);
  for (int round = 0; round < 3; ++round) {
    const auto store = OpenShaped(shape);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const auto cache = Cache(*store);
    const HostRun run = RunPrompt(*cache, 0, prompt);
    ExpectRight(run, prompt);
    EXPECT_EQ(run.fetch.ready_tokens, round == 0 ? 0u : 768u);
    const Status closed = (*store)->Close();  // without Flush: Close drains
    EXPECT_TRUE(closed.ok()) << closed.ToString();
  }
}

}  // namespace
}  // namespace terrace::llamacpp
