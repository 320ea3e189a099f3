#include <future>

#include "connectors/server/message_checks.h"
#include "connectors/server/tests/service_fixture.h"

namespace terrace::server {
namespace {

using Stub = v1::Cache::Stub;
using grpc::StatusCode;

class ServicePutTest : public ServiceTest {
 protected:
  void Open(const std::string& tenant = "alice") {
    Start();
    client = std::make_unique<Client>(server->addresses().front(), "token-of-" + tenant);
    ASSERT_TRUE(client->Open().ok() && client->PutRoot().ok());
  }
  v1::ResultCode Refusal(const v1::PutObject& object) const {
    return client->Begin({object}).needs(0).result().code();
  }
  std::unique_ptr<Client> client;
};

TEST_F(ServicePutTest, FramesComeBackByteForByteWholeAndInRanges) {
  Open();
  const auto chunks = MakeChunks(1, 2, (uint64_t{5} << 20) + 77);
  std::vector<uint64_t> transfers;
  const v1::BeginPutResponse needs = client->Begin({chunks[0].Put(), chunks[1].Put(), chunks[0].Put()});
  EXPECT_EQ(needs.needs(2).result().code(), v1::RESULT_CODE_ALREADY_EXISTS) << "twice in one request";
  for (size_t i = 0; i < 2; ++i) {
    transfers.push_back(needs.needs(i).transfer());
    const std::string& frame = chunks[i].frame;
    // The end first, on a stream of its own.
    ASSERT_TRUE(client->Stream(transfers[i], frame, 1 << 20, frame.size()).ok());
    ASSERT_TRUE(client->Stream(transfers[i], frame, 0, 1 << 20).ok());
  }
  const v1::CommitPutResponse committed = client->Commit({transfers[0], 999, transfers[1]});
  ASSERT_EQ(committed.results_size(), 3);
  EXPECT_EQ(committed.results(0).code(), v1::RESULT_CODE_OK) << committed.DebugString();
  EXPECT_EQ(committed.results(1).code(), v1::RESULT_CODE_NOT_FOUND) << "in the order of the request";
  EXPECT_EQ(committed.results(2).code(), v1::RESULT_CODE_OK);
  EXPECT_EQ(Refusal(chunks[0].Put()), v1::RESULT_CODE_ALREADY_EXISTS) << "have, no need";

  v1::GetRequest request = client->GetRequestOf(chunks);
  v1::ByteRange* range = request.mutable_objects(1)->add_ranges();
  range->set_offset(uint64_t{4} << 20);
  range->set_length(8192);
  std::map<uint64_t, std::string> frames;
  std::vector<v1::GetResult> results;
  ASSERT_TRUE(client->GetStream(request, frames, results).ok());
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].frame_bytes(), chunks[0].frame.size());
  EXPECT_EQ(frames[100], chunks[0].frame);
  ASSERT_EQ(frames[101].size(), (uint64_t{4} << 20) + 8192);
  EXPECT_EQ(frames[101].substr(4 << 20), chunks[1].frame.substr(4 << 20, 8192));
  EXPECT_EQ(client->Stats().inflight_bytes(), 0u);
  const auto streamed = static_cast<int64_t>(chunks[0].frame.size() + chunks[1].frame.size());
  EXPECT_EQ(options.metrics->Value("terrace_server_received_bytes_total",
                                   {{"path", "streams"}, {"tenant", "alice"}}),
            streamed);
  EXPECT_EQ(
      options.metrics->Value("terrace_server_sent_bytes_total", {{"path", "streams"}, {"tenant", "alice"}}),
      static_cast<int64_t>(chunks[0].frame.size() + 8192));
}

