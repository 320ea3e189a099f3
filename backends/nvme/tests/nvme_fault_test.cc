// Device results that a test decides: short, retried, failed, late.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "backends/nvme/tests/nvme_test_store.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

constexpr auto kFaultMinute = std::chrono::minutes(1);

// Until the condition holds; a minute of it failing fails the test.
template <typename Condition>
void WaitFor(Condition condition) {
  const TimePoint limit = Clock::Real()->Now() + kFaultMinute;
  while (!condition()) {
    ASSERT_LT(Clock::Real()->Now(), limit);
    std::this_thread::yield();
  }
}

class NvmeFaultTest : public ::testing::TestWithParam<IoEngineKind> {
 protected:
  void SetUp() override {
    const auto threads = [](uint32_t depth) { return MakeThreadsEngine(depth, "a test"); };
    const bool is_uring = GetParam() == IoEngineKind::kIoUring;
    store_.Open(128 * kMiB, MakeFaultyEngine(faults_, is_uring ? IoEngineFactory(MakeUringEngine) : threads));
  }
  ~NvmeFaultTest() override { faults_->Release(); }

  void Change(std::function<void(IoCompletion&)> change) {
    const std::lock_guard lock(faults_->mutex);
    faults_->change = std::move(change);
  }
  void Hold(IoDirection direction) {
    const std::lock_guard lock(faults_->mutex);
    faults_->hold = [direction](const IoCompletion& completion) {
      return completion.request->direction == direction;
    };
  }
  Answers<GetResult> StartGet(const TestObject& object, BufferRef dst, TimePoint deadline = kNoDeadline,
                              CancelFlag cancel = nullptr) {
    Answers<GetResult> answers;
    std::vector<GetOp> ops;
    ops.push_back(GetOpOf(object, std::move(dst)));
    ops[0].deadline = deadline;
    ops[0].cancel = std::move(cancel);
    store_.backend().Get(std::move(ops), answers.Callback());
    return answers;
  }
  Answers<Status> StartPut(const TestObject& object, TimePoint deadline = kNoDeadline,
                           CancelFlag cancel = nullptr) {
    Answers<Status> answers;
    std::vector<PutOp> ops;
    ops.push_back(PutOpOf(object));
    ops[0].deadline = deadline;
    ops[0].cancel = std::move(cancel);
    store_.backend().Put(std::move(ops), answers.Callback());
    return answers;
  }
  Answers<Status> StartErase(const ObjectId& id, EraseMode mode) {
    Answers<Status> answers;
    store_.backend().Erase({id}, mode, answers.Callback());
    return answers;
  }

  std::shared_ptr<EngineFaults> faults_ = std::make_shared<EngineFaults>();
  NvmeTestStore store_;
};

TEST_P(NvmeFaultTest, ShortAndInterruptedTransfersAreWhole) {
  std::atomic<int> shortened{0};
  std::atomic<int> interrupted{0};
  {
    const std::lock_guard lock(faults_->mutex);
    // The device reports less than it did: what is behind must be asked for again.
    faults_->change = [&](IoCompletion& completion) {
      const int turn = shortened + interrupted;
      if (turn % 3 == 2) {
        completion.result = turn % 2 ? -EAGAIN : -EINTR;
        ++interrupted;
      } else if (completion.result > 8192) {
        completion.result = completion.result / 2 + 100;
        ++shortened;
      } else {
        ++interrupted;  // moves on
      }
    };
  }
  const TestObject object = MakeNvmeObject(1, 9 * kMiB + 4096);
  ASSERT_TRUE(store_.Put(object).ok());
  BufferRef dst = MakeTestBuffer(object.meta.frame_bytes);
  std::atomic<uint64_t> reported{0};
  Answers<GetResult> answers;
  std::vector<GetOp> ops;
  ops.push_back(GetOpOf(object, dst));
  ops[0].on_bytes = [&reported](uint64_t, uint64_t n) { reported += n; };
  store_.backend().Get(std::move(ops), answers.Callback());
  const GetResult result = answers.Wait()[0];
  ASSERT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_TRUE(object.Holds(dst));
  EXPECT_EQ(reported, object.meta.frame_bytes) << "each byte once, the tier page never";
  EXPECT_GT(shortened, 20);
  EXPECT_GT(interrupted, 10);
  Change(nullptr);
  store_.ExpectHas(object);
}

