#include "backends/remote/circuit_breaker.h"

#include <gtest/gtest.h>

namespace terrace::remote {
namespace {

constexpr Duration kPause = std::chrono::seconds(1);

void ExpectAbout(Duration pause, Duration expected) {
  EXPECT_GE(pause, expected * 3 / 4);
  EXPECT_LE(pause, expected * 5 / 4);
}

TEST(CircuitBreakerTest, OpensAfterFailuresInARow) {
  CircuitBreaker breaker(3, kPause, 7);
  EXPECT_FALSE(breaker.RecordFailure());
  EXPECT_FALSE(breaker.RecordFailure());
  breaker.RecordSuccess();  // not in a row
  EXPECT_FALSE(breaker.RecordFailure());
  EXPECT_FALSE(breaker.RecordFailure());
  EXPECT_FALSE(breaker.is_open());
  const std::optional<Duration> pause = breaker.RecordFailure();
  ASSERT_TRUE(pause);
  ExpectAbout(*pause, kPause);
  EXPECT_TRUE(breaker.is_open());
  EXPECT_FALSE(breaker.RecordFailure()) << "it opens once";
}

TEST(CircuitBreakerTest, OnlyOneProbeAtATimeAndOnlyItCloses) {
  CircuitBreaker breaker(1, kPause, 7);
  EXPECT_FALSE(breaker.BeginProbe()) << "closed";
  ASSERT_TRUE(breaker.RecordFailure());
  breaker.RecordSuccess();  // a late answer
  EXPECT_TRUE(breaker.is_open());
  EXPECT_TRUE(breaker.BeginProbe());
  EXPECT_FALSE(breaker.BeginProbe());
  EXPECT_TRUE(breaker.is_open()) << "half open lets no operation through";
  breaker.ProbeSucceeded();
  EXPECT_FALSE(breaker.is_open());
  EXPECT_TRUE(breaker.RecordFailure()) << "and counts anew";
}

TEST(CircuitBreakerTest, PausesDoubleUpToThirtySeconds) {
  CircuitBreaker breaker(1, kPause, 7);
  ASSERT_TRUE(breaker.RecordFailure());
  Duration expected = kPause;
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(breaker.BeginProbe());
    const Duration pause = breaker.ProbeFailed();
    expected = std::min(2 * expected, kMaxBreakerPause);
    EXPECT_LE(pause, kMaxBreakerPause);
    ExpectAbout(pause, expected);
  }
  breaker.ProbeSucceeded();
  const std::optional<Duration> again = breaker.RecordFailure();
  ASSERT_TRUE(again);
  ExpectAbout(*again, kPause);
}

TEST(CircuitBreakerTest, TripOpensAtOnce) {
  CircuitBreaker breaker(100, kPause, 7);
  EXPECT_TRUE(breaker.Trip());
  EXPECT_TRUE(breaker.is_open());
  EXPECT_FALSE(breaker.Trip());
}

}  // namespace
}  // namespace terrace::remote
