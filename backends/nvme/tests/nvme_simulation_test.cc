// Seeded runs of the tier on a simulated disk. TERRACE_SIM_SEED=n runs seed n alone (TERRACE_SIM_RUNS=m: and
// the m - 1 after it).
#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "backends/nvme/tests/simulation_run.h"

// RocksDB sleeps for a second after each failure of its background work, of which a run has several. In this
// program a second is 100 us: short, but a sleep, so that whoever waits for the lock that the sleeper takes
// again gets it first, on a busy core too.
extern "C" __attribute__((visibility("default"))) int usleep(useconds_t us) {
  const timespec time{.tv_sec = 0,
                      .tv_nsec = 1 + static_cast<long>(std::min<useconds_t>(us, 1'000'000) / 10)};
  return nanosleep(&time, nullptr);
}

namespace terrace {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kDefaultRuns = 300;
#else
constexpr uint64_t kDefaultRuns = 10'000;
#endif
constexpr size_t kShards = 2;
constexpr size_t kMaxFailures = 20;
constexpr std::chrono::minutes kStuckAfter{4};

std::array<std::atomic<uint64_t>, kShards> running_seeds;

uint64_t Environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// A check that ends the process must name its seed as well.
void PrintRunningSeeds(int signal) {
  for (const std::atomic<uint64_t>& seed : running_seeds) {
    std::array<char, 48> text = {"seed in progress: "};
    size_t end = 18;
    std::array<char, 20> digits;
    size_t n = 0;
    for (uint64_t left = seed; left > 0 || n == 0; left /= 10)
      digits[n++] = static_cast<char>('0' + left % 10);
    while (n > 0) text[end++] = digits[--n];
    text[end++] = '\n';
    if (write(STDERR_FILENO, text.data(), end) < 0) break;
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

struct SimulationResults {
  std::vector<std::pair<uint64_t, std::string>> failures;
  SimulationCounts counts;
};

// A run takes a fraction of a second. Where none has begun for minutes, one makes no end: better a seed and
// a core file now than a test that is stopped from outside and says nothing.
void AbortWhenStuck(const std::atomic<uint64_t>& next, std::future<void> over) {
  uint64_t seen = next;
  while (over.wait_for(kStuckAfter) == std::future_status::timeout) {
    if (next == seen) std::abort();
    seen = next;
  }
}

// Seeds [first, first + runs), on kShards threads, until some have failed.
SimulationResults RunSeeds(const SimulationSettings& settings, uint64_t first, uint64_t runs,
                           size_t max_failures = kMaxFailures) {
  SimulationResults results;
  std::mutex mutex;
  std::atomic<uint64_t> next{0};
  std::atomic<bool> enough{false};
  std::promise<void> over;
  const auto shard = [&](size_t index) {
    for (uint64_t at = next++; at < runs && !enough; at = next++) {
      SimulationSettings one = settings;
      one.seed = first + at;
      running_seeds[index] = one.seed;
      SimulationRun run(one);
      const std::string failure = run.Run();
      const std::lock_guard lock(mutex);
      results.counts.Add(run.counts());
      if (!failure.empty()) results.failures.emplace_back(one.seed, failure);
      if (!failure.empty() && runs == 1) {
        for (const std::string& line : run.history()) std::printf("  %s\n", line.c_str());
      }
      if (results.failures.size() >= max_failures) enough = true;
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min<uint64_t>(kShards, runs); ++i) threads.emplace_back(shard, i);
  std::thread watch([&next, &over] { AbortWhenStuck(next, over.get_future()); });
  for (std::thread& thread : threads) thread.join();
  over.set_value();
  watch.join();
  return results;
}

class NvmeSimulationTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    for (const int signal : {SIGABRT, SIGSEGV}) std::signal(signal, PrintRunningSeeds);
  }
  // Some seed among these sees that the edge is gone.
  static void ExpectSeen(const OrderSwitches& switches, Durability durability) {
    SimulationSettings settings;
    settings.switches = switches;
    settings.durability = durability;
    settings.has_faults = false;
    settings.removes_manifest = false;
    const SimulationResults results = RunSeeds(settings, 1, 200, 1);
    ASSERT_FALSE(results.failures.empty());
    settings.switches = {};
    EXPECT_TRUE(RunSeeds(settings, results.failures[0].first, 1).failures.empty())
        << "with the edge it is right";
  }
};

TEST_F(NvmeSimulationTest, SeededRuns) {
  const bool one = std::getenv("TERRACE_SIM_SEED") != nullptr;
  const uint64_t first = Environment("TERRACE_SIM_SEED", 1);
  const uint64_t runs = Environment("TERRACE_SIM_RUNS", one ? 1 : kDefaultRuns);
  const SimulationResults results = RunSeeds({}, first, runs);
  for (const auto& [seed, failure] : results.failures) {
    ADD_FAILURE() << "seed " << seed << ": " << failure << "\n  TERRACE_SIM_SEED=" << seed
                  << " nvme_simulation_test --gtest_filter=NvmeSimulationTest.SeededRuns";
  }
  const SimulationCounts& counts = results.counts;
  std::printf("%s\n", counts.ToString().c_str());
  if (runs < 100) return;
  // Each run gets somewhere.
  EXPECT_GT(counts.power_losses, runs);
  EXPECT_GT(counts.crashes, runs / 4);
  EXPECT_GT(counts.closes, runs / 10);
  EXPECT_GT(counts.losses_while_opening, runs / 10);
  EXPECT_GT(counts.losses_while_closing, runs / 50);
  EXPECT_GT(counts.manifests_removed, runs / 50);
  EXPECT_GT(counts.recovered, 2 * runs);
}

TEST_F(NvmeSimulationTest, ARecordWithoutItsDataIsSeen) {
  ExpectSeen({.skip_data_sync = true}, Durability::kSync);
}

TEST_F(NvmeSimulationTest, AFlushWithoutTheDataIsSeen) {
  ExpectSeen({.skip_data_sync = true}, Durability::kFlush);
}

TEST_F(NvmeSimulationTest, ARecordBeforeItsDataIsSeen) {
  ExpectSeen({.record_before_data = true}, Durability::kSync);
}

// The wiped page alone keeps it from coming back; that its record does is what is seen.
TEST_F(NvmeSimulationTest, AnEraseThatIsNotSyncedIsSeen) {
  ExpectSeen({.skip_erase_sync = true}, Durability::kSync);
}

TEST_F(NvmeSimulationTest, AnEraseThatIsNeitherSyncedNorWipedIsSeen) {
  ExpectSeen({.skip_erase_sync = true, .skip_wipe = true}, Durability::kFlush);
}

}  // namespace
}  // namespace terrace
