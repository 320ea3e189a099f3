// The whole stack below an engine: manager, host tier and the real NVMe tier. Threads over a small pool and a
// small disk, and processes that are killed. Every byte is checked.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <thread>

#include "terrace/nvme_backend.h"
#include "terrace/token_hasher.h"
#include "tests/support/manager_fixture.h"

namespace terrace {
namespace {

constexpr uint64_t kPayload = 1'500'000;

class Directory {
 public:
  Directory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "terrace-stack-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_ + "/cache"; }

 private:
  std::string path_;
};

struct Stack {
  std::unique_ptr<StorageManager> manager;
  ChunkKey root;

  Stack(const std::string& directory, uint64_t pool_bytes, uint64_t disk_bytes) {
    StorageOptions options;
    options.pool_bytes = pool_bytes;
    options.log = MakeNullLogSink();
    std::vector<Tier> tiers;
    tiers.push_back({.backend = *MakeHostBackend({.capacity_bytes = pool_bytes})});
    Result<std::unique_ptr<Backend>> nvme =
        MakeNvmeBackend({.directory = directory, .capacity_bytes = disk_bytes, .segment_bytes = 16 << 20});
    EXPECT_TRUE(nvme.ok()) << nvme.status().ToString();
    tiers.push_back({.backend = *std::move(nvme)});
    Result<std::unique_ptr<StorageManager>> opened = StorageManager::Open(options, std::move(tiers));
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    manager = *std::move(opened);
    root = *manager->Root(TestSpec());
  }

  size_t Store(const std::vector<Token>& prompt) {
    return StorePrompt(*manager, root, prompt, {0, prompt.size()},
                       [](TokenRange tokens, ObjectPart) { return kPayload + tokens.begin * 1000; });
  }

  // Tokens loaded; every byte right, or the test fails.
  uint64_t Load(const std::vector<Token>& prompt) { return LoadPrompt(*manager, root, prompt); }
};

TEST(NvmeStackTest, ThreadsOverASmallPoolAndASmallDisk) {
  Directory directory;
  Stack stack(directory.path(), 24 << 20, 96 << 20);
  std::atomic<uint64_t> loaded{0};
  std::vector<std::thread> threads;
  for (uint64_t id = 0; id < 3; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937_64 random(id);
      for (int i = 0; i < 120; ++i) {
        const std::vector<Token> prompt = TestTokens((1 + random() % 4) * kTestChunk, 1 + random() % 20);
        if (random() % 3 == 0) stack.Store(prompt);
        loaded += stack.Load(prompt);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(stack.manager->Flush().ok());
  const ManagerStats stats = stack.manager->Stats();
  EXPECT_GT(loaded.load(), 50 * kTestChunk);
  EXPECT_GT(stats.tiers[1].hits, 20u) << "the disk must be read";
  EXPECT_GT(stats.tiers[0].evictions, 0u);
  EXPECT_EQ(stats.corrupt_objects, 0u) << "nothing was damaged, so nothing may be found wrong";
  EXPECT_LE(stats.tiers[1].used_bytes, stats.tiers[1].capacity_bytes);
  EXPECT_EQ(stats.pool_used_bytes, stats.tiers[0].used_bytes);
  EXPECT_EQ(stats.active_leases, 0u);
}

// A process kill, not a power loss: what was flushed is found, what is found is right, nothing hangs below a
// hole.
TEST(NvmeStackTest, KilledWhileStoringAnswersRightAfterwards) {
  Directory directory;
  std::mt19937_64 random(4);
  uint64_t found = 0;
  uint64_t flushed_rounds = 0;
  for (int round = 0; round < 8; ++round) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Stack stack(directory.path(), 32 << 20, 128 << 20);
      stack.Store(TestTokens(2 * kTestChunk, 1000 + round));
      stack.manager->Flush().IgnoreError();
      if (write(ready[1], "x", 1) != 1) _exit(2);
      for (Token seed = 1;; ++seed) {
        stack.Store(TestTokens(4 * kTestChunk, round * 1000 + seed));
        if (seed % 16 == 0) stack.manager->Flush().IgnoreError();
        if (write(ready[1], "x", 1) != 1) _exit(2);
      }
    }
    char byte;
    for (uint64_t steps = 1 + random() % 24; steps > 0; --steps) ASSERT_EQ(read(ready[0], &byte, 1), 1);
    ASSERT_EQ(kill(child, SIGKILL), 0);
    close(ready[0]);
    close(ready[1]);
    int status;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));

    Stack stack(directory.path(), 32 << 20, 128 << 20);
    flushed_rounds += stack.Load(TestTokens(2 * kTestChunk, 1000 + round)) == 2 * kTestChunk;
    for (Token seed = 1; seed <= 40; ++seed)
      found += stack.Load(TestTokens(4 * kTestChunk, round * 1000 + seed)) / kTestChunk;
    EXPECT_EQ(stack.manager->Stats().corrupt_objects, 0u);
    EXPECT_LE(stack.manager->Stats().tiers[1].used_bytes, stack.manager->Stats().tiers[1].capacity_bytes);
  }
  EXPECT_GT(found, 0u);
  EXPECT_GE(flushed_rounds, 6u) << "flushed chunks may have been evicted by later ones, not lost";
}

TEST(NvmeStackTest, ASecondManagerIsToldWhoHoldsTheDirectory) {
  Directory directory;
  Stack stack(directory.path(), 8 << 20, 64 << 20);
  const Status status = MakeNvmeBackend({.directory = directory.path(), .capacity_bytes = 64 << 20}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find(std::to_string(getpid())), std::string_view::npos) << status.ToString();
}

}  // namespace
}  // namespace terrace
