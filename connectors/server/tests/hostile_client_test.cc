// Clients that send anything to anywhere, and what is left of the server when they are gone: the same answers
// to everybody else, and nothing that they held.
#include <fcntl.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/generic/generic_stub.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <random>

#include "connectors/server/tests/hostile_sockets.h"
#include "connectors/server/tests/service_fixture.h"

namespace terrace::server {
namespace {

namespace pb = google::protobuf;
using Random = std::mt19937_64;
constexpr uint64_t kMiB = uint64_t{1} << 20;
// Of the process, whatever strangers did. The sanitizers keep freed memory for a while.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kMayGrow = 1024 * kMiB;
#else
constexpr uint64_t kMayGrow = 256 * kMiB;
#endif

size_t OpenFiles() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

uint64_t ResidentBytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * 4096;
}

std::string RandomBytes(Random& random, size_t most) {
  std::string bytes(random() % (most + 1), '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// A value that is likely to be at somebody's border.
uint64_t RandomNumber(Random& random) {
  constexpr uint64_t kEdges[] = {0, 1, 4095, 4096, 4097, 65536, 1u << 30, UINT32_MAX, INT64_MAX, UINT64_MAX};
  return random() % 2 == 0 ? kEdges[random() % std::size(kEdges)] : random() % 5000;
}

// Fills messages of every kind from what the contract itself says of them.
class MessageMaker {
 public:
  MessageMaker(uint64_t seed, std::string session) : random_(seed), session_(std::move(session)) {}

  std::string Bytes(const pb::Descriptor* type) {
    if (random_() % 8 == 0) return RandomBytes(random_, 300);
    std::unique_ptr<pb::Message> message(pb::MessageFactory::generated_factory()->GetPrototype(type)->New());
    Fill(*message, 0);
    std::string bytes = message->SerializeAsString();
    if (random_() % 2 == 0) Mutate(bytes);
    return bytes;
  }

 private:
  void Fill(pb::Message& message, int depth) {
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
      const pb::FieldDescriptor* field = message.GetDescriptor()->field(i);
      if (field->name() == "session_id") {
        const bool is_ours = random_() % 8 != 0;
        message.GetReflection()->SetString(&message, field, is_ours ? session_ : RandomBytes(random_, 20));
        continue;
      }
      if (random_() % 6 == 0) continue;
      const size_t times = field->is_repeated() ? random_() % 4 : 1;
      for (size_t n = 0; n < times; ++n) Set(message, field, depth);
    }
  }
  void Set(pb::Message& message, const pb::FieldDescriptor* field, int depth) {
    const pb::Reflection* to = message.GetReflection();
    const bool many = field->is_repeated();
    const uint64_t number = RandomNumber(random_);
    switch (field->cpp_type()) {
      case pb::FieldDescriptor::CPPTYPE_STRING: {
        const std::string text = field->type() == pb::FieldDescriptor::TYPE_STRING
                                     ? std::string(random_() % 300, 'n')
                                     : BytesValue();
        return many ? to->AddString(&message, field, text) : to->SetString(&message, field, text);
      }
      case pb::FieldDescriptor::CPPTYPE_UINT64:
        return many ? to->AddUInt64(&message, field, number) : to->SetUInt64(&message, field, number);
      case pb::FieldDescriptor::CPPTYPE_UINT32:
        return to->SetUInt32(&message, field, static_cast<uint32_t>(number));
      case pb::FieldDescriptor::CPPTYPE_INT32:
        return to->SetInt32(&message, field, static_cast<int32_t>(number));
      case pb::FieldDescriptor::CPPTYPE_BOOL:
        return to->SetBool(&message, field, number % 2 == 0);
      case pb::FieldDescriptor::CPPTYPE_ENUM: {
        const int value = static_cast<int>(number % 7);
        return many ? to->AddEnumValue(&message, field, value) : to->SetEnumValue(&message, field, value);
      }
      case pb::FieldDescriptor::CPPTYPE_MESSAGE:
        if (depth < 4)
          Fill(many ? *to->AddMessage(&message, field) : *to->MutableMessage(&message, field), depth + 1);
        return;
      default:
        FAIL() << "a kind of field that this maker does not know: " << field->full_name();
    }
  }
  // Digests, contents, data.
  std::string BytesValue() {
    if (random_() % 2 == 0) return std::string(32, static_cast<char>(random_() % 4));
    if (random_() % 2 == 0) return std::string(4096 * (random_() % 3), 'd');
    return RandomBytes(random_, 100);
  }
  void Mutate(std::string& bytes) {
    for (uint64_t n = random_() % 6; n > 0 && !bytes.empty(); --n) {
      const size_t at = random_() % bytes.size();
      const uint64_t how = random_() % 3;
      if (how == 0) bytes[at] = static_cast<char>(random_());
      if (how == 1) bytes.resize(at);
      if (how == 2) bytes.insert(at, RandomBytes(random_, 12));
    }
  }

  Random random_;
  const std::string session_;
};

// Calls that are all on their way at once. Each has its end, at the latest at a short deadline.
class CallSwarm {
 public:
  explicit CallSwarm(const Client& client) : client_(client), generic_(client.channel) {}
  void Start(const std::string& method, const std::string& bytes) {
    auto call = std::make_shared<Call>();
    call->context = client_.Context(std::chrono::milliseconds(400));
    const grpc::Slice slice(bytes);
    call->request = grpc::ByteBuffer(&slice, 1);
    calls_.push_back(call->done.get_future());
    generic_.UnaryCall(call->context.get(), method, grpc::StubOptions(), &call->request, &call->response,
                       [call](const grpc::Status& status) { call->done.set_value(status); });
  }
  // How many ended with each status.
  std::map<grpc::StatusCode, int> Wait() {
    std::map<grpc::StatusCode, int> ends;
    for (std::future<grpc::Status>& call : calls_) {
      EXPECT_EQ(call.wait_for(std::chrono::seconds(60)), std::future_status::ready) << "a call without end";
      ++ends[call.get().error_code()];
    }
    calls_.clear();
    return ends;
  }

 private:
  struct Call {
    std::unique_ptr<grpc::ClientContext> context;
    grpc::ByteBuffer request;
    grpc::ByteBuffer response;
    std::promise<grpc::Status> done;
  };
  const Client& client_;
  grpc::GenericStub generic_;
  std::vector<std::future<grpc::Status>> calls_;
};

class HostileClientTest : public ServiceTest {
 protected:
  // Sessions that nobody closes end after `session_ttl`.
  void Begin(Duration session_ttl = std::chrono::minutes(10)) {
    options.unix_path = testing::TempDir() + "terrace_hostile_" + std::to_string(getpid());
    options.shm = true;
    options.sessions.session_ttl = session_ttl;
    Start();
    Client alice = ClientOf("alice");
    ASSERT_TRUE(alice.Open().ok() && alice.PutRoot().ok());
    for (const TestChunk& chunk : chunks_) ASSERT_EQ(alice.Put(chunk), v1::RESULT_CODE_OK);
    Close(alice);
    free_frames_ = FreeFrames();
    // What gRPC keeps for a first connection is no leak of a later one.
    ExpectServed();
    open_files_ = OpenFiles();
    resident_bytes_ = ResidentBytes();
  }
  static void Close(const Client& client) {
    v1::CloseSessionRequest close;
    close.set_session_id(client.session);
    v1::CloseSessionResponse closed;
    EXPECT_TRUE(client.Call(&v1::Cache::Stub::CloseSession, close, closed).ok());
  }
  // A client that behaves gets what is stored, over a connection of its own.
  void ExpectServed() {
    Client alice = ClientOf("alice");
    const grpc::Status opened = alice.Open();
    ASSERT_TRUE(opened.ok()) << opened.error_message();
    std::map<uint64_t, std::string> frames;
    std::vector<v1::GetResult> results;
    const grpc::Status got = alice.GetStream(alice.GetRequestOf(chunks_), frames, results);
    ASSERT_TRUE(got.ok()) << got.error_message();
    for (size_t i = 0; i < chunks_.size(); ++i) EXPECT_EQ(frames[100 + i], chunks_[i].frame);
    Close(alice);
  }
  // The server is as it was before anybody came.
  void ExpectUnharmed() {
    ExpectServed();
    EXPECT_TRUE(Eventually([&] { return server->num_sessions() == 0; })) << server->num_sessions();
    EXPECT_TRUE(Eventually([&] { return FreeFrames() >= free_frames_; }))
        << FreeFrames() << " of " << free_frames_ << " frames find room";
    // The pollers of gRPC come and go.
    EXPECT_TRUE(Eventually([&] { return OpenFiles() <= open_files_ + 8; }))
        << OpenFiles() << " files are open, " << open_files_ << " were";
    EXPECT_LT(ResidentBytes(), resident_bytes_ + kMayGrow);
  }
  uint16_t Port() const {
    const std::string address = server->addresses().front();
    return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }

  const std::vector<TestChunk> chunks_ = MakeChunks(1, 3, kMiB);
  size_t free_frames_ = 0;
  size_t open_files_ = 0;
  uint64_t resident_bytes_ = 0;
};

TEST_F(HostileClientTest, EveryCallTakesAnyBytes) {
  const pb::LogSilencer silencer;  // of texts that are no UTF-8
  Begin(std::chrono::seconds(2));
  Client bob = ClientOf("bob");
  const pb::ServiceDescriptor* service = v1::LookupRequest::descriptor()->file()->service(0);
  std::map<grpc::StatusCode, int> ends;
  for (uint64_t round = 0; round < 40; ++round) {
    // The last round's session may have been closed by its own garbage.
    ASSERT_TRUE(bob.Open({v1::DATA_PATH_BULK, v1::DATA_PATH_SHM}).ok());
    ASSERT_TRUE(round % 2 != 0 || bob.PutRoot().ok());
    MessageMaker maker(round, bob.session);
    CallSwarm swarm(bob);
    for (int i = 0; i < service->method_count(); ++i) {
      const pb::MethodDescriptor* method = service->method(i);
      const std::string path = "/" + service->full_name() + "/" + method->name();
      for (int n = 0; n < 3; ++n) swarm.Start(path, maker.Bytes(method->input_type()));
    }
    for (const auto& [code, count] : swarm.Wait()) ends[code] += count;
    if (round % 10 == 0) ExpectServed();
  }
  EXPECT_GT(ends[grpc::StatusCode::OK], 0);
  EXPECT_GT(ends[grpc::StatusCode::INVALID_ARGUMENT], 0);
  EXPECT_EQ(ends[grpc::StatusCode::UNKNOWN], 0) << "something was thrown";
  ExpectUnharmed();
}

TEST_F(HostileClientTest, OversizeMessagesEndTheirCallAlone) {
  Begin();
  Client bob = ClientOf("bob");
  ASSERT_TRUE(bob.Open().ok());
  const pb::ServiceDescriptor* service = v1::LookupRequest::descriptor()->file()->service(0);
  CallSwarm swarm(bob);
  for (int i = 0; i < service->method_count(); ++i) {
    swarm.Start("/" + service->full_name() + "/" + service->method(i)->name(),
                std::string(options.max_message_bytes + 1, '\x0a'));
  }
  for (const auto& [code, count] : swarm.Wait()) {
    EXPECT_TRUE(code == grpc::StatusCode::RESOURCE_EXHAUSTED || code == grpc::StatusCode::DEADLINE_EXCEEDED ||
                code == grpc::StatusCode::INVALID_ARGUMENT)
        << code << " " << count;
  }
  Close(bob);
  ExpectUnharmed();
}

TEST_F(HostileClientTest, AThousandSilentConnectionsCostNobodyElse) {
  Begin();
  Client bob = ClientOf("bob");
  ASSERT_TRUE(bob.Open({v1::DATA_PATH_BULK}).ok());
  const size_t room = RaiseFileLimit();
  ASSERT_GT(room, 400u);
  {
    SocketSwarm swarm;
    // Both ends are files of this process.
    const size_t count = std::min<size_t>(1000, (room - open_files_ - 200) / 2);
    const auto bulk_port = static_cast<uint16_t>(bob.opened.bulk().tcp_port());
    for (size_t i = 0; i < count; ++i) swarm.ConnectTcp(i % 4 == 0 ? bulk_port : Port());
    for (int i = 0; i < 40; ++i) swarm.ConnectUnix(options.unix_path + (i % 2 == 0 ? ".shm" : ".bulk"));
    ExpectServed();
    // Beginnings of what belongs there, a byte at a time, and never the rest.
    const std::string http = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\4\4";
    for (size_t at = 0; at < 12; ++at) {
      swarm.SendAll(http.substr(at, 1));
      if (at % 6 == 0) ExpectServed();
    }
    ExpectServed();
  }
  Close(bob);
  ExpectUnharmed();
}

TEST_F(HostileClientTest, GarbageOnEverySocketEndsThatSocketAlone) {
  Begin();
  Client bob = ClientOf("bob");
  ASSERT_TRUE(bob.Open({v1::DATA_PATH_BULK}).ok());
  Random random(7);
  for (int round = 0; round < 50; ++round) {
    SocketSwarm swarm;
    swarm.ConnectTcp(Port());
    swarm.ConnectTcp(static_cast<uint16_t>(bob.opened.bulk().tcp_port()));
    for (const char* suffix : {"", ".bulk", ".shm"}) swarm.ConnectUnix(options.unix_path + suffix);
    std::string bytes = RandomBytes(random, 2000);
    if (round % 2 == 0)
      bytes.insert(0, round % 4 == 0 ? "TERRBLK1\1\0\0\0" : "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    swarm.SendAll(bytes);
  }
  Close(bob);
  ExpectUnharmed();
}

TEST_F(HostileClientTest, SessionsThatAreOpenedAndDroppedEnd) {
  Begin(std::chrono::seconds(2));
  for (int i = 0; i < 30; ++i) {
    Client bob = ClientOf("bob");
    ASSERT_TRUE(bob.Open({v1::DATA_PATH_BULK}).ok());
    ASSERT_TRUE(bob.PutRoot().ok());
    bob.Begin({MakeChunks(10, 1, kMiB)[0].Put()});
    v1::LookupRequest lookup = bob.LookupOf(chunks_);
    lookup.set_lease_ms(60'000);
    v1::LookupResponse ignored;
    EXPECT_TRUE(bob.Call(&v1::Cache::Stub::Lookup, lookup, ignored).ok());
  }
  EXPECT_GT(server->num_sessions(), 0u);
  ExpectUnharmed();
}

TEST_F(HostileClientTest, NoTokenButTheRightOneOpensAnything) {
  Begin();
  Random random(11);
  const std::string right = "token of alice";
  std::vector<std::string> wrong = {"token of alic",  right + "x",       right + " ",
                                    "TOKEN OF ALICE", "Bearer " + right, std::string(4000, 'a'),
                                    "alice"};
  for (int i = 0; i < 100; ++i) {
    std::string token(1 + random() % 40, '\0');
    for (char& letter : token) letter = static_cast<char>(' ' + random() % 95);
    wrong.push_back(token);
  }
  for (const std::string& token : wrong) {
    Client client(server->addresses().front(), token);
    EXPECT_EQ(client.Open().error_code(), grpc::StatusCode::UNAUTHENTICATED) << token;
  }
  ExpectUnharmed();
}

// The same requests for what another namespace has and for what nobody has: the answers are the same bytes.
class KeyGuess {
 public:
  KeyGuess(const Client& client, const std::vector<TestChunk>& chunks) : client_(client), chunks_(chunks) {}
  std::string Answers() {
    for (const TestChunk& chunk : chunks_) {
      have.add_names()->set_key(BytesOf(chunk.id.key));
      erase.add_names()->set_key(BytesOf(chunk.id.key));
    }
    Note(&v1::Cache::Stub::Have, have, v1::HaveResponse());
    Note(&v1::Cache::Stub::Erase, erase, v1::EraseResponse());
    v1::LookupRequest lookup = client_.LookupOf(chunks_);
    lookup.set_lease_ms(1000);
    // The caller's own keys come back in the answer where they were matched, which none is.
    Note(&v1::Cache::Stub::Lookup, lookup, v1::LookupResponse());
    v1::PinRequest pin;
    pin.set_name("guess");
    *pin.mutable_prefix() = lookup;
    Note(&v1::Cache::Stub::Pin, pin, v1::PinResponse());
    Note(&v1::Cache::Stub::Get, client_.GetRequestOf(chunks_), v1::GetResponse());
    v1::BeginPutRequest put;
    for (const TestChunk& chunk : chunks_) *put.add_objects() = chunk.Put();
    Note(&v1::Cache::Stub::BeginPut, put, v1::BeginPutResponse());
    std::map<uint64_t, std::string> frames;
    std::vector<v1::GetResult> results;
    EXPECT_TRUE(client_.GetStream(client_.GetRequestOf(chunks_), frames, results).ok());
    EXPECT_TRUE(frames.empty());
    for (const v1::GetResult& result : results) answers_ += result.DebugString();
    return answers_;
  }

 private:
  template <typename Request, typename Response>
  void Note(grpc::Status (v1::Cache::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
            Request request, Response response) {
    request.set_session_id(client_.session);
    const grpc::Status status = client_.Call(method, request, response);
    answers_ += std::to_string(status.error_code()) + status.error_message() + response.DebugString() + "\n";
  }
  v1::HaveRequest have;
  v1::EraseRequest erase;
  const Client& client_;
  const std::vector<TestChunk>& chunks_;
  std::string answers_;
};

TEST_F(HostileClientTest, AGuessedKeyOfAnotherNamespaceIsLikeAnAbsentOne) {
  Begin();
  const std::vector<TestChunk> absent = MakeChunks(99, chunks_.size(), kMiB);
  std::string answers[2];
  const std::vector<TestChunk>* guesses[2] = {&chunks_, &absent};
  for (int i = 0; i < 2; ++i) {
    Client bob = ClientOf("bob");
    ASSERT_TRUE(bob.Open().ok());
    answers[i] = KeyGuess(bob, *guesses[i]).Answers();
    Close(bob);
  }
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_FALSE(answers[0].empty());
  ExpectUnharmed();
}

TEST_F(HostileClientTest, ATenantOverItsQuotaEvictsNobodyElse) {
  Begin();
  {
    Client bob = ClientOf("bob");
    ASSERT_TRUE(bob.Open().ok() && bob.PutRoot().ok());
    std::vector<TestChunk> many;
    for (uint32_t i = 0; i < 2 * kPoolBytes / (4 * kMiB); ++i) {
      many.push_back(MakeChunks(100 + i, 1, 4 * kMiB)[0]);
    }
    for (const TestChunk& chunk : many) {
      const v1::ResultCode code = bob.Put(chunk);
      EXPECT_TRUE(code == v1::RESULT_CODE_OK || code == v1::RESULT_CODE_RESOURCE_EXHAUSTED) << code;
    }
    const v1::StatsResponse stats = bob.Stats();
    for (const v1::TierStats& tier : stats.tiers()) EXPECT_LE(tier.used_bytes(), tier.capacity_bytes());
    v1::HaveRequest have;
    have.set_session_id(bob.session);
    for (const TestChunk& chunk : many) have.add_names()->set_key(BytesOf(chunk.id.key));
    v1::HaveResponse has;
    ASSERT_TRUE(bob.Call(&v1::Cache::Stub::Have, have, has).ok());
    EXPECT_LT(std::count(has.have().begin(), has.have().end(), true), has.have_size()) << "over the quota";
    Close(bob);
  }
  ExpectUnharmed();
}

}  // namespace
}  // namespace terrace::server
