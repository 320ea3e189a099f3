// What storage_manager.h promises, one test for each promise that needs a scene of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "terrace/nvme_backend.h"
#include "terrace/token_hasher.h"
#include "tests/model/step_backend.h"
#include "tests/support/manager_fixture.h"
#include "tests/support/step_executor.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

TimePoint InSeconds(int seconds) { return std::chrono::steady_clock::now() + std::chrono::seconds(seconds); }

// A manager over a host tier and a disk of which every operation is a step.
struct SteppedFixture : ManagerFixture {
  std::shared_ptr<StepControl> control = std::make_shared<StepControl>(1);

  SteppedFixture() {
    control->clock = &clock;
    wrap_disk = [this](std::unique_ptr<Backend> base) {
      return std::make_unique<StepBackend>(std::move(base), control);
    };
  }
};

// A manager over a host tier and the NVMe tier.
std::unique_ptr<StorageManager> OpenOverNvme(const std::string& directory, uint64_t pool_bytes) {
  StorageOptions options;
  options.pool_bytes = pool_bytes;
  options.huge_pages = false;
  options.log = MakeNullLogSink();
  std::vector<Tier> tiers(2);
  tiers[0].backend = *MakeHostBackend({.capacity_bytes = pool_bytes});
  Result<std::unique_ptr<Backend>> nvme =
      MakeNvmeBackend({.directory = directory, .capacity_bytes = 64 << 20, .segment_bytes = 16 << 20});
  EXPECT_TRUE(nvme.ok()) << nvme.status().ToString();
  tiers[1].backend = *std::move(nvme);
  return *StorageManager::Open(options, std::move(tiers));
}

constexpr uint64_t kPayload = 1'000'000;

// Chunk by chunk, so that the pool never holds two that are not yet written.
void StoreSlowly(StorageManager& manager, const ChunkKey& root, const std::vector<Token>& prompt) {
  for (uint64_t end = kTestChunk; end <= prompt.size(); end += kTestChunk) {
    EXPECT_EQ(StorePrompt(manager, root, std::span(prompt).first(end), {end - kTestChunk, end},
                          [](TokenRange, ObjectPart) { return kPayload; }),
              1u);
    EXPECT_TRUE(manager.Flush(InSeconds(30)).ok());
  }
}

TEST(ContractTest, APrefixOfTwiceTheHostTierComesFromTheNvmeTier) {
  TemporaryDirectory directory;
  const auto manager = OpenOverNvme(directory / "cache", 8 << 20);
  const ChunkKey root = *manager->Root(TestSpec());
  const std::vector<Token> prompt = TestTokens(16 * kTestChunk);
  StoreSlowly(*manager, root, prompt);
  const uint64_t before = manager->Stats().tiers[1].hits;
  EXPECT_EQ(LoadPrompt(*manager, root, prompt), prompt.size());
  EXPECT_GE(manager->Stats().tiers[1].hits - before, 8u) << "half of it is in no memory";
  EXPECT_EQ(LoadPrompt(*manager, root, prompt), prompt.size());
  const ManagerStats stats = manager->Stats();
  EXPECT_EQ(stats.pool_used_bytes, stats.tiers[0].used_bytes);
}

// Two loads of twice the host tier, in one thread by turns, each with a chunk in its hand.
TEST(ContractTest, TwoLoadsByTurnsDoNotWaitForEachOther) {
  TemporaryDirectory directory;
  const auto manager = OpenOverNvme(directory / "cache", 8 << 20);
  const ChunkKey root = *manager->Root(TestSpec());
  const std::vector<Token> prompt = TestTokens(16 * kTestChunk);
  const std::vector<Token> other = TestTokens(16 * kTestChunk, 2);
  StoreSlowly(*manager, root, prompt);
  StoreSlowly(*manager, root, other);
  for (const bool holding : {false, true}) {
    SCOPED_TRACE(holding ? "a chunk is held while the next is waited for" : "a chunk is let go at once");
    std::vector<Lease> leases;
    std::vector<LoadHandle> loads;
    for (const std::vector<Token>* tokens : {&prompt, &other}) {
      leases.push_back(*manager->Lookup(root, *tokens));
      EXPECT_EQ(leases.back().matched_tokens(), tokens->size());
      loads.push_back(manager->Load(leases.back(), {0, leases.back().matched_tokens()}));
    }
    std::vector<std::optional<LeasedChunk>> held(2);
    for (size_t turn = 0; turn < 2 * 16; ++turn) {
      Result<std::optional<LeasedChunk>> next = loads[turn % 2].Next(InSeconds(5));
      ASSERT_TRUE(next.ok()) << "turn " << turn << ": " << next.status().ToString();
      ASSERT_TRUE(next->has_value()) << "turn " << turn << ": " << loads[turn % 2].report().status.ToString();
      EXPECT_TRUE(PayloadIsRight(**next));
      if (holding) held[turn % 2] = std::move(*next);
    }
    for (LoadHandle& load : loads) EXPECT_EQ(load.report().loaded_tokens, prompt.size());
  }
}

