// What was put is got: bytes, pairing, ranges, borrowed buffers, arguments.
#include <algorithm>
#include <cstring>
#include <set>

#include "tests/conformance/conformance_run.h"

namespace terrace {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

void PutThenGetGivesEqualBytes(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  uint64_t seed = 1;
  for (const uint64_t bytes : {4 * kKiB, 8 * kKiB, 64 * kKiB, 100 * kKiB, kMiB, kMiB + 4 * kKiB, 2 * kMiB,
                               3 * kMiB - 4 * kKiB, 5764 * kKiB, 8 * kMiB}) {
    if (bytes < run.fixture().smallest_frame_bytes) continue;
    SCOPED_TRACE(bytes);
    const TestObject object = run.Object(seed++, bytes);
    run.ExpectMisses(object);
    const Status put = run.PutOne(object);
    ASSERT_TRUE(put.ok()) << put.ToString();
    run.ExpectHas(object);
  }
}

void PutOfBufferLargerThanFrameStoresTheFrame(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject object = run.Object(1, 12 * kKiB);
  BufferRef large = MakeTestBuffer(256 * kKiB, std::byte{0x77});
  std::memcpy(large.mutable_frame().data(), object.frame.frame().data(), object.meta.frame_bytes);
  ASSERT_TRUE(run.Put({{.id = object.id, .frame = large, .meta = object.meta}}).at(0).ok());
  BufferRef dst = MakeTestBuffer(256 * kKiB);
  const GetResult result = run.Get({GetOpOf(object, dst)}).at(0);
  ASSERT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_EQ(result.frame_bytes, object.meta.frame_bytes);
  EXPECT_TRUE(object.Holds(dst));
}

void BatchWithMissesKeepsPairing(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  std::vector<TestObject> objects;
  std::vector<PutOp> puts;
  const std::set<size_t> missing = {0, 4, 5, 11};
  for (size_t i = 0; i < 12; ++i) {
    objects.push_back(run.Object(100 + i, (i % 4 + 1) * 132 * kKiB));
    if (!missing.contains(i)) puts.push_back(PutOpOf(objects[i]));
  }
  for (const Status& status : run.Put(std::move(puts))) EXPECT_TRUE(status.ok()) << status.ToString();
  std::vector<GetOp> gets;
  std::vector<BufferRef> dsts;
  for (const TestObject& object : objects) {
    dsts.push_back(MakeTestBuffer(object.meta.frame_bytes));
    gets.push_back(GetOpOf(object, dsts.back()));
  }
  const std::vector<GetResult> results = run.Get(std::move(gets));
  for (size_t i = 0; i < objects.size(); ++i) {
    SCOPED_TRACE(i);
    if (missing.contains(i)) {
      EXPECT_EQ(results[i].status.code(), StatusCode::kNotFound) << results[i].status.ToString();
      continue;
    }
    EXPECT_TRUE(results[i].status.ok()) << results[i].status.ToString();
    EXPECT_EQ(results[i].frame_bytes, objects[i].meta.frame_bytes);
    EXPECT_TRUE(objects[i].Holds(dsts[i])) << "bytes of another object";
  }
}

void OneObjectManyTimesInABatch(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject object = run.Object(1, 96 * kKiB);
  ASSERT_TRUE(run.PutOne(object).ok());
  std::vector<GetOp> gets;
  std::vector<BufferRef> dsts;
  for (int i = 0; i < 5; ++i) {
    dsts.push_back(MakeTestBuffer(object.meta.frame_bytes));
    gets.push_back(GetOpOf(object, dsts.back()));
  }
  for (const GetResult& result : run.Get(std::move(gets))) EXPECT_TRUE(result.status.ok());
  for (const BufferRef& dst : dsts) EXPECT_TRUE(object.Holds(dst));
}

void PartsOfOneChunkAreDifferentObjects(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject a = run.Object(3, 16 * kKiB, 0, {1, 2});
  const TestObject b = run.Object(3, 16 * kKiB, 1, {1, 3});
  const TestObject c = run.Object(3, 16 * kKiB, 2, {257, 2});
  ASSERT_EQ(a.id.key, c.id.key);
  ASSERT_TRUE(run.PutOne(a).ok());
  run.ExpectMisses(b);
  ASSERT_TRUE(run.PutOne(b).ok());
  run.ExpectMisses(c);
  ASSERT_TRUE(run.PutOne(c).ok());
  run.ExpectHas(a);
  run.ExpectHas(b);
  run.ExpectHas(c);
}

void FirstPublishedWins(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject first = run.Object(7, 300 * kKiB);
  const TestObject second = run.Object(7, 300 * kKiB, 1);
  ASSERT_FALSE(first.Holds(second.frame)) << "the test needs different bytes";
  ASSERT_TRUE(run.PutOne(first).ok());
  const uint64_t used = run.backend().used_bytes();
  EXPECT_EQ(run.PutOne(second).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(run.PutOne(first).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(run.backend().used_bytes(), used) << "a retried store is counted twice";
  run.ExpectHas(first);
}

void EqualIdsInOnePutStoreOne(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject first = run.Object(7, 300 * kKiB);
  const TestObject second = run.Object(7, 300 * kKiB, 1);
  const std::vector<Status> puts = run.Put({PutOpOf(first), PutOpOf(second)});
  ASSERT_NE(puts[0].ok(), puts[1].ok()) << puts[0].ToString() << ", " << puts[1].ToString();
  EXPECT_EQ((puts[0].ok() ? puts[1] : puts[0]).code(), StatusCode::kAlreadyExists);
  run.ExpectHas(puts[0].ok() ? first : second);
}

void RangesLandWhereAsked(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject object = run.Object(5, 3 * kMiB);
  ASSERT_TRUE(run.PutOne(object).ok());
  const std::vector<FrameRange> ranges = {
      {2 * kMiB + 8 * kKiB, 512 * kKiB, 4 * kKiB},  // to the front, out of order
      {0, 4 * kKiB, 0},
      {kMiB - 4 * kKiB, 8 * kKiB, 2 * kMiB},                 // across a megabyte
      {3 * kMiB - 4 * kKiB, 4 * kKiB, 4 * kMiB - 4 * kKiB},  // the frame's end, to the destination's end
  };
  BufferRef dst = MakeTestBuffer(4 * kMiB, std::byte{0x5a});
  BufferRef expected = MakeTestBuffer(4 * kMiB, std::byte{0x5a});
  for (const FrameRange& range : ranges) {
    std::memcpy(expected.mutable_frame().data() + range.dst_offset,
                object.frame.frame().data() + range.frame_offset, range.length);
  }
  GetOp get = GetOpOf(object, dst);
  get.ranges = ranges;
  const GetResult result = run.Get({std::move(get)}).at(0);
  ASSERT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_EQ(result.frame_bytes, object.meta.frame_bytes);
  EXPECT_EQ(std::memcmp(dst.frame().data(), expected.frame().data(), 4 * kMiB), 0);
}

void WhatDoesNotFitIsRefused(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject object = run.Object(5, kMiB);
  ASSERT_TRUE(run.PutOne(object).ok());
  BufferRef dst = MakeTestBuffer(2 * kMiB, std::byte{0x5a});
  for (const FrameRange& range : {FrameRange{kMiB - 4 * kKiB, 8 * kKiB, 0}, FrameRange{kMiB, 4 * kKiB, 0},
                                  FrameRange{UINT64_MAX - 8191, 4 * kKiB, 0}}) {
    GetOp beyond = GetOpOf(object, dst);
    beyond.ranges = {range};
    const GetResult result = run.Get({std::move(beyond)}).at(0);
    EXPECT_FALSE(result.status.ok()) << range.frame_offset;
    EXPECT_NE(result.status.code(), StatusCode::kNotFound) << "present, asked for wrongly";
  }
  BufferRef small = MakeTestBuffer(kMiB - 4 * kKiB);
  const GetResult result = run.Get({GetOpOf(object, small)}).at(0);
  EXPECT_FALSE(result.status.ok());
  EXPECT_NE(result.status.code(), StatusCode::kNotFound);
  run.ExpectHas(object);
}

void ReportedBytesAreInPlaceBeforeDone(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject object = run.Object(9, 5 * kMiB + 12 * kKiB);
  ASSERT_TRUE(run.PutOne(object).ok());
  BufferRef dst = MakeTestBuffer(object.meta.frame_bytes);
  std::mutex mutex;
  std::vector<uint8_t> reported(object.meta.frame_bytes);  // how often each byte was
  bool done = false;
  bool late = false;
  bool wrong = false;
  GetOp get = GetOpOf(object, dst);
  get.on_bytes = [&](uint64_t offset, uint64_t n) {
    std::lock_guard lock(mutex);
    late |= done;
    if (offset + n > object.meta.frame_bytes) {
      wrong = true;
      return;
    }
    wrong |= std::memcmp(dst.frame().data() + offset, object.frame.frame().data() + offset, n) != 0;
    for (uint64_t i = offset; i < offset + n; ++i) ++reported[i];
  };
  Completion<GetResult> completion;
  std::vector<GetOp> gets;
  gets.push_back(std::move(get));
  run.backend().Get(std::move(gets),
                    [&, callback = completion.Callback()](std::span<const GetResult> results) {
                      {
                        std::lock_guard lock(mutex);
                        done = true;
                      }
                      callback(results);
                    });
  const std::vector<GetResult> results = completion.Wait();
  ASSERT_EQ(results.size(), 1u);
  ASSERT_TRUE(results[0].status.ok()) << results[0].status.ToString();
  EXPECT_TRUE(object.Holds(dst));
  std::lock_guard lock(mutex);
  EXPECT_FALSE(late) << "bytes reported after done";
  EXPECT_FALSE(wrong) << "bytes reported that are not in place";
  const int expected = run.fixture().deviations.reports_no_bytes ? 0 : 1;
  EXPECT_EQ(std::count(reported.begin(), reported.end(), expected), static_cast<ptrdiff_t>(reported.size()))
      << "bytes reported twice, or never";
}

void BadOperationsFailAlone(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject object = run.Object(1, 64 * kKiB);
  const TestObject other = run.Object(2, 64 * kKiB);
  PutOp unaligned = PutOpOf(other);
  unaligned.meta.frame_bytes = 64 * kKiB - 1;
  PutOp too_long = PutOpOf(other);
  too_long.meta.frame_bytes = 68 * kKiB;
  PutOp none = PutOpOf(other);
  none.meta.frame_bytes = 0;
  PutOp empty = PutOpOf(other);
  empty.frame.Reset();
  const std::vector<Status> puts = run.Put({unaligned, PutOpOf(object), too_long, none, empty});
  EXPECT_TRUE(puts[1].ok()) << puts[1].ToString();
  for (const size_t bad : {0, 2, 3, 4}) EXPECT_EQ(puts[bad].code(), StatusCode::kInvalidArgument) << bad;
  run.ExpectMisses(other);

  BufferRef dst = MakeTestBuffer(64 * kKiB);
  std::vector<GetOp> gets;
  for (const FrameRange& range :
       {FrameRange{1, 4096, 0}, FrameRange{0, 4095, 0}, FrameRange{0, 4096, 8}, FrameRange{0, 0, 0},
        FrameRange{0, 64 * kKiB, 4096}, FrameRange{0, 4096, UINT64_MAX - 4095}}) {
    gets.push_back(GetOpOf(object, MakeTestBuffer(64 * kKiB)));
    gets.back().ranges = {range};
  }
  gets.push_back(GetOpOf(object, MakeTestBuffer(64 * kKiB)));
  gets.back().ranges = {{0, 8192, 0}, {8192, 8192, 4096}};  // two answers for one place
  gets.push_back(GetOpOf(object, BufferRef()));
  gets.insert(gets.begin() + 2, GetOpOf(object, dst));
  const std::vector<GetResult> results = run.Get(std::move(gets));
  for (size_t i = 0; i < results.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(results[i].status.code(), i == 2 ? StatusCode::kOk : StatusCode::kInvalidArgument)
        << results[i].status.ToString();
  }
  EXPECT_TRUE(object.Holds(dst));
}

void EmptyBatchesComplete(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  EXPECT_TRUE(run.Get({}).empty());
  EXPECT_TRUE(run.Put({}).empty());
  EXPECT_TRUE(run.Erase({}, EraseMode::kErase).empty());
}

void BorrowHandsOutThePublishedBuffer(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject object = run.Object(1, 64 * kKiB);
  const TestObject absent = run.Object(2, 64 * kKiB);
  ASSERT_TRUE(run.PutOne(object).ok());
  const std::vector<ObjectId> ids = {absent.id, object.id, absent.id};
  const std::vector<BufferRef> buffers = run.backend().Borrow(ids);
  ASSERT_EQ(buffers.size(), 3u);
  EXPECT_FALSE(buffers[0]);
  EXPECT_FALSE(buffers[2]);
  if (!run.backend().capabilities().supports_borrow) {
    EXPECT_FALSE(buffers[1]);
    return;
  }
  ASSERT_TRUE(buffers[1]);
  EXPECT_TRUE(object.Holds(buffers[1]));
  ASSERT_TRUE(run.EraseOne(object, EraseMode::kErase).ok());
  EXPECT_TRUE(object.Holds(buffers[1])) << "what is held stays whole after an erase";
}

void MatchIsRefusedWithoutTheFlag(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  if (run.backend().capabilities().supports_match) GTEST_SKIP() << "answers prefix queries";
  int calls = 0;
  StatusCode code = StatusCode::kOk;
  run.backend().Match({.tokens_per_chunk = 256}, [&](const PrefixMatch& match) {
    ++calls;
    code = match.status.code();
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(code, StatusCode::kUnimplemented);
}

void CallsAreCountedOnce(ConformanceRun& run) {
  ASSERT_TRUE(run.OpenRoomy());
  const TestObject object = run.Object(1, 64 * kKiB);
  const TestObject absent = run.Object(2, 64 * kKiB);
  ASSERT_TRUE(run.PutOne(object).ok());
  ASSERT_EQ(run.PutOne(object).code(), StatusCode::kAlreadyExists);
  run.ExpectHas(object);
  run.ExpectMisses(absent);
  ASSERT_TRUE(run.EraseOne(object, EraseMode::kEvict).ok());
  MetricRegistry& metrics = *run.Context().metrics;
  const MetricLabels labels = {{"backend", std::string(run.backend().name())}};
  EXPECT_EQ(metrics.Value("terrace_backend_put_ops_total", labels), 2);
  EXPECT_EQ(metrics.Value("terrace_backend_put_bytes_total", labels), 64 * 1024);
  EXPECT_EQ(metrics.Value("terrace_backend_put_existing_total", labels), 1);
  EXPECT_EQ(metrics.Value("terrace_backend_get_ops_total", labels), 2);
  EXPECT_EQ(metrics.Value("terrace_backend_get_bytes_total", labels), 64 * 1024);
  EXPECT_EQ(metrics.Value("terrace_backend_get_misses_total", labels), 1);
  EXPECT_EQ(metrics.Value("terrace_backend_get_errors_total", labels), 0);
  EXPECT_EQ(metrics.Value("terrace_backend_erase_ops_total", labels), 1);
}

constexpr ConformanceCase kCases[] = {
    {"PutThenGetGivesEqualBytes", PutThenGetGivesEqualBytes},
    {"PutOfBufferLargerThanFrameStoresTheFrame", PutOfBufferLargerThanFrameStoresTheFrame},
    {"BatchWithMissesKeepsPairing", BatchWithMissesKeepsPairing},
    {"OneObjectManyTimesInABatch", OneObjectManyTimesInABatch},
    {"PartsOfOneChunkAreDifferentObjects", PartsOfOneChunkAreDifferentObjects},
    {"FirstPublishedWins", FirstPublishedWins},
    {"EqualIdsInOnePutStoreOne", EqualIdsInOnePutStoreOne},
    {"RangesLandWhereAsked", RangesLandWhereAsked},
    {"WhatDoesNotFitIsRefused", WhatDoesNotFitIsRefused},
    {"ReportedBytesAreInPlaceBeforeDone", ReportedBytesAreInPlaceBeforeDone},
    {"BadOperationsFailAlone", BadOperationsFailAlone},
    {"EmptyBatchesComplete", EmptyBatchesComplete},
    {"BorrowHandsOutThePublishedBuffer", BorrowHandsOutThePublishedBuffer},
    {"MatchIsRefusedWithoutTheFlag", MatchIsRefusedWithoutTheFlag},
    {"CallsAreCountedOnce", CallsAreCountedOnce},
};

}  // namespace

std::span<const ConformanceCase> ObjectCases() { return kCases; }

}  // namespace terrace