TEST_F(ServicePutTest, AGetTellsPerObjectWhatIsWrong) {
  Open();
  const auto chunks = MakeChunks(2, 4, 20'000);
  ASSERT_EQ(client->Put(chunks[0]), v1::RESULT_CODE_OK);
  ASSERT_EQ(client->Put(chunks[1]), v1::RESULT_CODE_OK);
  v1::GetRequest request =
      client->GetRequestOf({chunks[3], chunks[0], chunks[0], chunks[0], chunks[1], chunks[0]});
  const auto add = [&request](int object, uint64_t offset, uint64_t length) {
    request.mutable_objects(object)->add_ranges()->set_offset(offset);
    request.mutable_objects(object)->mutable_ranges()->rbegin()->set_length(length);
  };
  add(1, 100, 4096);
  add(2, 4096, 8192);
  add(2, 8192, 4096);
  add(3, uint64_t{1} << 20, 4096);
  request.mutable_objects(5)->set_max_frame_bytes(4096);
  std::map<uint64_t, std::string> frames;
  std::vector<v1::GetResult> results;
  ASSERT_TRUE(client->GetStream(request, frames, results).ok());
  ASSERT_EQ(results.size(), 6u);
  EXPECT_EQ(results[0].result().code(), v1::RESULT_CODE_NOT_FOUND);
  EXPECT_EQ(results[1].result().code(), v1::RESULT_CODE_INVALID_ARGUMENT) << "not aligned";
  EXPECT_EQ(results[2].result().code(), v1::RESULT_CODE_INVALID_ARGUMENT) << "overlapping";
  EXPECT_EQ(results[3].result().code(), v1::RESULT_CODE_INVALID_ARGUMENT) << "outside";
  EXPECT_EQ(results[4].result().code(), v1::RESULT_CODE_OK);
  EXPECT_EQ(results[5].result().code(), v1::RESULT_CODE_INVALID_ARGUMENT) << "larger than the buffer";
  EXPECT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[104], chunks[1].frame) << "a miss in the middle does not shift the others";
  request.mutable_objects(1)->set_transfer(request.objects(0).transfer());
  EXPECT_EQ(client->GetStream(request, frames, results).error_code(), StatusCode::INVALID_ARGUMENT);
  v1::GetResponse response;
  EXPECT_EQ(client->Call(&Stub::Get, request, response).error_code(), StatusCode::INVALID_ARGUMENT);
  request = client->GetRequestOf({chunks[0]});
  EXPECT_EQ(client->Call(&Stub::Get, request, response).error_code(), StatusCode::FAILED_PRECONDITION)
      << "neither bulk nor shm";
}

