// Clients and servers of other minor versions. tests/golden/client_requests_v1_0.json holds what the remote
// backend of minor version 0 sent, call by call; it stays as it is, and this server goes on understanding it.
// TERRACE_RECORD_REQUESTS=FILE writes today's requests in that form, for the next version's file.
#include <grpcpp/generic/generic_stub.h>

#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "backends/remote/tests/fake_server.h"
#include "connectors/server/tests/stress_fixture.h"

namespace terrace::server {
namespace {

constexpr const char* kGoldenFile = TERRACE_SOURCE_DIR "/tests/golden/client_requests_v1_0.json";
const std::string kGoldenSession = "session 00000001";
constexpr uint64_t kGoldenTransfer = 0x1122334455667788;

std::vector<TestChunk> GoldenChunks() { return MakeChunks(1, 1, 3000); }

std::string HexOf(const std::string& bytes) {
  std::string hex;
  for (const char c : bytes) {
    hex += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
    hex += "0123456789abcdef"[static_cast<unsigned char>(c) & 15];
  }
  return hex;
}

std::string BytesOfHex(const std::string& hex) {
  std::string bytes;
  for (size_t at = 0; at + 1 < hex.size(); at += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(at, 2), nullptr, 16));
  }
  return bytes;
}

std::string FixedBytes(uint64_t value) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &value, 8);
  return bytes;
}

void ReplaceAll(const std::string& what, const std::string& with, std::string& in) {
  for (size_t at = in.find(what); at != std::string::npos; at = in.find(what, at + with.size())) {
    in.replace(at, what.size(), with);
  }
}

struct SentRequest {
  std::string method;
  std::string bytes;
};

// Answers well enough that a client goes through all of its calls, and keeps what it sent.
class RecordingServer : public remote::FakeServer {
 public:
  std::vector<SentRequest> Sent() {
    std::lock_guard lock(sent_mutex_);
    return sent_;
  }
  grpc::Status OpenSession(grpc::ServerContext* context, const v1::OpenSessionRequest* request,
                           v1::OpenSessionResponse* response) override {
    Keep("OpenSession", *request);
    return FakeServer::OpenSession(context, request, response);
  }
  grpc::Status PutRoots(grpc::ServerContext*, const v1::PutRootsRequest* request,
                        v1::PutRootsResponse* response) override {
    Keep("PutRoots", *request);
    for (int i = 0; i < request->roots_size(); ++i) response->add_results()->set_code(v1::RESULT_CODE_OK);
    return grpc::Status::OK;
  }
  grpc::Status BeginPut(grpc::ServerContext*, const v1::BeginPutRequest* request,
                        v1::BeginPutResponse* response) override {
    Keep("BeginPut", *request);
    v1::PutNeed* need = response->add_needs();
    need->mutable_result()->set_code(v1::RESULT_CODE_OK);
    need->set_transfer(kGoldenTransfer);
    return grpc::Status::OK;
  }
  grpc::Status PutStream(grpc::ServerContext*, grpc::ServerReader<v1::PutPart>* reader,
                         v1::PutStreamResponse*) override {
    v1::PutPart part;
    while (reader->Read(&part)) Keep("PutStream", part);
    return grpc::Status::OK;
  }
  grpc::Status CommitPut(grpc::ServerContext*, const v1::CommitPutRequest* request,
                         v1::CommitPutResponse* response) override {
    Keep("CommitPut", *request);
    response->add_results()->set_code(v1::RESULT_CODE_OK);
    return grpc::Status::OK;
  }
  grpc::Status Lookup(grpc::ServerContext*, const v1::LookupRequest* request,
                      v1::LookupResponse* response) override {
    Keep("Lookup", *request);
    response->set_matched_tokens(kChunkTokens);
    v1::ChunkPresence* chunk = response->add_chunks();
    chunk->set_present(true);
    chunk->set_frame_bytes(GoldenChunks()[0].frame.size());
    response->set_lease("lease");
    return grpc::Status::OK;
  }
  grpc::Status GetStream(grpc::ServerContext* context, const v1::GetRequest* request,
                         Writer* writer) override {
    Keep("GetStream", *request);
    return FakeServer::GetStream(context, request, writer);
  }
  grpc::Status Release(grpc::ServerContext*, const v1::ReleaseRequest* request,
                       v1::ReleaseResponse*) override {
    Keep("Release", *request);
    return grpc::Status::OK;
  }

