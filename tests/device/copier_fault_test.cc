// What fails, at every step: no event stays unanswered, what is said to be done is right, and behind a fence
// nothing touches pages or payloads any more.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/device/copier_fixture.h"

namespace terrace {
namespace {

constexpr int kCopies = 4;

std::string Name(const testing::TestParamInfo<CopyStrategy>& info) { return CopyStrategyName(info.param); }

class CopierFaultTest : public testing::TestWithParam<CopyStrategy> {
 protected:
  struct Outcome {
    int refused = 0, failed = 0, right = 0;
  };
  // Copies in both directions with the fault in their way.
  static Outcome Run(uint64_t seed, uint64_t fail_after, uint64_t refuse_after) {
    Outcome outcome;
    RigOptions options;
    options.device.seed = seed;
    options.strategy = GetParam();
    options.staging_bytes = 8192;
    Rig rig(options);
    std::mt19937_64 random(seed);
    std::vector<std::unique_ptr<RandomCopy>> copies;
    for (int i = 0; i < kCopies; ++i) {
      copies.push_back(std::make_unique<RandomCopy>(
          i % 2 == 0 ? CopyDirection::kToHost : CopyDirection::kToDevice, random, rig));
    }
    rig.device->FailAfter(fail_after);
    rig.device->RefuseAfter(refuse_after);
    for (const auto& copy : copies) {
      if (!copy->Enqueue().ok()) ++outcome.refused;
    }
    for (const auto& copy : copies) {
      if (!copy->has_event()) continue;
      const Status status = copy->Wait();
      EXPECT_NE(status.code(), StatusCode::kDeadlineExceeded) << "an event without an answer";
      if (!status.ok()) {
        ++outcome.failed;
        continue;
      }
      EXPECT_TRUE(copy->IsRight()) << "seed " << seed;
      ++outcome.right;
    }
    for (const CopyDirection direction : {CopyDirection::kToHost, CopyDirection::kToDevice}) {
      const auto fence = rig.copier->Fence(direction);
      EXPECT_TRUE(fence.ok());
      EXPECT_NE((*fence)->Wait(Soon()).code(), StatusCode::kDeadlineExceeded);
    }
    // The engine's own work is waited for; the copies are not.
    auto engine = rig.engine->Record();
    EXPECT_TRUE((*engine)->Wait(Soon()).ok());
    for (const auto& copy : copies) copy->Scribble(std::byte{0x3c});
    rig.device->Synchronize();
    for (const auto& copy : copies) EXPECT_TRUE(copy->IsAll(std::byte{0x3c})) << "seed " << seed;
    return outcome;
  }
};

TEST_P(CopierFaultTest, FailedAtEveryStep) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    int rounds_with_failure = 0;
    for (uint64_t n = 1;; ++n) {
      const Outcome outcome = Run(seed, n, 0);
      EXPECT_EQ(outcome.refused, 0);
      EXPECT_EQ(outcome.failed + outcome.right, kCopies);
      if (outcome.failed == 0) break;
      ++rounds_with_failure;
      ASSERT_LT(n, 5000u);
    }
    EXPECT_GE(rounds_with_failure, kCopies);  // at least one step for each
  }
}

TEST_P(CopierFaultTest, RefusedAtEveryStep) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    int rounds_with_refusal = 0;
    for (uint64_t n = 1;; ++n) {
      const Outcome outcome = Run(seed, 0, n);
      EXPECT_EQ(outcome.failed, 0);
      EXPECT_EQ(outcome.refused + outcome.right, kCopies);
      if (outcome.refused == 0) break;
      ++rounds_with_refusal;
      ASSERT_LT(n, 5000u);
    }
    EXPECT_GE(rounds_with_refusal, kCopies);
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, CopierFaultTest, testing::ValuesIn(kAllStrategies), Name);

RigOptions ForcedTo(CopyStrategy strategy) {
  RigOptions options;
  options.strategy = strategy;
  return options;
}

TEST(CopierFenceTest, IsBehindWhatWasEnqueuedInItsDirection) {
  Rig rig(ForcedTo(CopyStrategy::kPlain));
  std::mt19937_64 random(5);
  RandomCopy copy(CopyDirection::kToHost, random, rig);
  rig.device->Pause();
  ASSERT_TRUE(copy.Enqueue().ok());
  auto fence = rig.copier->Fence(CopyDirection::kToHost);
  ASSERT_TRUE(fence.ok());
  EXPECT_FALSE((*fence)->Query().value());
  rig.device->Resume();
  ASSERT_TRUE((*fence)->Wait(Soon()).ok());
  EXPECT_TRUE(copy.IsRight());
}

// Of another device: refused before anything is enqueued.
class ForeignEvent : public Event {
 public:
  Result<bool> Query() const override { return true; }
  void* native_handle() const override { return nullptr; }
};

TEST(CopierFenceTest, AnEventOfAnotherKindIsRefused) {
  Rig rig(ForcedTo(CopyStrategy::kPlain));
  PagedCopyArgs args;
  const ForeignEvent foreign;
  EXPECT_EQ(rig.copier->Copy(args, &foreign).status().code(), StatusCode::kInvalidArgument);
}

TEST(CopierFenceTest, MappedOutsideThePoolIsRefused) {
  Rig rig(ForcedTo(CopyStrategy::kMapped));
  std::vector<std::byte> pages(64), outside(64);
  std::vector<PlaneArgs> planes(2);
  for (PlaneArgs& plane : planes) {
    plane.base = pages.data();
    plane.run_bytes = 16;
  }
  planes[1].payload_offset = 16;
  const int64_t block = 0;
  PagedCopyArgs args;
  args.payload = outside.data();
  args.planes = planes.data();
  args.num_planes = 2;
  args.blocks = &block;
  args.num_tokens = 1;
  EXPECT_EQ(rig.copier->Copy(args, nullptr).status().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace terrace