TEST_P(NvmeFaultTest, AFailedWriteStoresNothing) {
  const TestObject object = MakeNvmeObject(1, 5 * kMiB);
  std::atomic<int> writes{0};
  Change([&writes](IoCompletion& completion) {
    if (completion.request->direction == IoDirection::kWrite && ++writes == 2) completion.result = -EIO;
  });
  EXPECT_EQ(store_.Put(object).code(), StatusCode::kUnavailable);
  EXPECT_EQ(store_.backend().used_bytes(), 0u);
  EXPECT_EQ(object.frame.use_count(), 1u);
  EXPECT_EQ(store_.GetCode(object), StatusCode::kNotFound);
  Change([](IoCompletion& completion) {
    if (completion.request->direction == IoDirection::kWrite) completion.result = -ENOSPC;
  });
  EXPECT_EQ(store_.Put(object).code(), StatusCode::kResourceExhausted);
  Change(nullptr);
  EXPECT_TRUE(store_.Put(object).ok()) << "the tier goes on";
  store_.ExpectHas(object);
}

TEST_P(NvmeFaultTest, AFailedReadIsThatOperationsAlone) {
  std::vector<TestObject> objects;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    objects.push_back(MakeNvmeObject(seed, kMiB));
    ASSERT_TRUE(store_.Put(objects.back()).ok());
  }
  const uint64_t second = kMiB + kTierPageBytes;
  Change([second](IoCompletion& completion) {
    if (completion.request->direction == IoDirection::kRead && completion.request->offset == second) {
      completion.result = -EIO;
    }
  });
  Answers<GetResult> answers;
  std::vector<GetOp> ops;
  std::vector<BufferRef> dsts;
  for (const TestObject& object : objects) {
    dsts.push_back(MakeTestBuffer(kMiB));
    ops.push_back(GetOpOf(object, dsts.back()));
  }
  store_.backend().Get(std::move(ops), answers.Callback());
  const std::vector<GetResult> results = answers.Wait();
  EXPECT_TRUE(results[0].status.ok());
  EXPECT_EQ(results[1].status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(results[2].status.ok());
  EXPECT_TRUE(objects[0].Holds(dsts[0]));
  EXPECT_TRUE(objects[2].Holds(dsts[2]));
  Change(nullptr);
  store_.ExpectHas(objects[1]);  // an error of the device is no damage
  EXPECT_EQ(store_.Metric("terrace_nvme_corrupt_objects_total"), 0);
}

