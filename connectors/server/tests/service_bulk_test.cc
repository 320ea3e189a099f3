#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <future>

#include "connectors/server/tests/service_fixture.h"
#include "lib/wire/bulk_connection.h"

namespace terrace::server {
namespace {

using Stub = v1::Cache::Stub;

class ServiceBulkTest : public ServiceTest {
 protected:
  void Open() {
    Start();
    client = std::make_unique<Client>(server->addresses().front(), "token-of-alice");
    ASSERT_TRUE(client->Open({v1::DATA_PATH_BULK}).ok() && client->PutRoot().ok());
    auto started = BulkReactor::Start({});
    ASSERT_TRUE(started.ok());
    reactor = *std::move(started);
  }
  void TearDown() override { reactor.reset(); }

  int ConnectTcp() const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(client->opened.bulk().tcp_port()));
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  BulkHello HelloWith(const std::string& token) const {
    BulkHello hello;
    std::memcpy(hello.session.data(), client->session.data(), hello.session.size());
    std::memcpy(hello.token.data(), token.data(), hello.token.size());
    return hello;
  }
  BulkCode Shake(int fd, const BulkHello& hello) const {
    BulkWelcome welcome;
    welcome.code = BulkCode::kGivenUp;
    EXPECT_TRUE(BulkClientHandshake(fd, nullptr, hello, welcome).ok());
    return welcome.code;
  }
  std::shared_ptr<BulkConnection> Add(int fd) {
    BulkReactor::Connection connection;
    connection.fd = fd;
    connection.landings = landings;
    connection.on_close = [this](const Status&) { closed = true; };
    return *reactor->Add(std::move(connection));
  }
  // Memory that awaits the whole frame of a get.
  std::shared_ptr<std::vector<std::byte>> Await(uint64_t transfer, uint64_t bytes,
                                                std::shared_ptr<std::promise<Status>> end) {
    auto memory = std::make_shared<std::vector<std::byte>>(bytes);
    Landing landing;
    landing.memory = *memory;
    landing.ranges = {{0, bytes, 0}};
    landing.keep = memory;
    landing.on_end = [end](const Status& status) { end->set_value(status); };
    EXPECT_TRUE(landings->Add(transfer, std::move(landing)).ok());
    return memory;
  }