// A poll is enough to go on once others have given room back.
TEST(ContractTest, APollingLoadGetsRoomThatOthersGiveBack) {
  ManagerFixture f;
  f.with_host = false;
  f.options.pool_bytes = 3 * 128 * 1024;  // two for stores, two for loads
  f.options.load_window_bytes = f.options.pool_bytes;
  f.Open();
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  ASSERT_EQ(f.Store(std::span(prompt).first(kTestChunk)), 1u);
  ASSERT_TRUE(f.manager->Flush(InSeconds(30)).ok());
  ASSERT_EQ(f.Store(prompt, kTestChunk), 1u);
  ASSERT_TRUE(f.manager->Flush(InSeconds(30)).ok());
  const auto sizes = [](TokenRange, ObjectPart) { return kTestPayload; };
  const std::vector<Token> other = TestTokens(2 * kTestChunk, 9);
  Result<PrepareResult> foreign = f.manager->Prepare(f.root, other, {0, other.size()}, sizes);
  ASSERT_TRUE(foreign.ok() && foreign->status.ok()) << "they leave room for one";
  const Result<Lease> lease = f.manager->Lookup(f.root, prompt);
  LoadHandle load = f.manager->Load(*lease, {0, lease->matched_tokens()});
  Result<std::optional<LeasedChunk>> first = load.Next(InSeconds(30));
  ASSERT_TRUE(first.ok() && first->has_value());
  EXPECT_EQ(load.Next(std::chrono::steady_clock::now()).status().code(), StatusCode::kDeadlineExceeded);
  foreign->chunks.clear();
  bool has_arrived = false;
  for (int poll = 0; poll < 100 && !has_arrived; ++poll) {
    const Result<std::optional<LeasedChunk>> next = load.Next(std::chrono::steady_clock::now());
    has_arrived = next.ok() && next->has_value();
  }
  EXPECT_TRUE(has_arrived);
}

TEST(ContractTest, ALateWriteToACancelledLoadsBufferHurtsNobody) {
  SteppedFixture f;
  f.options.pool_bytes = 6 * 128 * 1024;
  f.Open();
  const std::vector<Token> prompt = TestTokens(5 * kTestChunk);
  const std::vector<Token> other = TestTokens(5 * kTestChunk, 2);
  for (const std::vector<Token>* tokens : {&prompt, &other}) {
    // Stores never hold the whole pool: in two halves.
    ASSERT_EQ(f.Store(std::span(*tokens).first(3 * kTestChunk)), 3u);
    ASSERT_TRUE(f.manager->Flush(InSeconds(30)).ok());
    ASSERT_EQ(f.Store(*tokens, 3 * kTestChunk), 2u);
    ASSERT_TRUE(f.manager->Flush(InSeconds(30)).ok());
  }
  ASSERT_TRUE(f.manager->Close().ok());
  f.Open();
  uint64_t abandoned = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    f.control->random.seed(seed);
    f.control->holding = true;
    {
      const Result<Lease> lease = f.manager->Lookup(f.root, seed % 2 ? prompt : other);
      LoadHandle load = f.manager->Load(*lease, {0, lease->matched_tokens()});
      load.Cancel();
    }
    f.control->holding = false;
    f.control->Drain(true);
    abandoned += f.control->orphans.size();
    uint64_t orphaned_bytes = 0;
    for (const BufferRef& buffer : f.control->orphans) orphaned_bytes += buffer.size_bytes();
    MetricRegistry& metrics = f.manager->metrics();
    EXPECT_EQ(metrics.Value("terrace_pool_orphaned_bytes"), static_cast<int64_t>(orphaned_bytes));
    EXPECT_EQ(metrics.Value("terrace_pool_load_bytes"), 0) << "what was given up is charged to loads";
    // The pool has room for a part of the other prompt beside what the device still has.
    EXPECT_EQ(f.LoadAll(seed % 2 ? other : prompt), other.size());
    f.control->ScribbleOrphans();
    EXPECT_EQ(metrics.Value("terrace_pool_orphaned_bytes"), 0);
    EXPECT_EQ(f.LoadAll(seed % 2 ? prompt : other), prompt.size());
    const ManagerStats stats = f.manager->Stats();
    EXPECT_EQ(stats.corrupt_objects, 0u);
    EXPECT_EQ(metrics.Value("terrace_tier_load_failures_total", {{"tier", "disk"}}), 0);
    EXPECT_EQ(stats.pool_used_bytes, stats.tiers[0].used_bytes);
  }
  EXPECT_GT(abandoned, 5u) << "no device wrote late";
}