TEST_P(NvmeFaultTest, ADeadlineAnswersAtOnceAndTheBufferIsOrphaned) {
  const TestObject object = MakeNvmeObject(1, kMiB);
  ASSERT_TRUE(store_.Put(object).ok());
  Hold(IoDirection::kRead);
  BufferRef dst = MakeTestBuffer(kMiB);
  Answers<GetResult> got = StartGet(object, dst, Clock::Real()->Now() + std::chrono::milliseconds(20));
  EXPECT_EQ(got.Wait()[0].status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(dst.use_count(), 2u) << "the device may still write to it";
  EXPECT_EQ(store_.Metric("terrace_nvme_orphaned_buffers"), 1);
  WaitFor([&] { return faults_->num_held() == 1; });
  // Close names it, and is not done.
  const Status closed = store_.backend().Close(Clock::Real()->Now() + std::chrono::milliseconds(20));
  EXPECT_EQ(closed.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(closed.message()), HasSubstr(object.id.key.ToHex()));
  faults_->Release();
  EXPECT_TRUE(store_.backend().Close().ok());
  EXPECT_EQ(dst.use_count(), 1u);
  EXPECT_EQ(store_.Metric("terrace_nvme_orphaned_buffers"), 0);
}

TEST_P(NvmeFaultTest, ACancelledPutIsAbsentAndGivesItsPlaceBackLater) {
  const TestObject object = MakeNvmeObject(1, kMiB);
  Hold(IoDirection::kWrite);
  auto flag = std::make_shared<std::atomic<bool>>(false);
  Answers<Status> put = StartPut(object, kNoDeadline, flag);
  WaitFor([&] { return faults_->num_held() == 1; });
  EXPECT_EQ(StartPut(object).Wait()[0].code(), StatusCode::kAlreadyExists) << "in flight";
  EXPECT_EQ(store_.GetCode(object), StatusCode::kNotFound) << "in flight";
  EXPECT_FALSE(put.came());
  flag->store(true);
  EXPECT_EQ(put.Wait()[0].code(), StatusCode::kCancelled);
  EXPECT_EQ(object.frame.use_count(), 2u);
  EXPECT_EQ(store_.backend().used_bytes(), kMiB + kTierPageBytes) << "the device still writes there";
  faults_->Release();
  WaitFor([&] { return store_.backend().used_bytes() == 0; });
  WaitFor([&] { return object.frame.use_count() == 1; });
  EXPECT_EQ(store_.GetCode(object), StatusCode::kNotFound);
  EXPECT_TRUE(store_.Put(object).ok());
  store_.ExpectHas(object);
}

// More than the device may have in flight: the second has not begun when it is given up.
TEST_P(NvmeFaultTest, APutThatStillWaitsIsGivenUpAtOnce) {
  const TestObject first = MakeNvmeObject(1, 20 * kMiB);
  const TestObject second = MakeNvmeObject(2, kMiB);
  const TestObject third = MakeNvmeObject(3, kMiB);
  Hold(IoDirection::kWrite);
  Answers<Status> put = StartPut(first);
  WaitFor([&] { return faults_->num_held() > 0; });
  auto flag = std::make_shared<std::atomic<bool>>(false);
  Answers<Status> cancelled = StartPut(second, kNoDeadline, flag);
  Answers<Status> late = StartPut(third, Clock::Real()->Now() + std::chrono::milliseconds(20));
  flag->store(true);
  EXPECT_EQ(cancelled.Wait()[0].code(), StatusCode::kCancelled);
  EXPECT_EQ(late.Wait()[0].code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(second.frame.use_count(), 1u) << "no device has it";
  EXPECT_EQ(third.frame.use_count(), 1u);
  EXPECT_EQ(store_.backend().used_bytes(), 20 * kMiB + kTierPageBytes);
  EXPECT_EQ(store_.Metric("terrace_nvme_orphaned_buffers"), 0);
  // Close gives the rest up, too.
  Answers<Status> closed = StartPut(second);
  const Status status = store_.backend().Close(Clock::Real()->Now() + std::chrono::milliseconds(20));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.ToString();
  EXPECT_EQ(put.Wait()[0].code(), StatusCode::kCancelled);
  EXPECT_EQ(closed.Wait()[0].code(), StatusCode::kCancelled);
  faults_->Release();
  EXPECT_TRUE(store_.backend().Close().ok());
}

TEST_P(NvmeFaultTest, EraseWaitsForThePutInFlight) {
  for (const EraseMode mode : {EraseMode::kEvict, EraseMode::kErase}) {
    const TestObject object = MakeNvmeObject(mode == EraseMode::kErase ? 2 : 1, kMiB);
    Hold(IoDirection::kWrite);
    Answers<Status> put = StartPut(object);
    WaitFor([&] { return faults_->num_held() == 1; });
    Answers<Status> erase = StartErase(object.id, mode);
    Answers<Status> again = StartErase(object.id, mode);
    EXPECT_FALSE(erase.came());
    faults_->Release();
    EXPECT_TRUE(put.Wait()[0].ok());
    EXPECT_TRUE(erase.Wait()[0].ok());
    EXPECT_EQ(again.Wait()[0].code(), StatusCode::kNotFound);
    EXPECT_EQ(store_.GetCode(object), StatusCode::kNotFound);
  }
  EXPECT_EQ(store_.backend().used_bytes(), 0u);
  store_.Reopen();
  EXPECT_TRUE(store_.backend().Scan("", 10)->objects.empty());
}

TEST_P(NvmeFaultTest, AFlushWaitsForThePutsBeforeIt) {
  const TestObject object = MakeNvmeObject(1, kMiB);
  Hold(IoDirection::kWrite);
  Answers<Status> put = StartPut(object);
  WaitFor([&] { return faults_->num_held() == 1; });
  Answers<Status> flush;
  store_.backend().Flush([callback = flush.Callback()](const Status& status) { callback({&status, 1}); });
  EXPECT_EQ(store_.GetCode(object), StatusCode::kNotFound);
  EXPECT_FALSE(flush.came());
  faults_->Release();
  EXPECT_TRUE(flush.Wait()[0].ok());
  EXPECT_TRUE(put.came());
}

TEST_P(NvmeFaultTest, AClearTakesThePutInFlightWithIt) {
  const TestObject object = MakeNvmeObject(1, kMiB);
  Hold(IoDirection::kWrite);
  Answers<Status> put = StartPut(object);
  WaitFor([&] { return faults_->num_held() == 1; });
  EXPECT_TRUE(store_.Clear().ok());
  Answers<Status> second = StartPut(MakeNvmeObject(1, kMiB, 1));
  faults_->Release();
  EXPECT_EQ(put.Wait()[0].code(), StatusCode::kCancelled);
  EXPECT_TRUE(second.Wait()[0].ok()) << "put after the clear";
  store_.ExpectHas(MakeNvmeObject(1, kMiB, 1));
  EXPECT_EQ(store_.backend().used_bytes(), kMiB + kTierPageBytes);
  store_.Reopen();
  store_.ExpectHas(MakeNvmeObject(1, kMiB, 1));
}

TEST_P(NvmeFaultTest, APlaceThatIsReadIsNotReused) {
  constexpr uint64_t kFrame = 20 * kMiB;
  const TestObject object = MakeNvmeObject(1, kFrame);
  ASSERT_TRUE(store_.Put(object).ok());
  Hold(IoDirection::kRead);
  BufferRef dst = MakeTestBuffer(kFrame);
  Answers<GetResult> got = StartGet(object, dst);
  WaitFor([&] { return faults_->num_held() > 0; });
  ASSERT_TRUE(store_.Erase(object.id, EraseMode::kEvict).ok());
  EXPECT_EQ(store_.backend().used_bytes(), kFrame + kTierPageBytes) << "it is being read";
  // Everything else is filled: nothing of it lands on what is being read.
  size_t stored = 0;
  while (store_.Put(MakeNvmeObject(100 + stored, 3 * kMiB)).ok()) ++stored;
  EXPECT_GT(stored, 20u);
  faults_->Release();
  const GetResult result = got.Wait()[0];
  ASSERT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_TRUE(object.Holds(dst));
  WaitFor([&] { return store_.backend().used_bytes() == stored * (3 * kMiB + kTierPageBytes); });
  EXPECT_TRUE(store_.Put(MakeNvmeObject(99, 3 * kMiB)).ok()) << "free again";
}

TEST_P(NvmeFaultTest, AWipedPageMeetsAReaderAsAMiss) {
  const TestObject object = MakeNvmeObject(1, 5 * kMiB);
  ASSERT_TRUE(store_.Put(object).ok());
  Hold(IoDirection::kRead);
  Answers<GetResult> got = StartGet(object, MakeTestBuffer(5 * kMiB));
  WaitFor([&] { return faults_->num_held() > 0; });
  ASSERT_TRUE(store_.Erase(object.id, EraseMode::kErase).ok());
  faults_->Release();
  const StatusCode code = got.Wait()[0].status.code();
  EXPECT_TRUE(code == StatusCode::kOk || code == StatusCode::kNotFound);
  EXPECT_EQ(store_.Metric("terrace_nvme_corrupt_objects_total"), 0) << "erasing is no damage";
}

INSTANTIATE_TEST_SUITE_P(Engines, NvmeFaultTest,
                         ::testing::Values(IoEngineKind::kIoUring, IoEngineKind::kThreads),
                         [](const auto& kind) {
                           return kind.param == IoEngineKind::kIoUring ? "IoUring" : "Threads";
                         });

}  // namespace
}  // namespace terrace