 private:
  void Keep(const std::string& method, const google::protobuf::Message& request) {
    std::lock_guard lock(sent_mutex_);
    sent_.push_back({method, request.SerializeAsString()});
  }
  std::mutex sent_mutex_;
  std::vector<SentRequest> sent_;
};

// Today's client, through every call of a put and a get.
std::vector<SentRequest> RecordRequests() {
  RecordingServer server;
  RemoteOptions remote;
  remote.addresses = {server.address()};
  remote.path = RemotePath::kStreams;
  StressClient engine(remote);
  EXPECT_TRUE(engine.Put(GoldenChunks()));
  const PrefixMatch match = engine.Match(GoldenChunks());
  EXPECT_EQ(match.matched_tokens, kChunkTokens);
  engine.Get(GoldenChunks());
  engine.backend().Release(match.lease_token);
  const auto has = [&](const char* method) {
    const auto sent = server.Sent();
    return std::any_of(sent.begin(), sent.end(), [&](const auto& one) { return one.method == method; });
  };
  EXPECT_TRUE(Eventually([&] { return has("Release"); }));
  // In the order in which a client needs them: a stream of parts and the commit that waits for it are under
  // way at the same time, and either may be written down first.
  static constexpr const char* kOrder[] = {"OpenSession", "PutRoots", "BeginPut",  "PutStream",
                                           "CommitPut",   "Lookup",   "GetStream", "Release"};
  for (const char* method : kOrder) EXPECT_TRUE(has(method)) << method;
  std::vector<SentRequest> sent = server.Sent();
  std::ranges::stable_sort(sent, {}, [](const SentRequest& one) {
    return std::ranges::find(kOrder, one.method) - std::begin(kOrder);
  });
  return sent;
}

class VersionSkewTest : public ServiceTest {
 protected:
  // Sends requests as they were recorded, with the session and the transfer that this server gave in the
  // places of those that the recorded one gave, and `extra` in front: fields that nobody knows yet.
  void Replay(const std::vector<SentRequest>& requests, const std::string& extra) {
    Client client = ClientOf("alice");
    std::string session;
    std::string transfer;
    for (SentRequest request : requests) {
      if (!session.empty()) ReplaceAll(kGoldenSession, session, request.bytes);
      if (!transfer.empty()) ReplaceAll(FixedBytes(kGoldenTransfer), transfer, request.bytes);
      const std::string answer = Send(client, request.method, extra + request.bytes);
      if (request.method == "OpenSession") {
        const auto opened = Parse<v1::OpenSessionResponse>(answer);
        EXPECT_EQ(opened.session_id().size(), kGoldenSession.size());
        session = opened.session_id();
      } else if (request.method == "PutRoots") {
        EXPECT_EQ(Parse<v1::PutRootsResponse>(answer).results(0).code(), v1::RESULT_CODE_OK);
      } else if (request.method == "BeginPut") {
        const auto begun = Parse<v1::BeginPutResponse>(answer);
        ASSERT_EQ(begun.needs_size(), 1);
        ASSERT_EQ(begun.needs(0).result().code(), v1::RESULT_CODE_OK) << begun.DebugString();
        transfer = FixedBytes(begun.needs(0).transfer());
      } else if (request.method == "CommitPut") {
        EXPECT_EQ(Parse<v1::CommitPutResponse>(answer).results(0).code(), v1::RESULT_CODE_OK);
      } else if (request.method == "Lookup") {
        EXPECT_EQ(Parse<v1::LookupResponse>(answer).matched_tokens(), kChunkTokens);
      } else if (request.method == "GetStream") {
        EXPECT_EQ(Parse<v1::GetPart>(answer).data(), GoldenChunks()[0].frame);
      }
    }
    Client reader = ClientOf("alice");
    ASSERT_TRUE(reader.Open().ok());
    std::map<uint64_t, std::string> frames;
    std::vector<v1::GetResult> results;
    ASSERT_TRUE(reader.GetStream(reader.GetRequestOf(GoldenChunks()), frames, results).ok());
    EXPECT_EQ(frames[100], GoldenChunks()[0].frame);
  }