TEST(ContractTest, CloseWithEverythingInFlight) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SteppedFixture f;
    f.control->random.seed(seed);
    auto executor = std::make_shared<StepExecutor>();
    f.options.executor = executor;
    f.options.pool_bytes = 16 * 128 * 1024;
    f.Open();
    const std::vector<Token> stored = TestTokens(4 * kTestChunk);
    const auto sizes = [](TokenRange, ObjectPart) { return kTestPayload; };
    f.Store(stored);
    executor->RunAll();
    ASSERT_TRUE(f.manager->Flush(InSeconds(30)).ok());
    ASSERT_TRUE(f.manager->Close().ok());
    f.Open();
    executor->RunAll();
    const Result<Lease> lease = f.manager->Lookup(f.root, stored);
    ASSERT_EQ(lease->matched_tokens(), stored.size());
    LoadHandle first = f.manager->Load(*lease, {0, kTestChunk});
    const std::optional<LeasedChunk> chunk = *first.Next(InSeconds(30));
    ASSERT_TRUE(chunk.has_value());
    // Reads and writes that the disk holds, a commit that waits for the executor, a chunk that is being
    // filled.
    f.control->holding = true;
    LoadHandle load = f.manager->Load(*lease, {kTestChunk, stored.size()});
    f.Store(TestTokens(2 * kTestChunk, 2));
    executor->RunAll();
    f.Store(TestTokens(2 * kTestChunk, 3));
    Result<PrepareResult> filling =
        f.manager->Prepare(f.root, TestTokens(kTestChunk, 4), {0, kTestChunk}, sizes);
    ASSERT_TRUE(filling.ok() && filling->chunks[0].writable);
    EXPECT_GE(f.control->num_held(StepControl::Kind::kGet), 1u);
    EXPECT_GE(f.control->num_held(StepControl::Kind::kPut), 1u);

    const Status closed = f.manager->Close(InSeconds(0));
    EXPECT_EQ(closed.code(), StatusCode::kDeadlineExceeded) << closed.ToString();
    EXPECT_TRUE(f.manager->Close(InSeconds(30)).ok());
    EXPECT_EQ(f.manager->Lookup(f.root, stored).status().code(), StatusCode::kFailedPrecondition);
    EXPECT_FALSE(f.manager->Load(*lease, {0, stored.size()}).report().status.ok());
    EXPECT_TRUE(PayloadIsRight(*chunk)) << "bytes stay valid while they are held";
    FillPayload(*filling->chunks[0].writable);
    std::vector<WritableChunk> late;
    late.push_back(*std::move(filling->chunks[0].writable));
    f.manager->Commit(std::move(late));
    while (true) {  // what had arrived is handed out, the rest is a miss
      const Result<std::optional<LeasedChunk>> next = load.Next(InSeconds(30));
      ASSERT_TRUE(next.ok()) << next.status().ToString();
      if (!next->has_value()) break;
      EXPECT_TRUE(PayloadIsRight(**next));
    }
    executor->DropAll();
    f.manager.reset();
    f.Open();
    EXPECT_EQ(f.LoadAll(stored), stored.size());
    EXPECT_EQ(f.Match(TestTokens(kTestChunk, 4)), 0u) << "what came after the close was stored";
    executor->DropAll();
  }
}

// --- what a process has of the system

struct SystemUse {
  size_t descriptors = 0;
  size_t threads = 0;
  size_t maps = 0;
  std::string locked;
  friend bool operator==(const SystemUse&, const SystemUse&) = default;
};

size_t CountEntries(const char* folder) {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
}

