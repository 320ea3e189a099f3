// Threads over one manager: every payload that is loaded is one that a history allows, what was erased is not
// answered, and at the end every pin and buffer is back.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "terrace/nvme_backend.h"
#include "terrace/token_hasher.h"
#include "tests/model/model_payload.h"
#include "tests/model/save_history.h"
#include "tests/support/fault_backend.h"
#include "tests/support/manager_fixture.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSteps = 400;
#else
constexpr int kSteps = 3'000;
#endif
constexpr uint64_t kNumThreads = 4;
constexpr uint64_t kPoolBytes = 4 << 20;
constexpr size_t kMaxChunks = 5;

struct SharedPrompt {
  std::vector<Token> tokens;
  std::vector<ChunkKey> keys;  // of its full chunks
};

// One manager under test, and what all threads know of it.
class SharedManager {
 public:
  explicit SharedManager(std::unique_ptr<Backend> disk) {
    StorageOptions options;
    options.pool_bytes = kPoolBytes;
    options.huge_pages = false;
    options.lease_time = std::chrono::milliseconds(20);
    options.threads.num_threads = 2;
    options.log = MakeNullLogSink();
    std::vector<Tier> tiers(2);
    tiers[0].backend = *MakeHostBackend({.capacity_bytes = kPoolBytes});
    tiers[1].backend = std::move(disk);
    manager = *StorageManager::Open(options, std::move(tiers));
    root = *manager->Root(TestSpec());
    // A few trunks, each with branches: prompts share their first chunks.
    for (Token trunk = 1; trunk <= 3; ++trunk) {
      for (Token branch = 0; branch < 4; ++branch) {
        SharedPrompt prompt;
        prompt.tokens = TestTokens(kMaxChunks * kTestChunk, trunk);
        for (size_t i = (1 + branch) * kTestChunk; i < prompt.tokens.size(); ++i) prompt.tokens[i] += branch;
        TokenHasher hasher(root, kTestChunk);
        EXPECT_TRUE(hasher.Append(prompt.tokens).ok());
        prompt.keys.assign(hasher.full_keys().begin(), hasher.full_keys().end());
        prompts.push_back(std::move(prompt));
      }
    }
  }

  std::unique_ptr<StorageManager> manager;
  ChunkKey root;
  std::vector<SharedPrompt> prompts;
  SaveHistory history;
  std::atomic<uint64_t> loaded{0};
  std::atomic<uint64_t> erased{0};
};

// What one thread does.
class Worker {
 public:
  Worker(SharedManager& shared, uint64_t seed, bool with_erases)
      : shared_(shared), random_(seed), with_erases_(with_erases) {}

  void Run() {
    for (int step = 0; step < kSteps && !testing::Test::HasFailure(); ++step) {
      const uint64_t kind = random_() % 100;
      if (kind < 40) {
        Store();
      } else if (kind < 80) {
        Load();
      } else if (kind < 88) {
        if (with_erases_) Erase();
      } else if (kind < 94) {
        HoldLease();
      } else if (kind < 97) {
        EXPECT_LE(shared_.manager->Stats().pool_used_bytes, kPoolBytes);
      } else {
        shared_.manager->Flush(std::chrono::steady_clock::now() + std::chrono::milliseconds(1)).IgnoreError();
      }
    }
  }

 private:
  const SharedPrompt& DrawPrompt() { return shared_.prompts[random_() % shared_.prompts.size()]; }
  TokenView DrawPrefix(const SharedPrompt& prompt) {
    return std::span(prompt.tokens).first((1 + random_() % kMaxChunks) * kTestChunk);
  }

  void Store() {
    const TokenView prompt = DrawPrefix(DrawPrompt());
    const uint64_t payload_bytes = 5'000 + random_() % 90'000;
    Result<PrepareResult> prepared =
        shared_.manager->Prepare(shared_.root, prompt, {0, prompt.tokens.size()},
                                 [&](TokenRange, ObjectPart) { return payload_bytes; });
    ASSERT_TRUE(prepared.ok()) << prepared.status().ToString();
    if (!with_erases_ && random_() % 8 == 0) return;  // abandoned
    std::vector<WritableChunk> filled;
    std::vector<std::pair<ObjectId, uint64_t>> saves;
    for (PreparedChunk& chunk : prepared->chunks) {
      if (!chunk.writable) continue;
      saves.emplace_back(chunk.id, shared_.history.BeginCommit(chunk.id));
      ModelPayload(chunk.id, saves.back().second).Fill(chunk.writable->payload());
      filled.push_back(*std::move(chunk.writable));
    }
    shared_.manager->Commit(std::move(filled));
    for (const auto& [id, save] : saves) shared_.history.EndCommit(id, save);
  }

