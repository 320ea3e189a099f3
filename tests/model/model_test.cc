// The manager against its model. One run is a seed and a number of operations; TERRACE_MODEL_SEED replays
// one, TERRACE_MODEL_OPERATIONS sets how many operations all runs have together.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/model/model_run.h"

namespace terrace {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kOperations = 100'000;
#else
constexpr uint64_t kOperations = 1'000'000;
#endif
constexpr uint64_t kOperationsOfARun = 4'000;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Half of `all` operations each, with faults and without.
void RunAll(bool with_faults) {
  const uint64_t all = FromEnvironment("TERRACE_MODEL_OPERATIONS", kOperations) / 2;
  const uint64_t only = FromEnvironment("TERRACE_MODEL_SEED", 0);
  ModelRunCounts counts;
  for (uint64_t seed = only != 0 ? only : 1; counts.operations < all; ++seed) {
    ModelRun run({.seed = seed,
                  .operations = std::min(kOperationsOfARun, all - counts.operations),
                  .with_faults = with_faults,
                  .checks_always = only != 0});
    const std::string failure = run.Run();
    counts.Add(run.counts());
    ASSERT_EQ(failure, "") << (with_faults ? "with faults" : "without faults")
                           << "; replay with TERRACE_MODEL_SEED=" << seed;
    if (only != 0) break;
  }
  testing::Test::RecordProperty("loaded_objects", std::to_string(counts.loaded_objects));
  std::printf(
      "%lu operations: %lu commits, %lu matches, %lu objects loaded, %lu loads ended early, %lu victims, "
      "%lu erased, %lu reopens, %lu scribbles, %lu corrupt, %lu rests, %lu pins\n",
      counts.operations, counts.commits, counts.matched_lookups, counts.loaded_objects, counts.failed_loads,
      counts.victims, counts.erased, counts.reopens, counts.scribbles, counts.corrupt, counts.rests,
      counts.pins);
  if (only != 0) return;
  // The runs must have done what they are about.
  EXPECT_GT(counts.commits, all / 50);
  EXPECT_GT(counts.loaded_objects, all / 50);
  EXPECT_GT(counts.victims, all / 200);
  EXPECT_GT(counts.erased, all / 1000);
  EXPECT_GT(counts.reopens, all / 2000);
  EXPECT_GT(counts.scribbles, 0u);
  EXPECT_GT(counts.pins, 0u);
  EXPECT_EQ(counts.corrupt > 0, with_faults);
}

TEST(ModelTest, AnswersBytesAndAccountingFollowTheModel) { RunAll(false); }

TEST(ModelTest, WithFaultsAnAnswerIsRightOrAMiss) { RunAll(true); }

}  // namespace
}  // namespace terrace
