// The whole stack below an engine: manager, host tier and the real NVMe tier. Threads over a small pool and a
// small disk, and processes that are killed. Every byte is checked.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
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
        // The disk must keep up, or the pool stays full of what waits for it and nothing more is stored.
        if (random() % 3 == 0) {
          EXPECT_TRUE(stack.manager->Flush().ok());
        }
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

// The other process of the test below, which starts it: stores until it is killed, a byte into the pipe for
// each step.
TEST(NvmeStackTest, DISABLED_StoresUntilItIsKilled) {
  const char* directory = std::getenv("TERRACE_STACK_DIRECTORY");
  if (directory == nullptr)
    GTEST_SKIP() << "runs only as a process of KilledWhileStoringAnswersRightAfterwards";
  const int report = std::atoi(std::getenv("TERRACE_STACK_REPORT"));
  const int round = std::atoi(std::getenv("TERRACE_STACK_ROUND"));
  Stack stack(directory, 32 << 20, 128 << 20);
  stack.Store(TestTokens(2 * kTestChunk, 1000 + round));
  ASSERT_TRUE(stack.manager->Flush().ok());
  ASSERT_EQ(write(report, "x", 1), 1);
  for (Token seed = 1; seed < 100'000; ++seed) {  // the parent kills it long before
    stack.Store(TestTokens(4 * kTestChunk, round * 1000 + seed));
    if (seed % 16 == 0) stack.manager->Flush().IgnoreError();
    if (write(report, "x", 1) != 1) return;
  }
}

// Runs the test above in a process of its own (fork and exec: a fork alone has no threads to store with).
pid_t StartStoring(const std::string& directory, int round, int report) {
  const pid_t child = fork();
  if (child != 0) return child;
  setenv("TERRACE_STACK_DIRECTORY", directory.c_str(), 1);
  setenv("TERRACE_STACK_ROUND", std::to_string(round).c_str(), 1);
  setenv("TERRACE_STACK_REPORT", std::to_string(report).c_str(), 1);
  execl("/proc/self/exe", "manager_test", "--gtest_also_run_disabled_tests", "--gtest_brief=1",
        "--gtest_filter=NvmeStackTest.DISABLED_StoresUntilItIsKilled", nullptr);
  _exit(127);
}

// A process kill, not a power loss: what was flushed is found, what is found is right, nothing hangs below a
// hole.
TEST(NvmeStackTest, KilledWhileStoringAnswersRightAfterwards) {
  Directory directory;
  std::mt19937_64 random(4);
  uint64_t found = 0;
  uint64_t flushed_rounds = 0;
  for (int round = 0; round < 8; ++round) {
    int report[2];
    ASSERT_EQ(pipe(report), 0);
    const pid_t child = StartStoring(directory.path(), round, report[1]);
    ASSERT_GE(child, 0);
    close(report[1]);
    char byte;
    for (uint64_t steps = 1 + random() % 24; steps > 0; --steps) ASSERT_EQ(read(report[0], &byte, 1), 1);
    ASSERT_EQ(kill(child, SIGKILL), 0);
    close(report[0]);
    int status;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));

    Stack stack(directory.path(), 32 << 20, 128 << 20);
    flushed_rounds += stack.Load(TestTokens(2 * kTestChunk, 1000 + round)) == 2 * kTestChunk;
    for (Token seed = 1; seed <= 40; ++seed) {
      found += stack.Load(TestTokens(4 * kTestChunk, round * 1000 + seed)) / kTestChunk;
    }
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