TEST_F(ServicePutTest, WhatAPutClaimsIsChecked) {
  Open();
  const size_t free_frames = FreeFrames();
  const TestChunk chunk = MakeChunks(3, 1, 20'000)[0];
  v1::PutObject object = chunk.Put();
  object.mutable_name()->set_key("short");
  EXPECT_EQ(Refusal(object), v1::RESULT_CODE_INVALID_ARGUMENT);
  object = chunk.Put();
  object.mutable_name()->set_shard(65'536);
  EXPECT_EQ(Refusal(object), v1::RESULT_CODE_INVALID_ARGUMENT);
  object = chunk.Put();
  object.set_root("");
  EXPECT_EQ(Refusal(object), v1::RESULT_CODE_INVALID_ARGUMENT);
  object = chunk.Put();
  object.mutable_content()->append("x");
  EXPECT_EQ(Refusal(object), v1::RESULT_CODE_INVALID_ARGUMENT);
  object = chunk.Put();
  object.set_content(std::string(8, '\0'));
  EXPECT_EQ(Refusal(object), v1::RESULT_CODE_INVALID_ARGUMENT) << "no token";
  object = chunk.Put();
  object.mutable_content()->at(5) ^= 1;
  EXPECT_EQ(Refusal(object), v1::RESULT_CODE_DATA_LOSS) << "other tokens";
  object = chunk.Put();
  object.mutable_parent()->at(0) ^= 1;
  EXPECT_EQ(Refusal(object), v1::RESULT_CODE_DATA_LOSS) << "another parent";
  object = chunk.Put();
  object.set_frame_bytes(object.frame_bytes() + 1);
  EXPECT_EQ(Refusal(object), v1::RESULT_CODE_INVALID_ARGUMENT);
  object = chunk.Put();
  object.set_frame_bytes(uint64_t{1} << 40);
  EXPECT_EQ(Refusal(object), v1::RESULT_CODE_RESOURCE_EXHAUSTED) << "never fits";
  object = chunk.Put();
  object.set_payload_bytes(object.frame_bytes());
  EXPECT_EQ(Refusal(object), v1::RESULT_CODE_INVALID_ARGUMENT);
  v1::BeginPutRequest request;
  request.set_session_id(client->session);
  for (int i = 0; i < 1025; ++i) request.add_objects();
  v1::BeginPutResponse response;
  EXPECT_EQ(client->Call(&Stub::BeginPut, request, response).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(FreeFrames(), free_frames);
}

TEST(PutNamesTest, ATransferDoesNotKeepTheContentItWasNamedBy) {
  const Result<PutNames> names = PutNamesOf(MakeChunks(3, 1, 20'000)[0].Put(), uint64_t{1} << 20);
  ASSERT_TRUE(names.ok()) << names.status().ToString();
  EXPECT_EQ(names->meta.content, nullptr);
}

TEST_F(ServicePutTest, WrongBytesAreNeverPublished) {
  Open();
  const size_t free_frames = FreeFrames();
  const TestChunk chunk = MakeChunks(4, 1, uint64_t{3} << 20)[0];
  for (const size_t at : {size_t{70}, size_t{2} << 20}) {
    std::string frame = chunk.frame;
    frame[at] ^= 1;
    const uint64_t transfer = client->Begin({chunk.Put()}).needs(0).transfer();
    ASSERT_TRUE(client->Stream(transfer, frame, 0, frame.size()).ok());
    EXPECT_EQ(client->Commit({transfer}).results(0).code(), v1::RESULT_CODE_DATA_LOSS) << at;
  }
  // A valid frame of another prefix under this key.
  const TestChunk other = MakeChunks(5, 1, uint64_t{3} << 20)[0];
  ASSERT_EQ(other.frame.size(), chunk.frame.size());
  const uint64_t transfer = client->Begin({chunk.Put()}).needs(0).transfer();
  ASSERT_TRUE(client->Stream(transfer, other.frame, 0, other.frame.size()).ok());
  EXPECT_EQ(client->Commit({transfer}).results(0).code(), v1::RESULT_CODE_DATA_LOSS);
  std::map<uint64_t, std::string> frames;
  std::vector<v1::GetResult> results;
  ASSERT_TRUE(client->GetStream(client->GetRequestOf({chunk, other}), frames, results).ok());
  EXPECT_TRUE(frames.empty());
  EXPECT_EQ(client->Stats().inflight_bytes(), 0u);
  EXPECT_EQ(FreeFrames(), free_frames);
}

TEST_F(ServicePutTest, AnUnknownRootIsAPrecondition) {
  Start();
  client = std::make_unique<Client>(ClientOf("alice"));
  ASSERT_TRUE(client->Open().ok());
  EXPECT_EQ(client->Put(MakeChunks(6, 1, 20'000)[0]), v1::RESULT_CODE_FAILED_PRECONDITION);
}

TEST_F(ServicePutTest, PartsThatDoNotFitEndTheStreamAndTheTransfer) {
  Open();
  const TestChunk chunk = MakeChunks(7, 1, 100'000)[0];
  const std::string& frame = chunk.frame;
  uint64_t transfer = client->Begin({chunk.Put()}).needs(0).transfer();
  ASSERT_TRUE(client->Stream(transfer, frame, 0, 8192).ok());
  EXPECT_EQ(client->Stream(transfer, frame, 4096, 8192).error_code(), StatusCode::INVALID_ARGUMENT)
      << "twice";
  EXPECT_EQ(client->Commit({transfer}).results(0).code(), v1::RESULT_CODE_DATA_LOSS);
  transfer = client->Begin({chunk.Put()}).needs(0).transfer();
  EXPECT_EQ(client->Stream(transfer, frame + std::string(4096, 'x'), 0, frame.size() + 4096).error_code(),
            StatusCode::INVALID_ARGUMENT)
      << "beyond the frame";
  EXPECT_TRUE(client->Stream(12345, frame, 0, 4096).ok()) << "of no transfer (any more): dropped";
  const auto context = client->Context();
  v1::PutStreamResponse response;
  const auto writer = client->stub->PutStream(context.get(), &response);
  v1::PutPart part;
  part.set_transfer(1);
  part.set_data("no session in front");
  writer->Write(part);
  writer->WritesDone();
  EXPECT_EQ(writer->Finish().error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(client->Stats().inflight_bytes(), 0u);
}

TEST_F(ServicePutTest, WhatDoesNotArriveInTimeIsToldAndDropped) {
  Open();
  const size_t free_frames = FreeFrames();
  const auto chunks = MakeChunks(8, 2, 100'000);
  const v1::BeginPutResponse needs = client->Begin({chunks[0].Put(), chunks[1].Put()});
  const uint64_t whole = needs.needs(0).transfer();
  const uint64_t half = needs.needs(1).transfer();
  ASSERT_TRUE(client->Stream(whole, chunks[0].frame, 0, chunks[0].frame.size()).ok());
  ASSERT_TRUE(client->Stream(half, chunks[1].frame, 0, 8192).ok());
  v1::CommitPutRequest request;
  request.set_session_id(client->session);
  request.add_transfers(whole);
  request.add_transfers(half);
  v1::CommitPutResponse response;
  const grpc::Status status =
      client->Call(&Stub::CommitPut, request, response, std::chrono::milliseconds(2000));
  // A machine that stands still for long ends the call itself.
  if (status.ok()) {
    EXPECT_EQ(response.results(0).code(), v1::RESULT_CODE_OK);
    EXPECT_EQ(response.results(1).code(), v1::RESULT_CODE_DEADLINE_EXCEEDED);
  } else {
    EXPECT_EQ(status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_TRUE(Eventually([&] { return client->Stats().inflight_bytes() == 0; }));
  EXPECT_GE(FreeFrames() + 1, free_frames);
}

TEST_F(ServicePutTest, AbandonedAndCancelledTransfersGiveBackTheirBytes) {
  Open();
  const size_t free_frames = FreeFrames();
  const auto chunks = MakeChunks(9, 3, uint64_t{2} << 20);
  const v1::BeginPutResponse needs = client->Begin({chunks[0].Put(), chunks[1].Put(), chunks[2].Put()});
  EXPECT_GT(client->Stats().inflight_bytes(), uint64_t{6} << 20);
  v1::CommitPutRequest request;
  request.set_session_id(client->session);
  request.add_abandoned(needs.needs(0).transfer());
  v1::CommitPutResponse response;
  ASSERT_TRUE(client->Call(&Stub::CommitPut, request, response).ok());
  EXPECT_EQ(response.results_size(), 0);
  const auto context = client->Context();
  request.clear_abandoned();
  request.add_transfers(needs.needs(1).transfer());
  auto waiting = std::async(std::launch::async,
                            [&] { return client->stub->CommitPut(context.get(), request, &response); });
  context->TryCancel();
  EXPECT_EQ(waiting.get().error_code(), StatusCode::CANCELLED);
  const auto stream_context = client->Context();
  v1::PutStreamResponse ignored;
  const auto writer = client->stub->PutStream(stream_context.get(), &ignored);
  v1::PutPart part;
  part.set_session_id(client->session);
  part.set_transfer(needs.needs(2).transfer());
  part.set_data(chunks[2].frame.substr(0, 1 << 20));
  writer->Write(part);
  stream_context->TryCancel();
  EXPECT_EQ(writer->Finish().error_code(), StatusCode::CANCELLED);
  v1::CloseSessionRequest close;
  close.set_session_id(client->session);
  v1::CloseSessionResponse closed;
  ASSERT_TRUE(client->Call(&Stub::CloseSession, close, closed).ok());
  ASSERT_TRUE(client->Open().ok());
  EXPECT_TRUE(Eventually([&] { return client->Stats().inflight_bytes() == 0; }));
  EXPECT_TRUE(Eventually([&] { return FreeFrames() == free_frames; }));
}

TEST_F(ServicePutTest, AGetStreamThatIsCancelledGivesBackItsFrame) {
  Open();
  const auto chunks = MakeChunks(10, 3, uint64_t{5} << 20);
  for (const TestChunk& chunk : chunks) ASSERT_EQ(client->Put(chunk), v1::RESULT_CODE_OK);
  const auto context = client->Context();
  const auto reader = client->stub->GetStream(context.get(), client->GetRequestOf(chunks));
  v1::GetPart part;
  ASSERT_TRUE(reader->Read(&part));
  EXPECT_GT(part.data().size(), 0u);
  context->TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return client->Stats().inflight_bytes() == 0; }));
}

TEST_F(ServicePutTest, BytesInFlightAreLimited) {
  Open("small");
  const auto chunks = MakeChunks(11, 3, 900'000);
  const v1::BeginPutResponse needs = client->Begin({chunks[0].Put(), chunks[1].Put(), chunks[2].Put()});
  EXPECT_EQ(needs.needs(1).result().code(), v1::RESULT_CODE_OK);
  EXPECT_EQ(needs.needs(2).result().code(), v1::RESULT_CODE_RESOURCE_EXHAUSTED);
  v1::CommitPutRequest request;
  request.set_session_id(client->session);
  request.add_abandoned(needs.needs(0).transfer());
  v1::CommitPutResponse response;
  ASSERT_TRUE(client->Call(&Stub::CommitPut, request, response).ok());
  EXPECT_EQ(Refusal(chunks[2].Put()), v1::RESULT_CODE_OK);
  EXPECT_GT(options.metrics->Value("terrace_server_refusals_total", {{"reason", "bytes_in_flight"}}), 0);
}

TEST_F(ServicePutTest, AMessageThatIsTooLargeEndsItsCallOnly) {
  Open();
  const auto context = client->Context();
  v1::PutStreamResponse response;
  const auto writer = client->stub->PutStream(context.get(), &response);
  v1::PutPart part;
  part.set_session_id(client->session);
  part.set_data(std::string(options.max_message_bytes + 1, 'x'));
  writer->Write(part);
  writer->WritesDone();
  EXPECT_FALSE(writer->Finish().ok());
  EXPECT_EQ(client->Stats().inflight_bytes(), 0u) << "the server lives";
}

}  // namespace
}  // namespace terrace::server
