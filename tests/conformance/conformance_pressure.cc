// Limits and races: capacity, many threads, deadlines, cancels, close.
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/conformance/conformance_run.h"

namespace terrace {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

// Of a store that makes room by itself.
void RoomIsMade(ConformanceRun& run) {
  std::vector<TestObject> put;
  const size_t num_objects = run.fixture().tight_bytes / kMiB + 8;
  for (size_t i = 0; i < num_objects; ++i) {
    put.push_back(run.Object(i + 1, kMiB));
    const Status status = run.PutOne(put.back());
    ASSERT_TRUE(status.ok()) << status.ToString();
    run.ExpectHas(put.back());
  }
  size_t there = 0;
  for (const TestObject& object : put) {
    BufferRef dst = MakeTestBuffer(object.meta.frame_bytes);
    const GetResult result = run.Get({GetOpOf(object, dst)}).at(0);
    if (!result.status.ok()) {
      EXPECT_EQ(result.status.code(), StatusCode::kNotFound) << result.status.ToString();
      continue;
    }
    ++there;
    EXPECT_TRUE(object.Holds(dst));
  }
  EXPECT_GE(there, 4u);
  EXPECT_LT(there, num_objects);
  uint64_t bytes = 0;
  for (const ScannedObject& object : run.ScanAll(100)) bytes += object.meta.frame_bytes;
  EXPECT_LE(bytes, run.fixture().tight_bytes);
}

void CapacityIsEnforced(ConformanceRun& run) {
  ASSERT_TRUE(run.Open(run.fixture().tight_bytes));
  if (run.fixture().deviations.makes_room) return RoomIsMade(run);
  const uint64_t capacity = run.backend().capacity_bytes();
  EXPECT_LE(capacity, run.fixture().tight_bytes);
  std::vector<TestObject> stored;
  uint64_t seed = 1;
  auto fill = [&] {
    for (size_t n = 0; n <= capacity / kMiB + 1; ++n) {
      const TestObject object = run.Object(seed++, kMiB);
      const Status put = run.PutOne(object);
      EXPECT_LE(run.backend().used_bytes(), capacity);
      if (put.ok()) {
        stored.push_back(object);
        continue;
      }
      EXPECT_EQ(put.code(), StatusCode::kResourceExhausted) << put.ToString();
      run.ExpectMisses(object);
      return;
    }
    ADD_FAILURE() << stored.size() << " frames of 1 MiB in " << capacity << " bytes";
  };
  fill();
  ASSERT_GE(stored.size(), 4u);
  for (const TestObject& object : stored) run.ExpectHas(object);
  const size_t full = stored.size();
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    const EraseMode mode = round % 2 == 0 ? EraseMode::kEvict : EraseMode::kErase;
    for (int i = 0; i < 2; ++i) {
      const uint64_t used = run.backend().used_bytes();
      ASSERT_TRUE(run.EraseOne(stored.front(), mode).ok());
      EXPECT_LT(run.backend().used_bytes(), used) << "erasing gives nothing back";
      stored.erase(stored.begin());
    }
    fill();
    if (run.fixture().deviations.divides_space) continue;
    EXPECT_EQ(stored.size(), full) << "space is lost by erasing";
  }
  for (const TestObject& object : stored) run.ExpectHas(object);
  // Present objects need no room.
  EXPECT_EQ(run.PutOne(stored[0]).code(), StatusCode::kAlreadyExists);
}

