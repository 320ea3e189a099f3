// A device that fails or does not answer: the tier stops asking it, says so, and comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "backends/nvme/device_health.h"
#include "backends/nvme/tests/nvme_test_store.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

class ManualClock final : public Clock {
 public:
  TimePoint Now() override { return TimePoint(Duration(now_ns_.load())); }
  WallTime WallNow() override { return WallTime(std::chrono::seconds(1)); }
  void Advance(Duration by) { now_ns_ += by.count(); }

 private:
  std::atomic<int64_t> now_ns_{1'000'000'000};
};

class DeviceHealthTest : public ::testing::Test {
 protected:
  void Fail(int times) {
    for (int i = 0; i < times; ++i) health_.OnFailure();
  }

  ManualClock clock_;
  DeviceHealth health_{&clock_};
};

TEST_F(DeviceHealthTest, OnlyFailuresInARowDegrade) {
  for (int i = 0; i < 3; ++i) {
    Fail(DeviceHealth::kFailuresToDegrade - 1);
    EXPECT_FALSE(health_.is_degraded());
    health_.OnSuccess();
  }
  Fail(DeviceHealth::kFailuresToDegrade - 1);
  EXPECT_TRUE(health_.Admit(true));
  health_.OnFailure();
  EXPECT_TRUE(health_.is_degraded());
  EXPECT_FALSE(health_.Admit(true));
}

TEST_F(DeviceHealthTest, OneProbeAPeriodUntilOneSucceeds) {
  Fail(DeviceHealth::kFailuresToDegrade);
  for (int period = 0; period < 3; ++period) {
    EXPECT_FALSE(health_.Admit(true));
    clock_.Advance(DeviceHealth::kProbePeriod - Duration(1));
    EXPECT_FALSE(health_.Admit(true));
    clock_.Advance(Duration(1));
    EXPECT_TRUE(health_.Admit(true));
    health_.OnFailure();
    EXPECT_TRUE(health_.is_degraded());
  }
  health_.OnSuccess();
  EXPECT_FALSE(health_.is_degraded());
  Fail(DeviceHealth::kFailuresToDegrade - 1);
  EXPECT_TRUE(health_.Admit(true)) << "failures count anew";
}

TEST_F(DeviceHealthTest, AStallDegradesAndIsProbedOnceItHasMoved) {
  EXPECT_TRUE(health_.Admit(true));
  clock_.Advance(DeviceHealth::kStallLimit);
  EXPECT_TRUE(health_.Admit(false)) << "at the limit";
  clock_.Advance(Duration(1));
  EXPECT_FALSE(health_.Admit(false));
  EXPECT_TRUE(health_.is_degraded());
  clock_.Advance(10 * DeviceHealth::kProbePeriod);
  EXPECT_FALSE(health_.Admit(false)) << "it still has what it had";
  health_.OnProgress();
  EXPECT_TRUE(health_.Admit(false));
  clock_.Advance(DeviceHealth::kProbePeriod);
  EXPECT_FALSE(health_.Admit(false)) << "it has the probe, and has not moved";
  EXPECT_TRUE(health_.Admit(true)) << "the probe failed";
}

TEST_F(DeviceHealthTest, TimeWithNothingToDoIsNoStall) {
  clock_.Advance(100 * DeviceHealth::kStallLimit);
  EXPECT_TRUE(health_.Admit(true));
  clock_.Advance(DeviceHealth::kStallLimit);
  health_.OnProgress();
  clock_.Advance(DeviceHealth::kStallLimit);
  EXPECT_TRUE(health_.Admit(false));
}

class RecordedLog final : public LogSink {
 public:
  void Log(LogLevel, std::string_view, std::string_view message) override {
    const std::lock_guard lock(mutex_);
    messages_.emplace_back(message);
  }
  // Those of the device's health.
  std::vector<std::string> health() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> found;
    for (const std::string& message : messages_) {
      if (message.starts_with("degraded") || message.starts_with("recovered")) found.push_back(message);
    }
    return found;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> messages_;
};

class NvmeHealthTest : public ::testing::Test {
 protected:
  void SetUp() override {
    store_.set_clock(&clock_);
    store_.set_log(log_);
    store_.Open(128 * kMiB, MakeFaultyEngine(faults_));
  }
  ~NvmeHealthTest() override { faults_->Release(); }

