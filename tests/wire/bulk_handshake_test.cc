#include <gmock/gmock.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "tests/wire/bulk_fixture.h"

namespace terrace {
namespace {

constexpr auto kShort = std::chrono::milliseconds(50);

BulkHello SomeHello() {
  BulkHello hello{.connection = 3};
  hello.session.fill(std::byte{1});
  hello.token.fill(std::byte{2});
  return hello;
}

class BulkHandshakeTest : public ::testing::TestWithParam<bool> {
 protected:
  BulkHandshakeTest() : ends_(Connect(Transport::kUnix)) {
    if (GetParam()) BeginTls(ends_);
  }
  ~BulkHandshakeTest() override {
    for (int side : {0, 1}) {
      if (ends_.tls[side] != nullptr) SSL_free(ends_.tls[side]);
      CloseSide(side);
    }
  }
  void CloseSide(int side) {
    if (ends_.fd[side] >= 0) close(std::exchange(ends_.fd[side], -1));
  }
  Result<BulkHello> ServerHello(Duration limit = kPatience) {
    return BulkServerHello(ends_.fd[1], ends_.tls[1], limit);
  }

  SocketEnds ends_;
};

TEST_P(BulkHandshakeTest, HelloAndWelcomeArrive) {
  std::thread server([&] {
    const Result<BulkHello> hello = ServerHello();
    ASSERT_TRUE(hello.ok()) << hello.status().ToString();
    EXPECT_EQ(hello->connection, 3u);
    EXPECT_EQ(hello->session, SomeHello().session);
    EXPECT_EQ(hello->token, SomeHello().token);
    EXPECT_TRUE(
        BulkServerAnswer(ends_.fd[1], ends_.tls[1], {.max_message_bytes = uint64_t{1} << 20}, kPatience)
            .ok());
  });
  BulkWelcome welcome{.code = BulkCode::kRefused};
  EXPECT_TRUE(BulkClientHandshake(ends_.fd[0], ends_.tls[0], SomeHello(), welcome, kPatience).ok());
  EXPECT_EQ(welcome.code, BulkCode::kOk);
  EXPECT_EQ(welcome.max_message_bytes, uint64_t{1} << 20);
  server.join();
}

TEST_P(BulkHandshakeTest, ARefusalIsAnAnswer) {
  std::thread server([&] {
    EXPECT_TRUE(ServerHello().ok());
    EXPECT_TRUE(
        BulkServerAnswer(ends_.fd[1], ends_.tls[1], {.version = 9, .code = BulkCode::kVersion}, kPatience)
            .ok());
  });
  BulkWelcome welcome;
  EXPECT_TRUE(BulkClientHandshake(ends_.fd[0], ends_.tls[0], SomeHello(), welcome, kPatience).ok());
  EXPECT_EQ(welcome.code, BulkCode::kVersion);
  server.join();
}

TEST_P(BulkHandshakeTest, AnotherVersionThatCallsItselfFineIsNot) {
  std::thread server([&] {
    EXPECT_TRUE(ServerHello().ok());
    EXPECT_TRUE(BulkServerAnswer(ends_.fd[1], ends_.tls[1], {.version = 2}, kPatience).ok());
  });
  BulkWelcome welcome;
  EXPECT_EQ(BulkClientHandshake(ends_.fd[0], ends_.tls[0], SomeHello(), welcome, kPatience).code(),
            StatusCode::kDataLoss);
  server.join();
}

TEST_P(BulkHandshakeTest, ASilentPeerIsGivenUp) {
  EXPECT_EQ(ServerHello(kShort).status().code(), StatusCode::kDeadlineExceeded);
  BulkWelcome welcome;
  EXPECT_EQ(BulkClientHandshake(ends_.fd[0], ends_.tls[0], SomeHello(), welcome, kShort).code(),
            StatusCode::kDeadlineExceeded);
}

TEST_P(BulkHandshakeTest, AHelloThatTricklesIsCutOff) {
  std::thread peer([&] {
    const auto hello = EncodeBulkHello(SomeHello());
    for (size_t i = 0; i + 1 < hello.size(); ++i) {
      // Until the other side is closed, or a little later.
      pollfd waited{.fd = ends_.fd[0], .events = POLLRDHUP};
      if (poll(&waited, 1, 5) != 0) break;
      if (send(ends_.fd[0], GetParam() ? "\x16" : "T", 1, MSG_NOSIGNAL) != 1) break;
    }
  });
  const Status status = ServerHello(kShort).status();
  // TLS may tell before that this is no TLS.
  const bool cut_off = status.code() == StatusCode::kDeadlineExceeded;
  EXPECT_TRUE(cut_off || (GetParam() && status.code() == StatusCode::kDataLoss)) << status.ToString();
  shutdown(ends_.fd[1], SHUT_RDWR);
  peer.join();
}

TEST_P(BulkHandshakeTest, APeerThatClosesIsUnavailable) {
  CloseSide(0);
  EXPECT_EQ(ServerHello().status().code(), StatusCode::kUnavailable);
  // A process that does not ignore SIGPIPE would end here.
  EXPECT_EQ(BulkServerAnswer(ends_.fd[1], ends_.tls[1], {}, kPatience).code(), StatusCode::kUnavailable);
}

TEST_P(BulkHandshakeTest, AClientWhoseServerIsGoneLivesOn) {
  CloseSide(1);
  BulkWelcome welcome;
  EXPECT_EQ(BulkClientHandshake(ends_.fd[0], ends_.tls[0], SomeHello(), welcome, kPatience).code(),
            StatusCode::kUnavailable);
}

TEST_P(BulkHandshakeTest, GarbageIsDataLoss) {
  const auto garbage = RandomBytes(kBulkHelloBytes, 1);
  ASSERT_EQ(send(ends_.fd[0], garbage.data(), garbage.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(garbage.size()));
  EXPECT_EQ(ServerHello().status().code(), StatusCode::kDataLoss);
}

INSTANTIATE_TEST_SUITE_P(PlainAndTls, BulkHandshakeTest, ::testing::Bool(),
                         [](const auto& instance) { return instance.param ? "Tls" : "Plain"; });

}  // namespace
}  // namespace terrace