 private:
  class Exchange : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
   public:
    Exchange(Client& client, const std::string& method, const std::string& bytes)
        : context_(client.Context()), stub_(client.channel) {
      const grpc::Slice slice(bytes);
      request_ = grpc::ByteBuffer(&slice, 1);
      stub_.PrepareBidiStreamingCall(context_.get(), "/terrace.v1.Cache/" + method, grpc::StubOptions(),
                                     this);
      StartWriteLast(&request_, grpc::WriteOptions());
      StartRead(&response_);
      StartCall();
    }
    void OnReadDone(bool ok) override {
      if (!ok) return;
      // What follows the first answer is read and dropped.
      if (first_.empty()) {
        grpc::Slice slice;
        EXPECT_TRUE(response_.DumpToSingleSlice(&slice).ok());
        first_.assign(reinterpret_cast<const char*>(slice.begin()), slice.size());
      }
      response_.Clear();
      StartRead(&response_);
    }
    void OnDone(const grpc::Status& status) override { done_.set_value(status); }
    std::string Wait(const std::string& method) {
      const grpc::Status status = done_.get_future().get();
      EXPECT_TRUE(status.ok()) << method << ": " << status.error_message();
      return first_;
    }

   private:
    const std::unique_ptr<grpc::ClientContext> context_;
    grpc::GenericStub stub_;
    grpc::ByteBuffer request_;
    grpc::ByteBuffer response_;
    std::string first_;
    std::promise<grpc::Status> done_;
  };
  static std::string Send(Client& client, const std::string& method, const std::string& bytes) {
    Exchange exchange(client, method, bytes);
    return exchange.Wait(method);
  }
  template <typename Message>
  static Message Parse(const std::string& bytes) {
    Message message;
    EXPECT_TRUE(message.ParseFromString(bytes));
    return message;
  }
};

std::vector<SentRequest> GoldenRequests() {
  std::ifstream file(kGoldenFile);
  const nlohmann::json golden = nlohmann::json::parse(file, nullptr, false);
  EXPECT_TRUE(golden.is_object()) << kGoldenFile;
  std::vector<SentRequest> requests;
  if (!golden.is_object()) return requests;
  for (const auto& request : golden["requests"]) {
    requests.push_back({request["method"], BytesOfHex(request["hex"])});
  }
  return requests;
}

TEST_F(VersionSkewTest, AnOlderClientIsUnderstood) {
  Start();
  const std::vector<SentRequest> requests = GoldenRequests();
  ASSERT_GE(requests.size(), 8u);
  Replay(requests, "");
}

TEST_F(VersionSkewTest, TodaysClientSendsEveryCallOfTheGoldenOne) {
  const std::vector<SentRequest> sent = RecordRequests();
  if (const char* path = std::getenv("TERRACE_RECORD_REQUESTS")) {
    nlohmann::json golden;
    for (const SentRequest& request : sent) {
      golden["requests"].push_back({{"method", request.method}, {"hex", HexOf(request.bytes)}});
    }
    std::ofstream(path) << golden.dump(1) << "\n";
  }
  Start();
  Replay(sent, "");
}

TEST_F(VersionSkewTest, ANewerClientsFieldsAreIgnoredInEveryCall) {
  Start();
  // Field 900 a varint, 901 bytes, 902 a fixed64, 903 a fixed32, as a later version may have them.
  std::string extra(
      "\xa0\x38\x05\xaa\x38\x03new\xb1\x38"
      "12345678"
      "\xbd\x38"
      "1234",
      25);
  Replay(GoldenRequests(), extra);
}

TEST_F(VersionSkewTest, UnknownValuesOfEnumsCountAsUnspecified) {
  Start();
  Client client = ClientOf("alice");
  ASSERT_TRUE(client.Open({static_cast<v1::DataPath>(77)}).ok());
  EXPECT_FALSE(client.opened.has_bulk());
  ASSERT_TRUE(client.PutRoot().ok());
  const std::vector<TestChunk> chunks = GoldenChunks();
  ASSERT_EQ(client.Put(chunks[0]), v1::RESULT_CODE_OK);
  v1::EraseRequest erase;
  erase.set_session_id(client.session);
  erase.add_names()->set_key(BytesOf(chunks[0].id.key));
  erase.set_mode(static_cast<v1::EraseMode>(77));
  v1::EraseResponse erased;
  ASSERT_TRUE(client.Call(&v1::Cache::Stub::Erase, erase, erased).ok());
  EXPECT_EQ(erased.results(0).code(), v1::RESULT_CODE_OK);
  ASSERT_TRUE(client.Call(&v1::Cache::Stub::Erase, erase, erased).ok());
  EXPECT_EQ(erased.results(0).code(), v1::RESULT_CODE_NOT_FOUND) << "erased, as UNSPECIFIED is";
}