void CapacityHoldsAfterReopen(ConformanceRun& run) {
  if (run.fixture().deviations.makes_room) GTEST_SKIP() << "is never full";
  ASSERT_TRUE(run.Open(run.fixture().tight_bytes));
  std::vector<TestObject> stored;
  Status put;
  for (uint64_t seed = 1; put.ok() && seed < 10000; ++seed) {
    TestObject object = run.Object(seed, kMiB);
    put = run.PutOne(object);
    if (put.ok()) stored.push_back(std::move(object));
  }
  ASSERT_EQ(put.code(), StatusCode::kResourceExhausted) << put.ToString();
  ASSERT_TRUE(run.Reopen());
  EXPECT_LE(run.backend().used_bytes(), run.backend().capacity_bytes());
  if (!run.fixture().durable) return;
  for (const TestObject& object : stored) run.ExpectHas(object);
  size_t more = 0;
  for (uint64_t seed = 20000; run.PutOne(run.Object(seed, kMiB)).ok() && more < 100; ++seed) ++more;
  // Where the space is divided, another part may have room.
  if (!run.fixture().deviations.divides_space) {
    EXPECT_LE(more, 1u) << "a full directory had room for more after a reopen";
  }
  EXPECT_LE(run.backend().used_bytes(), run.backend().capacity_bytes());
}

void ConcurrentPutsDoNotExceedCapacity(ConformanceRun& run) {
  if (run.fixture().deviations.makes_room) GTEST_SKIP() << "is never full";
  ASSERT_TRUE(run.Open(run.fixture().tight_bytes));
  const size_t num_ops = run.fixture().tight_bytes / kMiB + 16;
  std::vector<TestObject> objects;
  for (size_t i = 0; i < num_ops; ++i) objects.push_back(run.Object(i + 1, kMiB));
  std::vector<Completion<Status>> completions(num_ops);
  for (size_t i = 0; i < num_ops; ++i) {
    std::vector<PutOp> puts;
    puts.push_back(PutOpOf(objects[i]));
    run.backend().Put(std::move(puts), completions[i].Callback());
  }
  size_t stored = 0;
  for (size_t i = 0; i < num_ops; ++i) {
    const Status status = completions[i].Wait().at(0);
    if (status.ok()) {
      ++stored;
      run.ExpectHas(objects[i]);
    } else {
      EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
      run.ExpectMisses(objects[i]);
    }
  }
  EXPECT_GE(stored, 4u);
  EXPECT_LT(stored, num_ops);
  EXPECT_LE(run.backend().used_bytes(), run.backend().capacity_bytes());
}

void NothingFitsIntoNoCapacity(ConformanceRun& run) {
  if (run.fixture().deviations.needs_capacity) GTEST_SKIP() << "there is no such store";
  ASSERT_TRUE(run.Open(0));
  EXPECT_EQ(run.backend().capacity_bytes(), 0u);
  const TestObject object = run.Object(1, run.small_bytes());
  EXPECT_EQ(run.PutOne(object).code(), StatusCode::kResourceExhausted);
  run.ExpectMisses(object);
  EXPECT_EQ(run.EraseOne(object, EraseMode::kErase).code(), StatusCode::kNotFound);
  EXPECT_TRUE(run.ScanAll(10).empty());
  EXPECT_TRUE(run.Clear().ok());
  EXPECT_TRUE(run.Flush().ok());
}

