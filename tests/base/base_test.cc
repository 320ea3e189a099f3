// Status, executor, digest, clock, log sink, checks.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "terrace/executor.h"
#include "terrace/log_sink.h"
#include "terrace/object_id.h"
#include "terrace/status.h"
#include "terrace/time.h"

namespace terrace {
namespace {

TEST(StatusTest, OkCarriesNothing) {
  const Status ok;
  EXPECT_TRUE(ok.ok());
  EXPECT_EQ(ok.code(), StatusCode::kOk);
  EXPECT_EQ(ok.message(), "");
  EXPECT_EQ(ok.ToString(), "Ok");
  EXPECT_TRUE(Status(StatusCode::kOk, "ignored").ok());
  EXPECT_TRUE(ok.WithContext("nvme").ok());
}

TEST(StatusTest, ErrorsCarryCodeAndMessage) {
  const Status status = DataLossError("magic");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(status.ToString(), "DataLoss: magic");
  const Status with_context = status.WithContext("nvme");
  EXPECT_EQ(with_context.code(), StatusCode::kDataLoss);
  EXPECT_EQ(with_context.message(), "nvme: magic");
  EXPECT_EQ(status.message(), "magic");
}

TEST(StatusTest, EveryCodeHasItsOwnNameAndMaker) {
  std::set<std::string_view> names;
  for (int code = 0; code <= 16; ++code) names.insert(StatusCodeName(static_cast<StatusCode>(code)));
  EXPECT_EQ(names.size(), 17u);
  EXPECT_EQ(StatusCodeName(static_cast<StatusCode>(99)), "Unknown");
  EXPECT_EQ(CancelledError("").code(), StatusCode::kCancelled);
  EXPECT_EQ(InvalidArgumentError("").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(DeadlineExceededError("").code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(NotFoundError("").code(), StatusCode::kNotFound);
  EXPECT_EQ(AlreadyExistsError("").code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(ResourceExhaustedError("").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(FailedPreconditionError("").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(UnimplementedError("").code(), StatusCode::kUnimplemented);
  EXPECT_EQ(InternalError("").code(), StatusCode::kInternal);
  EXPECT_EQ(UnavailableError("").code(), StatusCode::kUnavailable);
}

Result<int> Half(int n) {
  if (n % 2 != 0) return InvalidArgumentError("odd");
  return n / 2;
}
Result<std::string> Quarter(int n) {
  TERRACE_ASSIGN_OR_RETURN(const int half, Half(n));
  TERRACE_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return std::to_string(quarter);
}
Status CheckQuarter(int n) {
  TERRACE_RETURN_IF_ERROR(Quarter(n).status());
  return OkStatus();
}

TEST(StatusTest, MacrosReturnEarly) {
  EXPECT_EQ(Quarter(12).value(), "3");
  EXPECT_EQ(Quarter(6).status().message(), "odd");
  EXPECT_TRUE(CheckQuarter(8).ok());
  EXPECT_EQ(CheckQuarter(7).code(), StatusCode::kInvalidArgument);
}

TEST(StatusDeathTest, ValueOfFailedResultEndsTheProcess) {
  EXPECT_DEATH((void)Half(3).value(), "InvalidArgument: odd");
  EXPECT_DEATH((void)Result<int>(OkStatus()), "Result made from OK");
}

TEST(CheckDeathTest, EndsTheProcessWithTheValues) {
  const int live = 3;
  TERRACE_CHECK(live == 3) << "not evaluated";
  EXPECT_DEATH(TERRACE_CHECK(live == 4) << "live " << live, "check failed at .*live == 4.*live 3");
}

TEST(DigestTest, HexRoundTrip) {
  Digest digest;
  for (size_t i = 0; i < digest.bytes.size(); ++i) digest.bytes[i] = std::byte(i * 8 + 7);
  const std::string hex = digest.ToHex();
  EXPECT_EQ(hex, "070f171f272f373f474f575f676f777f878f979fa7afb7bfc7cfd7dfe7eff7ff");
  EXPECT_EQ(Digest::FromHex(hex).value(), digest);
  EXPECT_EQ(Digest::FromHex("070F171F272F373F474F575F676F777F878F979FA7AFB7BFC7CFD7DFE7EFF7FF").value(),
            digest);
  EXPECT_EQ(digest.Prefix64(), 0x3f372f271f170f07ull);
}

TEST(DigestTest, AnythingElseIsRefused) {
  const std::string hex(64, 'a');
  for (const std::string& bad :
       {std::string(), hex.substr(1), hex + "a", "g" + hex.substr(1), hex.substr(1) + " "}) {
    EXPECT_EQ(Digest::FromHex(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

TEST(ClockTest, RealClockGoesForward) {
  Clock* clock = Clock::Real();
  const TimePoint before = clock->Now();
  EXPECT_LE(before, clock->Now());
  EXPECT_LT(before, kNoDeadline);
  EXPECT_GT(clock->WallNow().time_since_epoch().count(), 0);
  EXPECT_EQ(clock, Clock::Real());
}

TEST(LogSinkTest, StderrKeepsLevelAndShape) {
  const auto sink = MakeStderrLogSink();
  testing::internal::CaptureStderr();
  sink->Log(LogLevel::kInfo, "nvme", "not shown");
  sink->Log(LogLevel::kWarning, "nvme", "slow");
  sink->Log(LogLevel::kError, "manager", "bad");
  MakeNullLogSink()->Log(LogLevel::kError, "manager", "dropped");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "terrace: W nvme: slow\nterrace: E manager: bad\n");
}

TEST(ThreadPoolTest, RunsEverythingBeforeItEnds) {
  std::atomic<int> ran{0};
  {
    auto pool = MakeThreadPool({.num_threads = 3}).value();
    for (int i = 0; i < 500; ++i) {
      pool->Post([&ran, &pool] {
        if (ran.fetch_add(1) < 100) pool->Post([&ran] { ran.fetch_add(1000); });
      });
    }
  }
  EXPECT_EQ(ran % 1000, 500);
  EXPECT_GE(ran / 1000, 1);
}

TEST(ThreadPoolTest, OneThreadKeepsTheOrder) {
  std::vector<int> order;
  {
    auto pool = MakeThreadPool({}).value();
    for (int i = 0; i < 100; ++i) pool->Post([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(ThreadPoolTest, PostNeverRunsInsideTheCall) {
  auto pool = MakeThreadPool({}).value();
  std::promise<std::thread::id> ran_on;
  std::mutex held;
  std::unique_lock lock(held);
  pool->Post([&] {
    std::lock_guard inner(held);
    ran_on.set_value(std::this_thread::get_id());
  });
  lock.unlock();
  EXPECT_NE(ran_on.get_future().get(), std::this_thread::get_id());
}

TEST(ThreadPoolTest, ThreadsHaveNamesAndCpus) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) ++cpu;
  std::promise<std::pair<std::string, int>> seen;
  {
    auto pool = MakeThreadPool({.name = "a-rather-long-name", .cpu_set = {cpu}, .nice_value = 1}).value();
    pool->Post([&] {
      char name[16] = {};
      pthread_getname_np(pthread_self(), name, sizeof(name));
      cpu_set_t mine;
      sched_getaffinity(0, sizeof(mine), &mine);
      seen.set_value({name, CPU_COUNT(&mine) == 1 && CPU_ISSET(cpu, &mine) ? cpu : -1});
    });
  }
  const auto [name, on_cpu] = seen.get_future().get();
  EXPECT_EQ(name, "a-rather-long-n");
  EXPECT_EQ(on_cpu, cpu);
}

TEST(ThreadPoolTest, ExceptionsAreCountedAndTheThreadGoesOn) {
  std::atomic<int> ran{0};
  testing::internal::CaptureStderr();
  {
    auto pool = MakeThreadPool({}).value();
    for (int i = 0; i < 5; ++i) {
      pool->Post([] { throw std::runtime_error("of a callback"); });
      pool->Post([] { throw 7; });
      pool->Post([&] { ++ran; });
    }
  }
  EXPECT_EQ(ran, 5);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("of a callback"), std::string::npos) << log;
  EXPECT_EQ(log.find("of a callback"), log.rfind("of a callback")) << "logged once";
  EXPECT_NE(log.find("10 exceptions"), std::string::npos) << log;
}

TEST(ThreadPoolTest, ItsOwnWorkMayDropTheLastReference) {
  std::shared_ptr<Executor> pool = MakeThreadPool({.num_threads = 2}).value();
  std::promise<void> dropped;
  std::promise<void> go;
  pool->Post([&dropped, &go, own = pool]() mutable {
    go.get_future().wait();
    own.reset();
    dropped.set_value();
  });
  pool.reset();
  go.set_value();
  dropped.get_future().wait();
}

TEST(ThreadPoolTest, BadOptionsAreNamed) {
  EXPECT_NE(MakeThreadPool({.num_threads = 0}).status().message().find("num_threads = 0"), std::string::npos);
  EXPECT_FALSE(MakeThreadPool({.num_threads = 257}).ok());
  EXPECT_NE(MakeThreadPool({.cpu_set = {-1}}).status().message().find("cpu_set"), std::string::npos);
  EXPECT_NE(MakeThreadPool({.cpu_set = {CPU_SETSIZE - 1}}).status().message().find("cpu_set"),
            std::string::npos);
  EXPECT_NE(MakeThreadPool({.nice_value = 100}).status().message().find("nice_value"), std::string::npos);
}

}  // namespace
}  // namespace terrace
