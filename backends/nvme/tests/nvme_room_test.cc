// Room that is on its way: space written ahead of use, segments that are being made, and Puts that wait for
// either.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "backends/nvme/tests/nvme_test_store.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kOneSegment = 17 * kMiB;  // the manifest has a MiB of it

template <typename Condition>
void WaitFor(Condition condition) {
  const TimePoint limit = Clock::Real()->Now() + std::chrono::minutes(1);
  while (!condition()) {
    ASSERT_LT(Clock::Real()->Now(), limit);
    std::this_thread::yield();
  }
}

class NvmeRoomTest : public ::testing::Test {
 protected:
  ~NvmeRoomTest() override { faults_->Release(); }

  void Open(uint64_t prepare_ahead_bytes, uint64_t capacity_bytes = kOneSegment) {
    NvmeOptions options = store_.options();
    options.capacity_bytes = capacity_bytes;
    options.prepare_ahead_bytes = prepare_ahead_bytes;
    ASSERT_TRUE(store_.TryOpen(options, MakeFaultyEngine(faults_)).ok());
  }
  // The first object lies in front of `offset`; what is written behind it does not end.
  void HoldWritesFrom(uint64_t offset) {
    const std::lock_guard lock(faults_->mutex);
    faults_->hold = [offset](const IoCompletion& completion) {
      return completion.request->direction == IoDirection::kWrite && completion.request->offset >= offset;
    };
  }
  // An object, and 4 MiB of zeros behind it that the device does not finish.
  void OpenWithZerosInFlight() {
    Open(12 * kMiB);
    HoldWritesFrom(kMiB);
    ASSERT_TRUE(store_.Put(first_).ok());
    WaitFor([&] { return faults_->num_held() == 2; });
    ASSERT_EQ(store_.backend().used_bytes(), kMiB) << "zeros are nobody's";
  }
  Answers<Status> StartPut(const TestObject& object, CancelFlag cancel = nullptr) {
    Answers<Status> answers;
    std::vector<PutOp> ops;
    ops.push_back(PutOpOf(object));
    ops[0].cancel = std::move(cancel);
    store_.backend().Put(std::move(ops), answers.Callback());
    return answers;
  }
  int64_t Prepared() const { return store_.Metric("terrace_nvme_prepared_bytes_total"); }

  const TestObject first_ = MakeNvmeObject(1, kMiB - 4096);
  // Fits, but not beside zeros that are being written.
  const TestObject large_ = MakeNvmeObject(2, 12 * kMiB);
  std::shared_ptr<EngineFaults> faults_ = std::make_shared<EngineFaults>();
  NvmeTestStore store_;
};

TEST_F(NvmeRoomTest, SpaceIsWrittenAheadWithinItsBound) {
  Open(8 * kMiB, 65 * kMiB);
  ASSERT_TRUE(store_.Flush().ok());
  EXPECT_EQ(Prepared(), 0) << "nothing was put yet";
  EXPECT_FALSE(std::filesystem::exists(store_.segment(0)));
  ASSERT_TRUE(store_.Put(first_).ok());
  WaitFor([&] { return Prepared() == 8 * static_cast<int64_t>(kMiB); });
  EXPECT_EQ(store_.backend().used_bytes(), kMiB);
  ASSERT_TRUE(store_.Put(MakeNvmeObject(3, 5 * kMiB)).ok());
  WaitFor([&] { return Prepared() > 8 * static_cast<int64_t>(kMiB); });
  store_.ExpectHas(first_);
  store_.Close();
  EXPECT_LE(Prepared(), 16 * static_cast<int64_t>(kMiB)) << "never the whole capacity";
  // What was written is known again after a restart.
  const int64_t before = Prepared();
  Open(8 * kMiB, 65 * kMiB);
  ASSERT_TRUE(store_.Put(MakeNvmeObject(4, 4096)).ok());
  ASSERT_TRUE(store_.Flush().ok());
  store_.Close();
  EXPECT_LT(Prepared(), before);
}

TEST_F(NvmeRoomTest, SegmentsAreMadeAheadOfUse) {
  Open(12 * kMiB, 65 * kMiB);
  ASSERT_TRUE(store_.Put(MakeNvmeObject(5, 10 * kMiB)).ok());
  WaitFor([&] { return std::filesystem::exists(store_.segment(1)); });
  WaitFor([&] { return Prepared() >= 12 * static_cast<int64_t>(kMiB); });
  EXPECT_FALSE(std::filesystem::exists(store_.segment(2))) << "one at a time";
}