// Threads put, get and erase the same few ids; each id has three saves that differ. What is got is one of
// them, whole.
void ConcurrentCallsNeverMixBytes(ConformanceRun& run) {
  constexpr size_t kIds = 8;
  constexpr size_t kVersions = 3;
  constexpr int kThreads = 4;
  constexpr int kRounds = 120;
  ASSERT_TRUE(run.OpenRoomy());
  std::vector<std::vector<TestObject>> objects(kIds);
  for (size_t i = 0; i < kIds; ++i) {
    for (size_t v = 0; v < kVersions; ++v) objects[i].push_back(run.Object(i + 1, (64 + 128 * i) * kKiB, v));
  }
  std::atomic<int> hits{0};
  std::atomic<int> stores{0};
  std::atomic<int> mixed{0};
  std::atomic<int> failed{0};
  auto expected = [&](const Status& status, StatusCode other) {
    if (!status.ok() && status.code() != other) ++failed;
    return status.ok();
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      uint64_t state = 77 + t;
      for (int round = 0; round < kRounds; ++round) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        const std::vector<TestObject>& versions = objects[(state >> 33) % kIds];
        const uint64_t action = (state >> 45) % 8;
        if (action < 3) {
          stores += expected(run.PutOne(versions[(state >> 50) % kVersions]), StatusCode::kAlreadyExists);
        } else if (action < 7) {
          BufferRef dst = MakeTestBuffer(versions[0].meta.frame_bytes);
          const GetResult got = run.Get({GetOpOf(versions[0], dst)}).at(0);
          if (!expected(got.status, StatusCode::kNotFound)) continue;
          ++hits;
          bool whole = false;
          for (const TestObject& version : versions) whole |= version.Holds(dst);
          if (!whole) ++mixed;
        } else {
          const EraseMode mode = (state >> 50) % 4 == 0 ? EraseMode::kErase : EraseMode::kEvict;
          expected(run.EraseOne(versions[0], mode), StatusCode::kNotFound);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(mixed, 0);
  EXPECT_EQ(failed, 0);
  EXPECT_GT(hits, 0);
  EXPECT_GT(stores, 0);
  for (const auto& versions : objects) {
    const Status erased = run.EraseOne(versions[0], EraseMode::kErase);
    EXPECT_TRUE(erased.ok() || erased.code() == StatusCode::kNotFound) << erased.ToString();
  }
  EXPECT_TRUE(run.ScanAll(100).empty());
  for (const auto& versions : objects) {
    for (const TestObject& version : versions) ASSERT_TRUE(LetGo(version.frame));
  }
}

void BuffersAreLetGo(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject object = run.Object(1, kMiB);
  const TestObject absent = run.Object(2, kMiB);
  BufferRef dst = MakeTestBuffer(kMiB);
  BufferRef dst_of_miss = MakeTestBuffer(kMiB);
  ASSERT_TRUE(run.PutOne(object).ok());
  ASSERT_EQ(run.PutOne(object).code(), StatusCode::kAlreadyExists);
  const std::vector<GetResult> results = run.Get({GetOpOf(object, dst), GetOpOf(absent, dst_of_miss)});
  ASSERT_TRUE(results[0].status.ok());
  EXPECT_TRUE(LetGo(dst)) << "of a hit: " << dst.use_count();
  EXPECT_TRUE(LetGo(dst_of_miss)) << "of a miss: " << dst_of_miss.use_count();
  if (run.backend().capabilities().supports_borrow) {
    EXPECT_EQ(object.frame.use_count(), 2u) << "the published buffer";
    ASSERT_TRUE(run.EraseOne(object, EraseMode::kEvict).ok());
  }
  EXPECT_TRUE(LetGo(object.frame)) << "of a put: " << object.frame.use_count();
  const TestObject left = run.Object(3, kMiB);
  ASSERT_TRUE(run.PutOne(left).ok());
  ASSERT_TRUE(run.backend().Close().ok());
  EXPECT_EQ(left.frame.use_count(), 1u) << "after Close";
}

void PassedDeadlinesAreNeverWrongBytes(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject object = run.Object(1, 4 * kMiB);
  const TestObject late = run.Object(2, 4 * kMiB);
  ASSERT_TRUE(run.PutOne(object).ok());
  const TimePoint now = Clock::Real()->Now();
  int passed = 0;
  for (const Duration after :
       {Duration(std::chrono::seconds(-1)), Duration(0), Duration(std::chrono::microseconds(50)),
        Duration(std::chrono::microseconds(500)), Duration(std::chrono::milliseconds(3)),
        Duration(std::chrono::minutes(10))}) {
    BufferRef dst = MakeTestBuffer(object.meta.frame_bytes);
    GetOp get = GetOpOf(object, dst);
    get.deadline = (after.count() <= 0 ? now : Clock::Real()->Now()) + after;
    const GetResult result = run.Get({std::move(get)}).at(0);
    if (result.status.ok()) {
      EXPECT_TRUE(object.Holds(dst));
    } else {
      EXPECT_EQ(result.status.code(), StatusCode::kDeadlineExceeded) << result.status.ToString();
    }
    passed += !result.status.ok();
    EXPECT_TRUE(LetGo(dst));
  }
  EXPECT_GE(passed, 2) << "deadlines in the past";
  PutOp put = PutOpOf(late);
  put.deadline = now - std::chrono::seconds(1);
  EXPECT_EQ(run.Put({std::move(put)}).at(0).code(), StatusCode::kDeadlineExceeded);
  run.ExpectMisses(late);
  run.ExpectHas(object);
}

void CancelledIsNeverWrongBytes(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject object = run.Object(1, 8 * kMiB);
  const TestObject dropped = run.Object(2, kMiB);
  ASSERT_TRUE(run.PutOne(object).ok());
  auto before = std::make_shared<std::atomic<bool>>(true);
  BufferRef dst = MakeTestBuffer(object.meta.frame_bytes);
  GetOp get = GetOpOf(object, dst);
  get.cancel = before;
  EXPECT_EQ(run.Get({std::move(get)}).at(0).status.code(), StatusCode::kCancelled);
  PutOp put = PutOpOf(dropped);
  put.cancel = before;
  EXPECT_EQ(run.Put({std::move(put)}).at(0).code(), StatusCode::kCancelled);
  run.ExpectMisses(dropped);
  for (int round = 0; round < 4; ++round) {
    // Where reads go on while the caller does, the flag meets one in flight.
    auto flag = std::make_shared<std::atomic<bool>>(false);
    GetOp op = GetOpOf(object, MakeTestBuffer(object.meta.frame_bytes));
    BufferRef target = op.dst;
    op.cancel = flag;
    if (round % 2 == 0) op.on_bytes = [flag](uint64_t, uint64_t) { flag->store(true); };
    Completion<GetResult> completion;
    std::vector<GetOp> ops;
    ops.push_back(std::move(op));
    run.backend().Get(std::move(ops), completion.Callback());
    flag->store(true);
    const GetResult result = completion.Wait().at(0);
    if (result.status.ok()) {
      EXPECT_TRUE(object.Holds(target));
    } else {
      EXPECT_EQ(result.status.code(), StatusCode::kCancelled) << result.status.ToString();
    }
    EXPECT_TRUE(LetGo(target)) << "an orphan is not let go";
  }
  run.ExpectHas(object);
}

void CloseCompletesWhatIsInFlight(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  std::vector<TestObject> objects;
  for (uint64_t i = 0; i < 8; ++i) objects.push_back(run.Object(i + 1, kMiB));
  for (size_t i = 0; i < 4; ++i) ASSERT_TRUE(run.PutOne(objects[i]).ok());
  std::vector<Completion<GetResult>> gets(8);
  std::vector<Completion<Status>> puts(4);
  std::vector<BufferRef> dsts;
  for (size_t i = 0; i < gets.size(); ++i) {
    dsts.push_back(MakeTestBuffer(kMiB));
    std::vector<GetOp> get_ops;
    get_ops.push_back(GetOpOf(objects[i % 4], dsts.back()));
    run.backend().Get(std::move(get_ops), gets[i].Callback());
    if (i % 2 == 0) {
      std::vector<PutOp> put_ops;
      put_ops.push_back(PutOpOf(objects[4 + i / 2]));
      run.backend().Put(std::move(put_ops), puts[i / 2].Callback());
    }
  }
  const Status closed = run.backend().Close();
  EXPECT_TRUE(closed.ok()) << closed.ToString();
  for (size_t i = 0; i < gets.size(); ++i) {
    ASSERT_EQ(gets[i].calls(), 1) << "not completed by Close";
    const GetResult result = gets[i].Wait().at(0);
    if (result.status.ok()) {
      EXPECT_TRUE(objects[i % 4].Holds(dsts[i]));
    }
    EXPECT_NE(result.status.code(), StatusCode::kNotFound);
    EXPECT_EQ(dsts[i].use_count(), 1u) << "an orphan after Close";
  }
  for (const auto& put : puts) ASSERT_EQ(put.calls(), 1) << "not completed by Close";
  for (const TestObject& object : objects) EXPECT_EQ(object.frame.use_count(), 1u);
  if (!run.fixture().durable) return;
  ASSERT_TRUE(run.Reopen());
  for (size_t i = 0; i < 4; ++i) run.ExpectHas(objects[i]);
  for (size_t i = 0; i < 4; ++i) {
    if (puts[i].Wait().at(0).ok()) run.ExpectHas(objects[4 + i]);
  }
}

void ClosedRefusesCalls(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject object = run.Object(1, 64 * kKiB);
  ASSERT_TRUE(run.PutOne(object).ok());
  ASSERT_TRUE(run.backend().Close().ok());
  EXPECT_TRUE(run.backend().Close().ok()) << "twice";
  const StatusCode refused = StatusCode::kFailedPrecondition;
  const std::vector<GetResult> gets =
      run.Get({GetOpOf(object, MakeTestBuffer(64 * kKiB)), GetOpOf(object, {})});
  EXPECT_EQ(gets[0].status.code(), refused);
  EXPECT_EQ(gets[1].status.code(), refused);
  EXPECT_EQ(run.PutOne(object).code(), refused);
  EXPECT_EQ(run.EraseOne(object, EraseMode::kErase).code(), refused);
  EXPECT_EQ(run.Clear().code(), refused);
  EXPECT_EQ(run.Flush().code(), refused);
  EXPECT_EQ(run.backend().Scan("", 10).status().code(), refused);
  EXPECT_EQ(run.backend().PutRoot({}).code(), refused);
  EXPECT_EQ(run.backend().ScanRoots().status().code(), refused);
  EXPECT_FALSE(run.backend().Borrow({&object.id, 1}).at(0));
  EXPECT_EQ(run.backend().Attach(run.Context()).code(), refused);
}

void CallsNeedOneAttach(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  EXPECT_EQ(run.backend().Attach(run.Context()).code(), StatusCode::kFailedPrecondition) << "twice";
  const TestObject object = run.Object(1, 64 * kKiB);
  EXPECT_TRUE(run.PutOne(object).ok()) << "the first attach holds";
  run.ExpectHas(object);
  ASSERT_TRUE(run.backend().Close().ok());
  run.Destroy();

  Result<std::unique_ptr<Backend>> made = run.fixture().make(run.fixture().roomy_bytes);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  Backend& backend = **made;
  int calls = 0;
  std::vector<PutOp> puts;
  puts.push_back(PutOpOf(object));
  backend.Put(std::move(puts), [&](std::span<const Status> results) {
    ++calls;
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(results[0].code(), StatusCode::kFailedPrecondition);
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(backend.Scan("", 1).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(backend.Attach({}).code(), StatusCode::kInvalidArgument) << "without clock, metrics and log";
  EXPECT_TRUE(backend.Close().ok()) << "never attached";
}

constexpr ConformanceCase kCases[] = {
    {"CapacityIsEnforced", CapacityIsEnforced},
    {"CapacityHoldsAfterReopen", CapacityHoldsAfterReopen},
    {"ConcurrentPutsDoNotExceedCapacity", ConcurrentPutsDoNotExceedCapacity},
    {"NothingFitsIntoNoCapacity", NothingFitsIntoNoCapacity},
    {"ConcurrentCallsNeverMixBytes", ConcurrentCallsNeverMixBytes},
    {"BuffersAreLetGo", BuffersAreLetGo},
    {"PassedDeadlinesAreNeverWrongBytes", PassedDeadlinesAreNeverWrongBytes},
    {"CancelledIsNeverWrongBytes", CancelledIsNeverWrongBytes},
    {"CloseCompletesWhatIsInFlight", CloseCompletesWhatIsInFlight},
    {"ClosedRefusesCalls", ClosedRefusesCalls},
    {"CallsNeedOneAttach", CallsNeedOneAttach},
};

}  // namespace

std::span<const ConformanceCase> PressureCases() { return kCases; }

}  // namespace terrace