void AddUnknownFields(google::protobuf::Message* message) {
  message->GetReflection()->MutableUnknownFields(message)->AddVarint(900, 5);
  message->GetReflection()->MutableUnknownFields(message)->AddLengthDelimited(901, "later");
}

class NewerServer : public remote::FakeServer {
 public:
  grpc::Status PutRoots(grpc::ServerContext*, const v1::PutRootsRequest* request,
                        v1::PutRootsResponse* response) override {
    for (int i = 0; i < request->roots_size(); ++i) response->add_results()->set_code(v1::RESULT_CODE_OK);
    return grpc::Status::OK;
  }
};

TEST(NewerServerTest, ItsFieldsAndVersionAreIgnored) {
  NewerServer server;
  server.open = [](const v1::OpenSessionRequest&, v1::OpenSessionResponse* response) {
    response->set_minor_version(99);
    AddUnknownFields(response);
    AddUnknownFields(response->mutable_limits());
    return grpc::Status::OK;
  };
  server.lookup = [](const v1::LookupRequest&, v1::LookupResponse* response) {
    response->set_matched_tokens(kChunkTokens);
    v1::ChunkPresence* chunk = response->add_chunks();
    chunk->set_present(true);
    chunk->set_frame_bytes(GoldenChunks()[0].frame.size());
    AddUnknownFields(chunk);
    AddUnknownFields(response);
    return grpc::Status::OK;
  };
  const TestChunk chunk = GoldenChunks()[0];
  server.get_stream = [&](grpc::ServerContext*, const v1::GetRequest& request,
                          remote::FakeServer::Writer* writer) {
    v1::GetPart part;
    part.set_transfer(request.objects(0).transfer());
    part.set_data(chunk.frame);  // last on the wire in every version: what is new stands before it
    writer->Write(part);
    v1::GetPart end;
    end.add_results()->mutable_result()->set_code(v1::RESULT_CODE_OK);
    end.mutable_results(0)->set_frame_bytes(chunk.frame.size());
    AddUnknownFields(end.mutable_results(0));
    AddUnknownFields(&end);
    writer->Write(end);
    return grpc::Status::OK;
  };
  RemoteOptions remote;
  remote.addresses = {server.address()};
  remote.path = RemotePath::kStreams;
  StressClient engine(remote);
  const PrefixMatch match = engine.Match({chunk});
  EXPECT_EQ(match.matched_tokens, kChunkTokens) << match.status.ToString();
  EXPECT_EQ(engine.Get({chunk}), 1u);
}

TEST(NewerServerTest, AResultThatNobodyKnowsIsNoSuccess) {
  NewerServer server;
  std::atomic<int> num_answers{0};
  server.begin_put = [&](const v1::BeginPutRequest&, v1::BeginPutResponse* response) {
    ++num_answers;
    response->add_needs()->mutable_result()->set_code(static_cast<v1::ResultCode>(99));
    return grpc::Status::OK;
  };
  server.get_stream = [&](grpc::ServerContext*, const v1::GetRequest&, remote::FakeServer::Writer* writer) {
    ++num_answers;
    v1::GetPart end;
    end.add_results()->mutable_result()->set_code(static_cast<v1::ResultCode>(99));
    writer->Write(end);
    return grpc::Status::OK;
  };
  RemoteOptions remote;
  remote.addresses = {server.address()};
  remote.path = RemotePath::kStreams;
  StressClient engine(remote);
  engine.also_fair = StatusCode::kUnknown;
  EXPECT_FALSE(engine.Put(GoldenChunks()));
  EXPECT_EQ(engine.Get(GoldenChunks()), 0u);
  EXPECT_GE(num_answers, 2);
}

TEST_F(VersionSkewTest, ADrainedServerIsAMissToTheRemoteTier) {
  Start();
  RemoteOptions remote;
  remote.addresses = {server->addresses().front()};
  remote.token = "token-of-alice";
  remote.path = RemotePath::kStreams;
  StressClient engine(remote);
  ASSERT_TRUE(Eventually([&] { return engine.Put(GoldenChunks()); }));
  ASSERT_EQ(engine.Get(GoldenChunks()), 1u);
  server->Drain(Clock::Real()->Now() + std::chrono::seconds(60));
  EXPECT_EQ(engine.Get(GoldenChunks()), 0u);
  EXPECT_EQ(engine.Match(GoldenChunks()).matched_tokens, 0u);
  EXPECT_FALSE(engine.Put(MakeChunks(9, 1, 3000)));
}

}  // namespace
}  // namespace terrace::server
