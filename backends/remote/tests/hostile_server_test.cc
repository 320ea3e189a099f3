// The remote backend against a server that behaves, and against servers that do not.
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <mutex>

#include "backends/remote/tests/bulk_ends.h"
#include "backends/remote/tests/fake_server.h"
#include "terrace/remote_backend.h"
#include "tests/conformance/conformance_run.h"
#include "tests/conformance/test_object.h"

namespace terrace::remote {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class RemoteTest : public testing::Test {
 protected:
  RemoteTest() {
    options_.addresses = {server_.address()};
    options_.operation_deadline = std::chrono::seconds(30);
    options_.breaker_pause = std::chrono::milliseconds(20);
    options_.path = RemotePath::kStreams;
  }
  ~RemoteTest() override {
    server_.LetGo();
    if (!backend_) return;
    EXPECT_TRUE(backend_->Close(Clock::Real()->Now() + std::chrono::seconds(60)).ok());
  }
  void Open() {
    Result<std::unique_ptr<Backend>> made = MakeRemoteBackend(options_);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    backend_ = *std::move(made);
    ASSERT_TRUE(
        backend_->Attach({.clock = Clock::Real(), .metrics = &metrics_, .log = log_.get(), .regions = {}})
            .ok());
  }
  std::vector<GetResult> Get(std::vector<GetOp> ops) {
    Completion<GetResult> waiting;
    backend_->Get(std::move(ops), waiting.Callback());
    return waiting.Wait();
  }
  GetResult GetOne(const TestObject& object, BufferRef dst) {
    return Get({GetOpOf(object, std::move(dst))}).at(0);
  }
  std::vector<Status> Put(std::vector<PutOp> ops) {
    Completion<Status> waiting;
    backend_->Put(std::move(ops), waiting.Callback());
    return waiting.Wait();
  }
  PrefixMatch Match(PrefixQuery query) {
    Completion<PrefixMatch> waiting;
    backend_->Match(std::move(query), [call = waiting.Callback()](const PrefixMatch& match) {
      call({&match, 1});
    });
    return waiting.Wait().at(0);
  }
  static PrefixQuery Query() {
    PrefixQuery query;
    query.tokens_per_chunk = 4;
    query.keys.resize(2);
    query.keys[0].bytes.fill(std::byte{1});
    query.keys[1].bytes.fill(std::byte{2});
    query.content.tokens.assign(8, 7);
    query.parts = {{0, 0}};
    return query;
  }
  int64_t Metric(const std::string& name) {
    return metrics_.Value("terrace_remote_" + name, {{"server", server_.address()}});
  }
  // Everybody but the test has let go of it, at the latest when the backend is closed.
  void ExpectLetGo(const BufferRef& buffer) {
    server_.LetGo();
    ASSERT_TRUE(backend_->Close(Clock::Real()->Now() + std::chrono::seconds(60)).ok());
    EXPECT_EQ(buffer.use_count(), 1u);
  }
  // Asks for one object from a server that answers GetStream with `lie`.
  GetResult GetFrom(
      std::function<grpc::Status(grpc::ServerContext*, const v1::GetRequest&, FakeServer::Writer*)> lie) {
    server_.get_stream = std::move(lie);
    Open();
    const TestObject object = MakeTestObject(1, kMiB);
    BufferRef dst = MakeTestBuffer(kMiB);
    const GetResult result = GetOne(object, dst);
    ExpectLetGo(dst);
    return result;
  }
  static void WriteData(FakeServer::Writer* writer, uint64_t transfer, uint64_t offset, uint64_t bytes) {
    v1::GetPart part;
    part.set_transfer(transfer);
    part.set_offset(offset);
    part.set_data(std::string(bytes, 'x'));
    writer->Write(part);
  }
  static void WriteResults(FakeServer::Writer* writer, int count, uint64_t frame_bytes) {
    v1::GetPart end;
    for (int i = 0; i < count; ++i) {
      v1::GetResult* result = end.add_results();
      result->mutable_result()->set_code(v1::RESULT_CODE_OK);
      result->set_frame_bytes(frame_bytes);
    }
    writer->Write(end);
  }