  std::unique_ptr<Client> client;
  const std::shared_ptr<LandingTable> landings = std::make_shared<LandingTable>();
  std::unique_ptr<BulkReactor> reactor;
  std::atomic<bool> closed{false};
};

BufferRef BufferOf(const std::string& frame) {
  auto* control = new BufferControl;
  control->size_bytes = kTierPageBytes + frame.size();
  control->data = new std::byte[control->size_bytes];
  control->release = [](BufferControl* released) {
    delete[] released->data;
    delete released;
  };
  std::memcpy(control->data + kTierPageBytes, frame.data(), frame.size());
  return BufferRef(control);
}

TEST_F(ServiceBulkTest, FramesGoBothWays) {
  Open();
  const int fd = ConnectTcp();
  ASSERT_EQ(Shake(fd, HelloWith(client->opened.bulk().tokens(0))), BulkCode::kOk);
  const auto connection = Add(fd);
  const auto chunks = MakeChunks(1, 2, uint64_t{5} << 20);
  const v1::BeginPutResponse needs = client->Begin({chunks[0].Put(), chunks[1].Put()});
  for (size_t i = 0; i < 2; ++i) {
    connection->Send(needs.needs(i).transfer(), BufferOf(chunks[i].frame), {{0, chunks[i].frame.size(), 0}},
                     nullptr);
  }
  const v1::CommitPutResponse committed =
      client->Commit({needs.needs(0).transfer(), needs.needs(1).transfer()});
  EXPECT_EQ(committed.results(0).code(), v1::RESULT_CODE_OK) << committed.DebugString();
  EXPECT_EQ(committed.results(1).code(), v1::RESULT_CODE_OK);
  const auto end = std::make_shared<std::promise<Status>>();
  const auto memory = Await(101, chunks[1].frame.size(), end);
  v1::GetRequest request = client->GetRequestOf({MakeChunks(2, 1, 20'000)[0], chunks[1]});
  v1::GetResponse response;
  ASSERT_TRUE(client->Call(&Stub::Get, request, response).ok());
  EXPECT_EQ(response.results(0).result().code(), v1::RESULT_CODE_NOT_FOUND);
  EXPECT_EQ(response.results(1).sent_bytes(), chunks[1].frame.size());
  ASSERT_TRUE(end->get_future().get().ok());
  EXPECT_EQ(std::memcmp(memory->data(), chunks[1].frame.data(), memory->size()), 0);
  EXPECT_TRUE(Eventually([&] { return client->Stats().inflight_bytes() == 0; }));
  EXPECT_EQ(
      options.metrics->Value("terrace_server_received_bytes_total", {{"path", "bulk"}, {"tenant", "alice"}}),
      static_cast<int64_t>(2 * chunks[0].frame.size()));
}

TEST_F(ServiceBulkTest, ATokenIsGoodOnce) {
  Open();
  const int first = ConnectTcp();
  const int second = ConnectTcp();
  const int third = ConnectTcp();
  const BulkHello hello = HelloWith(client->opened.bulk().tokens(0));
  EXPECT_EQ(Shake(first, hello), BulkCode::kOk);
  EXPECT_EQ(Shake(second, hello), BulkCode::kRefused);
  EXPECT_EQ(Shake(third, HelloWith(std::string(32, 'x'))), BulkCode::kRefused);
  for (const int fd : {first, second, third}) close(fd);
}

TEST_F(ServiceBulkTest, SilentAndTalkativeStrangersCostNobodyElse) {
  Open();
  std::vector<int> silent;
  for (int i = 0; i < 400; ++i) silent.push_back(ConnectTcp());
  for (int i = 0; i < 50; ++i) {
    silent.push_back(ConnectTcp());
    ASSERT_EQ(send(silent.back(), "TERR", 4, MSG_NOSIGNAL), 4);
  }
  const int junk = ConnectTcp();
  ASSERT_EQ(send(junk, std::string(64, 'j').data(), 64, MSG_NOSIGNAL), 64);
  char byte;
  EXPECT_LE(recv(junk, &byte, 1, 0), 0) << "closed without an answer";
  close(junk);
  const int fd = ConnectTcp();
  EXPECT_EQ(Shake(fd, HelloWith(client->opened.bulk().tokens(0))), BulkCode::kOk);
  close(fd);
  for (const int stranger : silent) close(stranger);
}

TEST_F(ServiceBulkTest, ABrokenRuleEndsConnectionAndTransfers) {
  Open();
  const int fd = ConnectTcp();
  ASSERT_EQ(Shake(fd, HelloWith(client->opened.bulk().tokens(0))), BulkCode::kOk);
  const TestChunk chunk = MakeChunks(3, 1, 100'000)[0];
  const v1::BeginPutResponse needs = client->Begin({chunk.Put()});
  ASSERT_EQ(needs.needs(0).result().code(), v1::RESULT_CODE_OK);
  ASSERT_EQ(send(fd, std::string(32, 'j').data(), 32, MSG_NOSIGNAL), 32);
  EXPECT_EQ(client->Commit({needs.needs(0).transfer()}).results(0).code(), v1::RESULT_CODE_DATA_LOSS);
  char byte;
  EXPECT_LE(recv(fd, &byte, 1, 0), 0);
  close(fd);
  EXPECT_EQ(client->Stats().inflight_bytes(), 0u);
}

TEST_F(ServiceBulkTest, TheEndOfASessionClosesItsSockets) {
  Open();
  const int fd = ConnectTcp();
  ASSERT_EQ(Shake(fd, HelloWith(client->opened.bulk().tokens(0))), BulkCode::kOk);
  const auto connection = Add(fd);
  v1::CloseSessionRequest close_request;
  close_request.set_session_id(client->session);
  v1::CloseSessionResponse response;
  ASSERT_TRUE(client->Call(&Stub::CloseSession, close_request, response).ok());
  EXPECT_TRUE(Eventually([&] { return closed.load(); }));
}

}  // namespace
}  // namespace terrace::server