SystemUse MeasureSystemUse() {
  SystemUse use{.descriptors = CountEntries("/proc/self/fd"), .threads = CountEntries("/proc/self/task")};
  std::string line;
  // Mappings of devices, files and pools; the heaps of threads that have ended stay with the C library.
  for (std::ifstream maps("/proc/self/maps"); std::getline(maps, line);) {
    const size_t path = line.find_first_of("/[");
    if (path != std::string::npos && line[path] == '/') ++use.maps;
  }
  for (std::ifstream status("/proc/self/status"); std::getline(status, line);) {
    if (line.starts_with("VmLck")) use.locked = line;
  }
  return use;
}

TEST(ContractTest, OpenAndCloseLeaveNothingOfTheSystemBehind) {
  TemporaryDirectory directory;
  const auto open_and_close = [&] {
    const auto manager = OpenOverNvme(directory / "cache", 4 << 20);
    const ChunkKey root = *manager->Root(TestSpec());
    const std::vector<Token> prompt = TestTokens(kTestChunk);
    StorePrompt(*manager, root, prompt, {0, prompt.size()}, [](TokenRange, ObjectPart) { return kPayload; });
    EXPECT_EQ(manager->Flush(InSeconds(30)).code(), StatusCode::kOk);
    EXPECT_EQ(LoadPrompt(*manager, root, prompt), prompt.size());
    EXPECT_TRUE(manager->Close(InSeconds(30)).ok());
  };
  open_and_close();
  const SystemUse once = MeasureSystemUse();
  for (int i = 0; i < 99; ++i) open_and_close();
  const SystemUse often = MeasureSystemUse();
  EXPECT_EQ(once.descriptors, often.descriptors);
  EXPECT_EQ(once.threads, often.threads);
#ifndef __SANITIZE_THREAD__  // which cuts the program's own mappings into pieces, at times of its own
  EXPECT_EQ(once.maps, often.maps);
#endif
  EXPECT_EQ(once.locked, often.locked);
}

// --- callbacks and restarts

TEST(ContractTest, AnExceptionFromASizeCallbackGivesTheClaimBack) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  const PayloadSizes throwing = [](TokenRange tokens, ObjectPart) -> Result<uint64_t> {
    if (tokens.begin > 0) throw std::runtime_error("thrown by the test");
    return kTestPayload;
  };
  try {
    const Result<PrepareResult> result = f.manager->Prepare(f.root, prompt, {0, prompt.size()}, throwing);
    EXPECT_FALSE(result.ok() && result->status.ok());
  } catch (const std::runtime_error&) {
    // The caller's own, on the caller's thread.
  }
  EXPECT_EQ(f.Store(prompt), 2u) << "a claim stayed";
  ASSERT_TRUE(f.manager->Flush(InSeconds(30)).ok());
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
}

TEST(ContractTest, TheSameTokensMatchBeforeAndAfterARestart) {
  for (const Cut cut : {Cut::kNone, Cut::kWhole}) {
    ManagerFixture f;
    f.Open(TestSpec(cut));
    std::mt19937_64 random(5);
    const auto draw = [&](std::vector<Token>& tokens, std::vector<Item>& items) {
      tokens.assign(1 + random() % (4 * kTestChunk), 0);
      for (Token& token : tokens) token = random() % 20 == 0;
      for (uint64_t at = random() % 40; at < tokens.size(); at += 1 + random() % 60)
        items.push_back({at, std::vector<std::byte>(1 + random() % 2, std::byte{1})});
    };
    for (int i = 0; i < 60; ++i) {
      std::vector<Token> tokens;
      std::vector<Item> items;
      draw(tokens, items);
      StorePrompt(*f.manager, f.root, TokenView(tokens, items), {0, tokens.size()},
                  [](TokenRange, ObjectPart) { return 5'000; });
      ASSERT_TRUE(f.manager->Flush(InSeconds(30)).ok());
    }
    std::vector<std::pair<std::vector<Token>, std::vector<Item>>> queries(300);
    std::vector<uint64_t> before;
    for (auto& [tokens, items] : queries) {
      draw(tokens, items);
      before.push_back(f.Match({tokens, items}));
    }
    // The host tier may hold what the disk has given up, or superseded differently; here all has room.
    ASSERT_TRUE(f.manager->Close(InSeconds(30)).ok());
    f.Open(TestSpec(cut));
    for (size_t i = 0; i < queries.size(); ++i) {
      EXPECT_EQ(f.Match({queries[i].first, queries[i].second}), before[i]) << "query " << i;
    }
    const auto partial = [&](uint64_t n) { return n % kTestChunk != 0; };
    EXPECT_GT(std::count_if(before.begin(), before.end(), partial), 10) << "no match ended inside a chunk";
  }
}

}  // namespace
}  // namespace terrace