  FakeServer server_;
  RemoteOptions options_;
  MetricRegistry metrics_;
  std::shared_ptr<LogSink> log_ = MakeNullLogSink();
  std::unique_ptr<Backend> backend_;
};

TEST_F(RemoteTest, WhatWasPutIsGotInTheOrderOfTheBatch) {
  Open();
  std::vector<TestObject> objects;
  std::vector<PutOp> puts;
  for (uint64_t i = 0; i < 5; ++i) {
    objects.push_back(MakeTestObject(i + 1, (i + 1) * kMiB + 4096));
    if (i != 2) puts.push_back(PutOpOf(objects.back()));
  }
  for (const Status& status : Put(std::move(puts))) EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(Put({PutOpOf(objects[0])}).at(0).code(), StatusCode::kAlreadyExists);
  std::vector<GetOp> gets;
  std::vector<BufferRef> dsts;
  std::atomic<uint64_t> reported{0};
  for (const TestObject& object : objects) {
    dsts.push_back(MakeTestBuffer(8 * kMiB));
    gets.push_back(GetOpOf(object, dsts.back()));
    gets.back().on_bytes = [&](uint64_t, uint64_t n) { reported += n; };
  }
  const std::vector<GetResult> results = Get(std::move(gets));
  ASSERT_EQ(results.size(), 5u);
  uint64_t bytes = 0;
  for (size_t i = 0; i < 5; ++i) {
    if (i == 2) {
      EXPECT_EQ(results[i].status.code(), StatusCode::kNotFound);
      continue;
    }
    ASSERT_TRUE(results[i].status.ok()) << results[i].status.ToString();
    EXPECT_TRUE(objects[i].Holds(dsts[i])) << i;
    bytes += objects[i].meta.frame_bytes;
  }
  EXPECT_EQ(reported, bytes);
  EXPECT_GT(Metric("calls_total"), 0);
}

TEST_F(RemoteTest, AForgottenSessionIsOpenedAnew) {
  Open();
  const TestObject object = MakeTestObject(1, kMiB);
  ASSERT_TRUE(Put({PutOpOf(object)}).at(0).ok());
  const int before = server_.num_opened();
  v1::OpenSessionRequest request;
  v1::OpenSessionResponse response;
  server_.OpenSession(nullptr, &request, &response);  // the fake knows one session only
  BufferRef dst = MakeTestBuffer(kMiB);
  const GetResult result = GetOne(object, dst);
  EXPECT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_TRUE(object.Holds(dst));
  EXPECT_GE(server_.num_opened(), before + 2);
}

TEST_F(RemoteTest, ARestartedServerIsFoundAgainByItself) {
  Open();
  const TestObject object = MakeTestObject(1, kMiB);
  ASSERT_TRUE(Put({PutOpOf(object)}).at(0).ok());
  server_.Stop();
  BufferRef dst = MakeTestBuffer(kMiB);
  for (int i = 0; i < 100 && Metric("breaker_open") == 0; ++i) {
    EXPECT_FALSE(GetOne(object, dst).status.ok());
  }
  ASSERT_EQ(Metric("breaker_open"), 1);
  const int lookups = server_.num_lookups();
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(Match(Query()).status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(server_.num_lookups(), lookups);
  server_.Restart();
  GetResult result;
  const TimePoint limit = Clock::Real()->Now() + std::chrono::seconds(60);
  do {
    result = GetOne(object, dst);
  } while (!result.status.ok() && Clock::Real()->Now() < limit);
  EXPECT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_TRUE(object.Holds(dst));
}

TEST_F(RemoteTest, AServerThatNeverAnswersCostsTheDeadline) {
  server_.get_stream = [this](grpc::ServerContext* context, const v1::GetRequest&, FakeServer::Writer*) {
    server_.AwaitLetGo(context);
    return grpc::Status::OK;
  };
  Open();
  const TestObject object = MakeTestObject(1, kMiB);
  BufferRef dst = MakeTestBuffer(kMiB);
  GetOp get = GetOpOf(object, dst);
  get.deadline = Clock::Real()->Now() + std::chrono::milliseconds(200);
  EXPECT_EQ(Get({std::move(get)}).at(0).status.code(), StatusCode::kDeadlineExceeded);
  GetOp cancelled = GetOpOf(object, dst);
  cancelled.cancel = std::make_shared<std::atomic<bool>>(false);
  const CancelFlag flag = cancelled.cancel;
  Completion<GetResult> waiting;
  std::vector<GetOp> ops;
  ops.push_back(std::move(cancelled));
  backend_->Get(std::move(ops), waiting.Callback());
  *flag = true;
  EXPECT_EQ(waiting.Wait().at(0).status.code(), StatusCode::kCancelled);
  ExpectLetGo(dst);
}

TEST_F(RemoteTest, AStreamThatNeverEndsIsCut) {
  const GetResult result =
      GetFrom([](grpc::ServerContext* context, const v1::GetRequest& request, FakeServer::Writer* writer) {
        while (!context->IsCancelled()) WriteData(writer, request.objects(0).transfer() + 1, 0, 4096);
        return grpc::Status::OK;
      });
  EXPECT_EQ(result.status.code(), StatusCode::kDataLoss) << result.status.ToString();
  EXPECT_GE(Metric("violations_total"), 1);
}

TEST_F(RemoteTest, HalfAFrameIsNoFrame) {
  const GetResult result =
      GetFrom([](grpc::ServerContext*, const v1::GetRequest& request, FakeServer::Writer* writer) {
        WriteData(writer, request.objects(0).transfer(), 0, kMiB / 2);
        WriteResults(writer, 1, kMiB);
        return grpc::Status::OK;
      });
  EXPECT_EQ(result.status.code(), StatusCode::kDataLoss) << result.status.ToString();
}

TEST_F(RemoteTest, AResetInTheMiddleIsAFailure) {
  const GetResult result =
      GetFrom([](grpc::ServerContext*, const v1::GetRequest& request, FakeServer::Writer* writer) {
        WriteData(writer, request.objects(0).transfer(), 0, kMiB / 2);
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "reset");
      });
  EXPECT_EQ(result.status.code(), StatusCode::kUnavailable) << result.status.ToString();
}

TEST_F(RemoteTest, WrongPlacesAndNumbersAreRefused) {
  using Lie = std::function<void(FakeServer::Writer*, uint64_t transfer)>;
  const std::vector<std::pair<const char*, Lie>> lies = {
      {"beyond the buffer", [](auto* w, uint64_t t) { WriteData(w, t, kMiB, 4096); }},
      {"huge offset", [](auto* w, uint64_t t) { WriteData(w, t, UINT64_MAX - 4095, 4096); }},
      {"the same bytes twice",
       [](auto* w, uint64_t t) {
         WriteData(w, t, 0, 4096);
         WriteData(w, t, 0, 4096);
       }},
      {"too few results", [](auto* w, uint64_t) { WriteResults(w, 0, 0); }},
      {"too many results", [](auto* w, uint64_t) { WriteResults(w, 2, kMiB); }},
      {"a frame longer than the buffer", [](auto* w, uint64_t) { WriteResults(w, 1, 2 * kMiB); }},
      {"a frame of huge length", [](auto* w, uint64_t) { WriteResults(w, 1, UINT64_MAX - 4095); }},
      {"a frame that is no multiple of a page", [](auto* w, uint64_t) { WriteResults(w, 1, 4097); }},
      {"no results", [](auto* w, uint64_t t) { WriteData(w, t, 0, kMiB); }},
      {"data after the results",
       [](auto* w, uint64_t t) {
         WriteData(w, t, 0, kMiB / 2);
         WriteResults(w, 1, kMiB);
         WriteData(w, t, kMiB / 2, kMiB / 2);
       }},
      {"an empty part", [](auto* w, uint64_t t) { WriteData(w, t, 0, 0); }},
      {"more bytes than the frame has",
       [](auto* w, uint64_t t) {
         WriteData(w, t, 0, kMiB);
         WriteResults(w, 1, kMiB / 2);
       }},
  };
  size_t at = 0;
  server_.get_stream = [&](grpc::ServerContext*, const v1::GetRequest& request, FakeServer::Writer* writer) {
    lies[at].second(writer, request.objects(0).transfer());
    return grpc::Status::OK;
  };
  Open();
  const TestObject object = MakeTestObject(1, kMiB);
  for (at = 0; at < lies.size(); ++at) {
    const GetResult result = GetOne(object, MakeTestBuffer(kMiB));
    EXPECT_EQ(result.status.code(), StatusCode::kDataLoss)
        << lies[at].first << ": " << result.status.ToString();
  }
}

TEST_F(RemoteTest, LiesAboutAPrefixAreRefused) {
  const std::vector<std::pair<const char*, std::function<void(v1::LookupResponse*)>>> lies = {
      {"more tokens than asked", [](auto* r) { r->set_matched_tokens(9); }},
      {"more chunks than asked",
       [](auto* r) {
         for (int i = 0; i < 4; ++i) r->add_chunks();
       }},
      {"a key of 3 bytes", [](auto* r) { r->add_chunks()->set_key("abc"); }},
      {"a tail without key",
       [](auto* r) {
         for (int i = 0; i < 3; ++i) r->add_chunks();
       }},
      {"an odd frame",
       [](auto* r) {
         r->add_chunks()->set_present(true);
         r->mutable_chunks(0)->set_frame_bytes(5);
       }},
      {"a long lease", [](auto* r) { r->set_lease(std::string(1025, 'a')); }},
  };
  size_t at = 0;
  bool is_honest = true;
  server_.lookup = [&](const v1::LookupRequest&, v1::LookupResponse* response) {
    if (!is_honest) {
      lies[at].second(response);
      return grpc::Status::OK;
    }
    response->set_matched_tokens(4);
    response->add_chunks()->set_present(true);
    response->mutable_chunks(0)->set_frame_bytes(8192);
    response->set_lease("lease");
    return grpc::Status::OK;
  };
  Open();
  const PrefixMatch good = Match(Query());
  ASSERT_TRUE(good.status.ok()) << good.status.ToString();
  EXPECT_EQ(good.matched_tokens, 4u);
  EXPECT_EQ(good.chunks.at(0).key, Query().keys[0]);
  EXPECT_FALSE(good.lease_token.empty());
  backend_->Release(good.lease_token);
  is_honest = false;
  for (at = 0; at < lies.size(); ++at) {
    const PrefixMatch match = Match(Query());
    EXPECT_EQ(match.status.code(), StatusCode::kDataLoss) << lies[at].first;
    EXPECT_EQ(match.matched_tokens, 0u);
    EXPECT_TRUE(match.chunks.empty());
  }
  EXPECT_EQ(Metric("violations_total"), static_cast<int64_t>(lies.size()));
}

TEST_F(RemoteTest, WrongNumbersOfAnswersToPutsAreRefused) {
  server_.begin_put = [](const v1::BeginPutRequest&, v1::BeginPutResponse*) { return grpc::Status::OK; };
  Open();
  const TestObject object = MakeTestObject(1, kMiB);
  EXPECT_EQ(Put({PutOpOf(object)}).at(0).code(), StatusCode::kDataLoss);
  EXPECT_EQ(Metric("violations_total"), 1);
}

TEST_F(RemoteTest, CommitsWithoutResultsAreRefused) {
  server_.commit_put = [](const v1::CommitPutRequest&, v1::CommitPutResponse*) { return grpc::Status::OK; };
  Open();
  const TestObject object = MakeTestObject(1, kMiB);
  EXPECT_EQ(Put({PutOpOf(object)}).at(0).code(), StatusCode::kDataLoss);
  ExpectLetGo(object.frame);
}

TEST_F(RemoteTest, PutsOnTheirWayAreBounded) {
  options_.inflight_bytes = 2 * kMiB;
  Open();
  std::vector<PutOp> puts;
  std::vector<TestObject> objects;
  for (uint64_t i = 0; i < 4; ++i) {
    objects.push_back(MakeTestObject(i + 1, kMiB));
    puts.push_back(PutOpOf(objects.back()));
  }
  const std::vector<Status> results = Put(std::move(puts));
  EXPECT_TRUE(results[0].ok()) << results[0].ToString();
  EXPECT_TRUE(results[1].ok()) << results[1].ToString();
  EXPECT_EQ(results[2].code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(results[3].code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Metric("refused_puts_total"), 2);
  ExpectLetGo(objects[0].frame);
}

TEST_F(RemoteTest, ASessionWithAWrongIdIsNone) {
  server_.open = [](const v1::OpenSessionRequest&, v1::OpenSessionResponse* response) {
    response->set_session_id("short");
    return grpc::Status::OK;
  };
  Open();
  const TestObject object = MakeTestObject(1, kMiB);
  const GetResult result = GetOne(object, MakeTestBuffer(kMiB));
  EXPECT_FALSE(result.status.ok());
  EXPECT_NE(result.status.code(), StatusCode::kNotFound);
  EXPECT_GE(Metric("session_failures_total"), 1);
}

TEST_F(RemoteTest, BulkThatIsNotOfferedIsUnavailableAlone) {
  options_.path = RemotePath::kBulk;
  Open();
  const GetResult result = GetOne(MakeTestObject(1, kMiB), MakeTestBuffer(kMiB));
  EXPECT_EQ(result.status.code(), StatusCode::kUnavailable) << result.status.ToString();
}

// A message is begun on one socket, the call fails, the next try's bytes come on the other socket: what the
// first message brings then must not lie in what was got.
TEST_F(RemoteTest, BytesOfAnEarlierTryNeverLieInWhatWasGot) {
  BulkEnds ends(2);
  server_.open = [&](const v1::OpenSessionRequest&, v1::OpenSessionResponse* response) {
    ends.Offer(2, response->mutable_bulk());
    return grpc::Status::OK;
  };
  const TestObject object = MakeTestObject(1, kMiB);
  int num_gets = 0;
  server_.get = [&](const v1::GetRequest& request, v1::GetResponse* response) {
    const bool is_first = num_gets++ == 0;
    ends.SendHeader(is_first ? 0 : 1, request.objects(0).transfer(), kMiB);
    if (is_first) {
      ends.AwaitDelivered(0);
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "try again");
    }
    ends.Send(1, object.frame.frame().first(kMiB));
    v1::GetResult* result = response->add_results();
    result->mutable_result()->set_code(v1::RESULT_CODE_OK);
    result->set_frame_bytes(kMiB);
    return grpc::Status::OK;
  };
  options_.path = RemotePath::kBulk;
  options_.bulk_connections = 2;
  Open();
  const BufferRef dst = MakeTestBuffer(kMiB);
  const GetResult result = GetOne(object, dst);
  // The rest of the first message, and the beginning of one that breaks the rules: the socket is closed after
  // all of it was read.
  ends.Send(0, std::vector<std::byte>(kMiB, std::byte{0xbd}));
  ends.Send(0, std::vector<std::byte>(kBulkMessageBytes));
  ends.AwaitClosed(0);
  ExpectLetGo(dst);
  if (result.status.ok()) {
    EXPECT_TRUE(object.Holds(dst));
  } else {
    EXPECT_EQ(result.status.code(), StatusCode::kDeadlineExceeded) << result.status.ToString();
    EXPECT_EQ(num_gets, 1);
  }
}

}  // namespace
}  // namespace terrace::remote