  void FailAll(bool failing) {
    const std::lock_guard lock(faults_->mutex);
    faults_->change = nullptr;
    if (failing) {
      faults_->change = [this](IoCompletion& completion) {
        completion.result = -EIO;
        ++asked_;
      };
    }
  }
  void Hold() {
    const std::lock_guard lock(faults_->mutex);
    faults_->hold = [](const IoCompletion&) { return true; };
  }
  void WaitForHeld(size_t n) {
    const TimePoint limit = Clock::Real()->Now() + std::chrono::minutes(1);
    while (faults_->num_held() < n) {
      ASSERT_LT(Clock::Real()->Now(), limit);
      std::this_thread::yield();
    }
  }
  Answers<GetResult> StartGet(const TestObject& object, TimePoint deadline = kNoDeadline) {
    Answers<GetResult> answers;
    std::vector<GetOp> ops;
    ops.push_back(GetOpOf(object, MakeTestBuffer(object.meta.frame_bytes)));
    ops[0].deadline = deadline;
    store_.backend().Get(std::move(ops), answers.Callback());
    return answers;
  }
  int64_t degraded() const { return store_.Metric("terrace_nvme_degraded"); }
  int64_t refusals() const { return store_.Metric("terrace_nvme_degraded_refusals_total"); }

  ManualClock clock_;
  std::atomic<int> asked_{0};
  std::shared_ptr<RecordedLog> log_ = std::make_shared<RecordedLog>();
  std::shared_ptr<EngineFaults> faults_ = std::make_shared<EngineFaults>();
  NvmeTestStore store_;
};

TEST_F(NvmeHealthTest, AStormOfErrorsDegradesAndOneSuccessRestores) {
  const TestObject kept = MakeNvmeObject(1, kMiB);
  ASSERT_TRUE(store_.Put(kept).ok());
  FailAll(true);
  for (int i = 0; i < DeviceHealth::kFailuresToDegrade; ++i) {
    EXPECT_EQ(degraded(), 0);
    EXPECT_EQ(i % 2 ? store_.Put(MakeNvmeObject(2, kMiB)).code() : store_.GetCode(kept),
              StatusCode::kUnavailable);
  }
  EXPECT_EQ(degraded(), 1);
  const int asked = asked_;
  EXPECT_GE(asked, DeviceHealth::kFailuresToDegrade);
  EXPECT_EQ(store_.GetCode(kept), StatusCode::kUnavailable);
  EXPECT_EQ(store_.Put(MakeNvmeObject(2, kMiB)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(asked_, asked) << "the device was asked";
  EXPECT_EQ(refusals(), 2);
  // What the index and the manifest answer, they still do.
  EXPECT_EQ(store_.GetCode(MakeNvmeObject(9, kMiB)), StatusCode::kNotFound);
  EXPECT_EQ(store_.Put(kept).code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(store_.Flush().ok());

  clock_.Advance(DeviceHealth::kProbePeriod);
  EXPECT_EQ(store_.GetCode(kept), StatusCode::kUnavailable);
  EXPECT_EQ(asked_, asked + 1) << "a probe";
  EXPECT_EQ(store_.GetCode(kept), StatusCode::kUnavailable);
  EXPECT_EQ(asked_, asked + 1) << "one a second";
  FailAll(false);
  EXPECT_EQ(store_.GetCode(kept), StatusCode::kUnavailable) << "not asked yet";
  clock_.Advance(DeviceHealth::kProbePeriod);
  store_.ExpectHas(kept);
  EXPECT_EQ(degraded(), 0);
  ASSERT_TRUE(store_.Put(MakeNvmeObject(2, kMiB)).ok());
  store_.ExpectHas(MakeNvmeObject(2, kMiB));
  EXPECT_THAT(log_->health(), ElementsAre(StartsWith("degraded"), StartsWith("recovered")));
  EXPECT_EQ(store_.Metric("terrace_nvme_quarantined_bytes"), 0) << "a device that fails has no bad places";
}

TEST_F(NvmeHealthTest, ErasingAndClearingAreNeverRefused) {
  std::vector<TestObject> objects;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    objects.push_back(MakeNvmeObject(seed, kMiB));
    ASSERT_TRUE(store_.Put(objects.back()).ok());
  }
  FailAll(true);
  for (int i = 0; i < DeviceHealth::kFailuresToDegrade; ++i) store_.GetCode(objects[0]);
  ASSERT_EQ(degraded(), 1);
  FailAll(false);
  EXPECT_TRUE(store_.Erase(objects[0].id, EraseMode::kErase).ok());
  EXPECT_TRUE(store_.Erase(objects[1].id, EraseMode::kEvict).ok());
  EXPECT_TRUE(store_.Clear().ok());
  EXPECT_EQ(store_.backend().used_bytes(), 0u);
  EXPECT_EQ(refusals(), 0);
  EXPECT_EQ(degraded(), 1) << "a wipe is no probe";
}

TEST_F(NvmeHealthTest, DeadlinesThatPassDegradeAndWhatComesLateDoesNotRestore) {
  const TestObject kept = MakeNvmeObject(1, 256 * kKiB);  // the device may have all of them at once
  ASSERT_TRUE(store_.Put(kept).ok());
  Hold();
  std::vector<Answers<GetResult>> gets;
  for (int i = 0; i < DeviceHealth::kFailuresToDegrade; ++i) {
    gets.push_back(StartGet(kept, clock_.Now() + std::chrono::milliseconds(100)));
    WaitForHeld(gets.size());
  }
  EXPECT_EQ(degraded(), 0);
  clock_.Advance(std::chrono::milliseconds(100));
  for (Answers<GetResult>& get : gets) {
    EXPECT_EQ(get.Wait()[0].status.code(), StatusCode::kDeadlineExceeded);
  }
  EXPECT_EQ(store_.GetCode(kept), StatusCode::kUnavailable);
  EXPECT_EQ(degraded(), 1);
  EXPECT_EQ(store_.Metric("terrace_nvme_orphaned_buffers"), DeviceHealth::kFailuresToDegrade);
  // The probe is kept, too, and stays the only one.
  clock_.Advance(DeviceHealth::kProbePeriod);
  Answers<GetResult> probe = StartGet(kept, clock_.Now() + DeviceHealth::kProbePeriod);
  WaitForHeld(gets.size() + 1);
  clock_.Advance(10 * DeviceHealth::kProbePeriod);
  EXPECT_EQ(probe.Wait()[0].status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(store_.GetCode(kept), StatusCode::kUnavailable);
  EXPECT_EQ(faults_->num_held(), gets.size() + 1);

  faults_->Release();
  const TimePoint limit = Clock::Real()->Now() + std::chrono::minutes(1);
  while (store_.Metric("terrace_nvme_orphaned_buffers") > 0) {
    ASSERT_LT(Clock::Real()->Now(), limit);
    std::this_thread::yield();
  }
  EXPECT_EQ(degraded(), 1) << "late is not well";
  store_.ExpectHas(kept);
  EXPECT_EQ(degraded(), 0);
  EXPECT_THAT(log_->health(), ElementsAre(StartsWith("degraded"), StartsWith("recovered")));
}

TEST_F(NvmeHealthTest, ADeviceThatAnswersNothingDegradesWithoutDeadlines) {
  const TestObject kept = MakeNvmeObject(1, kMiB);
  ASSERT_TRUE(store_.Put(kept).ok());
  Hold();
  Answers<GetResult> first = StartGet(kept);
  WaitForHeld(1);
  clock_.Advance(DeviceHealth::kStallLimit + Duration(1));
  EXPECT_EQ(store_.GetCode(kept), StatusCode::kUnavailable);
  EXPECT_EQ(degraded(), 1);
  clock_.Advance(10 * DeviceHealth::kProbePeriod);
  EXPECT_EQ(store_.GetCode(kept), StatusCode::kUnavailable) << "it has not moved";
  EXPECT_FALSE(first.came());
  faults_->Release();
  EXPECT_TRUE(first.Wait()[0].status.ok());
  EXPECT_EQ(degraded(), 0) << "it had no deadline: it was in time";
  store_.ExpectHas(kept);
}

}  // namespace
}  // namespace terrace