TEST_F(NvmeRoomTest, APutWaitsForTheZerosInItsWay) {
  OpenWithZerosInFlight();
  Answers<Status> put = StartPut(large_);
  EXPECT_EQ(StartPut(large_).Wait()[0].code(), StatusCode::kAlreadyExists) << "on its way";
  EXPECT_EQ(store_.GetCode(large_), StatusCode::kNotFound);
  EXPECT_FALSE(put.came());
  faults_->Release();
  EXPECT_TRUE(put.Wait()[0].ok());
  store_.ExpectHas(large_);
  store_.ExpectHas(first_);
}

TEST_F(NvmeRoomTest, APutThatWaitsForRoomIsGivenUpErasedAndFlushedLikeAnyOther) {
  OpenWithZerosInFlight();
  auto flag = std::make_shared<std::atomic<bool>>(false);
  Answers<Status> cancelled = StartPut(large_, flag);
  flag->store(true);
  EXPECT_EQ(cancelled.Wait()[0].code(), StatusCode::kCancelled);
  const TestObject erased = MakeNvmeObject(6, 12 * kMiB);
  Answers<Status> put = StartPut(erased);
  Answers<Status> erase;
  store_.backend().Erase({erased.id}, EraseMode::kErase, erase.Callback());
  Answers<Status> flush;
  store_.backend().Flush([callback = flush.Callback()](const Status& status) { callback({&status, 1}); });
  EXPECT_EQ(store_.GetCode(first_), StatusCode::kOk);
  EXPECT_FALSE(put.came());
  EXPECT_FALSE(erase.came());
  EXPECT_FALSE(flush.came());
  faults_->Release();
  EXPECT_TRUE(put.Wait()[0].ok());
  EXPECT_TRUE(erase.Wait()[0].ok());
  EXPECT_TRUE(flush.Wait()[0].ok());
  EXPECT_EQ(store_.GetCode(erased), StatusCode::kNotFound);
  EXPECT_EQ(store_.GetCode(large_), StatusCode::kNotFound);
  WaitFor([&] { return large_.frame.use_count() == 1 && erased.frame.use_count() == 1; });
  EXPECT_EQ(store_.backend().used_bytes(), kMiB);
}

TEST_F(NvmeRoomTest, AClearTakesAPutThatWaitsForRoom) {
  OpenWithZerosInFlight();
  Answers<Status> put = StartPut(large_);
  EXPECT_TRUE(store_.Clear().ok());
  faults_->Release();
  EXPECT_EQ(put.Wait()[0].code(), StatusCode::kCancelled);
  EXPECT_EQ(store_.backend().used_bytes(), 0u);
  EXPECT_TRUE(store_.Put(large_).ok());
}

TEST_F(NvmeRoomTest, AFailedZeroWriteEndsItAndNothingElse) {
  {
    const std::lock_guard lock(faults_->mutex);
    faults_->change = [](IoCompletion& completion) {
      if (completion.request->direction == IoDirection::kWrite && completion.request->offset >= kMiB) {
        completion.result = -EIO;
      }
    };
  }
  Open(12 * kMiB);
  ASSERT_TRUE(store_.Put(first_).ok());
  ASSERT_TRUE(store_.Flush().ok());
  {
    const std::lock_guard lock(faults_->mutex);
    faults_->change = nullptr;
  }
  EXPECT_TRUE(store_.Put(large_).ok()) << "written without having been prepared";
  store_.ExpectHas(large_);
  EXPECT_EQ(Prepared(), 0);
}

TEST_F(NvmeRoomTest, WithoutRoomForASegmentAPutIsRefusedAndTheNextAsksAgain) {
  NvmeOptions options = store_.options();
  options.min_free_bytes = uint64_t{1} << 62;
  ASSERT_TRUE(store_.TryOpen(options).ok());
  for (int i = 0; i < 2; ++i) {
    const Status status = store_.Put(first_);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(status.ToString(), HasSubstr("free"));
  }
  EXPECT_EQ(store_.backend().used_bytes(), 0u);
  EXPECT_EQ(first_.frame.use_count(), 1u);
}

}  // namespace
}  // namespace terrace