  void Load() {
    const TokenView prompt = DrawPrefix(DrawPrompt());
    Result<Lease> lease = shared_.manager->Lookup(shared_.root, prompt, {.request_id = random_() % 6});
    ASSERT_TRUE(lease.ok()) << lease.status().ToString();
    const uint64_t began = shared_.history.Now();
    LoadHandle handle = shared_.manager->Load(*lease, {0, lease->matched_tokens()});
    std::vector<LeasedChunk> held;
    const uint64_t stop_after = random_() % 6 == 0 ? random_() % kMaxChunks : UINT64_MAX;
    for (uint64_t n = 0; n < stop_after; ++n) {
      Result<std::optional<LeasedChunk>> next =
          handle.Next(std::chrono::steady_clock::now() + std::chrono::seconds(30));
      ASSERT_TRUE(next.ok()) << next.status().ToString();
      if (!next->has_value()) break;
      Check(**next, began);
      ++shared_.loaded;
      if (random_() % 4 == 0) held.push_back(**std::move(next));
    }
    for (const LeasedChunk& chunk : held) Check(chunk, began);
  }

  void Check(const LeasedChunk& chunk, uint64_t began) {
    const uint64_t save = ModelPayload::SaveOf(chunk.payload());
    EXPECT_EQ(shared_.history.WhyNot(chunk.id(), save, began), "");
    EXPECT_TRUE(ModelPayload(chunk.id(), save).Equals(chunk.payload())) << "wrong bytes";
  }

  // Erased with what hangs below it, and not answered any more until it is stored again.
  void Erase() {
    const SharedPrompt& prompt = DrawPrompt();
    const size_t at = random_() % kMaxChunks;
    const ChunkKey key = prompt.keys[at];
    const uint64_t commits = shared_.history.CommitsBegun({key, {}});
    const uint64_t began = shared_.history.Now();
    const Result<uint64_t> count = shared_.manager->Erase({&key, 1});
    ASSERT_TRUE(count.ok()) << count.status().ToString();
    shared_.erased += *count;
    for (const SharedPrompt& other : shared_.prompts) {
      if (other.keys[at] != key) continue;
      for (size_t below = at; below < kMaxChunks; ++below)
        shared_.history.EndErase({other.keys[below], {}}, began);
    }
    Result<Lease> lease = shared_.manager->Lookup(shared_.root, prompt.tokens);
    ASSERT_TRUE(lease.ok());
    if (shared_.history.CommitsBegun({key, {}}) == commits) {
      EXPECT_LE(lease->matched_tokens(), at * kTestChunk) << "answered after its erase returned";
    }
  }

  void HoldLease() {
    Result<Lease> lease =
        shared_.manager->Lookup(shared_.root, DrawPrefix(DrawPrompt()), {.request_id = random_() % 6});
    ASSERT_TRUE(lease.ok());
    leases_.push_back(*std::move(lease));
    if (leases_.size() > 4) leases_.erase(leases_.begin());
  }

  SharedManager& shared_;
  std::mt19937_64 random_;
  const bool with_erases_;
  std::vector<Lease> leases_;
};

void RunThreads(SharedManager& shared, uint64_t seed, bool with_erases) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::vector<std::thread> threads;
  for (uint64_t id = 0; id < kNumThreads; ++id) {
    threads.emplace_back(
        [&shared, seed, id, with_erases] { Worker(shared, seed * kNumThreads + id, with_erases).Run(); });
  }
  for (std::thread& thread : threads) thread.join();
  const auto in_time = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  EXPECT_TRUE(shared.manager->Flush(in_time).ok());
  const ManagerStats stats = shared.manager->Stats();
  EXPECT_EQ(stats.active_leases, 0u);
  EXPECT_EQ(stats.pending_writes, 0u);
  EXPECT_EQ(stats.pool_used_bytes, stats.tiers[0].used_bytes) << "a buffer did not come back";
  EXPECT_LE(stats.tiers[1].used_bytes, stats.tiers[1].capacity_bytes);
  EXPECT_EQ(stats.corrupt_objects, 0u) << "nothing was damaged";
  EXPECT_GT(shared.loaded.load(), uint64_t{kSteps}) << "the threads must load";
  if (with_erases) {
    EXPECT_GT(shared.erased.load(), uint64_t{kSteps} / 20);
  }
  EXPECT_TRUE(shared.manager->Close(in_time).ok());
}

// A disk whose completions come on a thread of their own, some of them late.
std::unique_ptr<Backend> LateDisk(uint64_t seed) {
  FaultOptions late;
  late.seed = seed;
  late.get.late = late.put.late = late.erase.late = 0.1;
  late.late_by = std::chrono::milliseconds(1);
  return std::make_unique<FaultBackend>(MakeMemoryDisk(std::make_shared<MemoryPlatters>(), 2 * kPoolBytes),
                                        late);
}

TEST(ThreadsTest, LoadsGiveWhatTheHistoryAllows) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SharedManager shared(LateDisk(seed));
    RunThreads(shared, seed, true);
  }
}

TEST(ThreadsTest, AbandonedStoresLeaveNothingBehind) {
  SharedManager shared(LateDisk(7));
  RunThreads(shared, 7, false);
}

TEST(ThreadsTest, TheSameOverTheNvmeTier) {
  TemporaryDirectory directory;
  SharedManager shared(*MakeNvmeBackend(
      {.directory = directory / "cache", .capacity_bytes = 48 << 20, .segment_bytes = 16 << 20}));
  RunThreads(shared, 11, true);
}

}  // namespace
}  // namespace terrace
