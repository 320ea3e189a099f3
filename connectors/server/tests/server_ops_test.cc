// Log, metrics endpoint and TLS files.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "connectors/server/json_log_sink.h"
#include "connectors/server/metrics_endpoint.h"
#include "connectors/server/tls_files.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tls_identity.h"

namespace terrace::server {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class FixedClock final : public Clock {
 public:
  TimePoint Now() override { return {}; }
  WallTime WallNow() override { return WallTime(std::chrono::milliseconds(1769860800123)); }
};

TEST(JsonLogSinkTest, OneObjectPerLine) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  FixedClock clock;
  const std::shared_ptr<LogSink> log = MakeJsonLogSink(ends[1], LogLevel::kInfo, &clock);
  log->Log(LogLevel::kDebug, "server", "not shown");
  log->Log(LogLevel::kInfo, "server", "a \"b\"\nc");
  log->Log(LogLevel::kError, "nvme", "\xff");
  close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t size = read(ends[0], text.data(), text.size());
  close(ends[0]);
  ASSERT_GT(size, 0);
  text.resize(static_cast<size_t>(size));
  EXPECT_EQ(text,
            "{\"time\":\"2026-01-31T12:00:00.123Z\",\"level\":\"info\",\"component\":\"server\","
            "\"message\":\"a \\\"b\\\"\\nc\"}\n"
            "{\"time\":\"2026-01-31T12:00:00.123Z\",\"level\":\"error\",\"component\":\"nvme\","
            "\"message\":\"\xef\xbf\xbd\"}\n");
}

TEST(JsonLogSinkTest, ALogThatCannotBeWrittenIsNoError) {
  const std::shared_ptr<LogSink> log = MakeJsonLogSink(-1, LogLevel::kInfo);
  log->Log(LogLevel::kError, "server", "lost");
}

int Connect(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// The whole answer; the server closes the connection after one.
std::string Ask(uint16_t port, const std::string& request) {
  const int fd = Connect(port);
  EXPECT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  std::string answer;
  char bytes[4096];
  for (ssize_t got = 0; (got = recv(fd, bytes, sizeof(bytes), 0)) > 0;)
    answer.append(bytes, static_cast<size_t>(got));
  close(fd);
  return answer;
}

TEST(MetricsEndpointTest, AnswersGetAlone) {
  std::atomic<bool> is_serving{true};
  const auto endpoint =
      MetricsEndpoint::Start({0, [] { return "terrace_x 1\n"; }, [&] { return is_serving.load(); }}).value();
  const uint16_t port = endpoint->port();
  ASSERT_NE(port, 0);
  const std::string metrics = Ask(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(metrics, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(metrics, HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(metrics, EndsWith("\r\n\r\nterrace_x 1\n"));
  EXPECT_THAT(Ask(port, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"), EndsWith("ok\n"));
  is_serving = false;
  EXPECT_THAT(Ask(port, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Ask(port, "GET /other HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  for (const char* method : {"POST", "PUT", "DELETE", "HEAD", "OPTIONS"}) {
    const std::string answer =
        Ask(port, std::string(method) + " /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 405 ")) << method;
    EXPECT_THAT(answer, Not(HasSubstr("terrace_x")));
  }
  EXPECT_THAT(Ask(port, "GET /healthz?probe=1 HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 503 "));
  for (const char* nonsense : {"nonsense", "GET /metrics", " ", "", "GET  HTTP/2", "GET /metrics HTTP/2"}) {
    EXPECT_THAT(Ask(port, std::string(nonsense) + "\r\n\r\n"), StartsWith("HTTP/1.1 400 ")) << nonsense;
  }
  // Headers without an end: cut at 4 KiB, and what comes after the answer is dropped.
  const std::string endless = "GET /metrics HTTP/1.1\r\n" + std::string(8192, 'x');
  EXPECT_THAT(Ask(port, endless), StartsWith("HTTP/1.1 431 "));
}

TEST(MetricsEndpointTest, APortInUseIsRefused) {
  const auto text = [] { return std::string(); };
  const auto is_serving = [] { return true; };
  const auto first = MetricsEndpoint::Start({0, text, is_serving}).value();
  const auto second = MetricsEndpoint::Start({first->port(), text, is_serving});
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.status().ToString(), HasSubstr("127.0.0.1:" + std::to_string(first->port())));
}

TEST(MetricsEndpointTest, SilentConnectionsDoNotKeepOthersOut) {
  const auto endpoint = MetricsEndpoint::Start({0, [] { return "terrace_x 1\n"; }, [] { return true; },
                                                std::chrono::milliseconds(300)})
                            .value();
  std::vector<int> silent;
  for (int i = 0; i < 24; ++i) silent.push_back(Connect(endpoint->port()));  // more than it has places
  // Answered once the time of the first ones is over.
  EXPECT_THAT(Ask(endpoint->port(), "GET /metrics HTTP/1.1\r\n\r\n"), EndsWith("terrace_x 1\n"));
  for (const int fd : silent) close(fd);
}

TEST(MetricsEndpointTest, ItsEndWaitsForNobody) {
  auto endpoint =
      MetricsEndpoint::Start({0, [] { return std::string(); }, [] { return true; }, std::chrono::hours(1)})
          .value();
  const int silent = Connect(endpoint->port());
  endpoint.reset();
  char byte = 0;
  EXPECT_LE(recv(silent, &byte, 1, 0), 0);
  close(silent);
}

TEST(MetricsEndpointTest, ALargeAnswerArrivesWhole) {
  const std::string large(std::size_t{16} << 20, 'x');
  const auto endpoint = MetricsEndpoint::Start({0, [&] { return large; }, [] { return true; }}).value();
  const std::string answer = Ask(endpoint->port(), "GET /metrics HTTP/1.1\r\n\r\n");
  ASSERT_GT(answer.size(), large.size());
  EXPECT_EQ(answer.substr(answer.size() - large.size()), large);
}

class TlsFilesTest : public ::testing::Test {
 protected:
  TlsFilesTest() { Make("right", -3600, 3600); }
  std::string Path(const std::string& name) const { return root_ / name; }

  // NAME.crt and NAME.key: self-signed, valid between these seconds from now.
  void Make(const std::string& name, long from, long until) const {
    const TlsIdentity identity = MakeTlsIdentity(until, from);
    std::ofstream(Path(name + ".crt")) << identity.certificate;
    std::ofstream(Path(name + ".key")) << identity.key;
    ASSERT_EQ(chmod(Path(name + ".key").c_str(), 0600), 0);
  }

  std::string Error(const std::string& cert, const std::string& key, const std::string& ca = "") const {
    Mistakes mistakes;
    ReadTlsFiles({Path(cert), Path(key), ca.empty() ? "" : Path(ca)}, mistakes);
    return std::string(mistakes.ToStatus().message());
  }

  const TemporaryDirectory root_;
};

TEST_F(TlsFilesTest, AreReadAsTheyAre) {
  Mistakes mistakes;
  const ServerTls tls = ReadTlsFiles({Path("right.crt"), Path("right.key"), Path("right.crt")}, mistakes);
  EXPECT_EQ(mistakes.ToStatus().ToString(), "Ok");
  EXPECT_TRUE(tls.is_set());
  EXPECT_THAT(tls.certificate_chain, StartsWith("-----BEGIN CERTIFICATE-----"));
  EXPECT_THAT(tls.private_key, StartsWith("-----BEGIN PRIVATE KEY-----"));
  EXPECT_EQ(tls.client_roots, tls.certificate_chain);
  EXPECT_FALSE(ReadTlsFiles({}, mistakes).is_set());
  EXPECT_TRUE(mistakes.empty());
}

TEST_F(TlsFilesTest, WhatEveryClientWouldRefuseIsRefused) {
  Make("other", -3600, 3600);
  Make("old", -7200, -3600);
  Make("early", 3600, 7200);
  std::ofstream(Path("text")) << "no PEM\n";
  ASSERT_EQ(chmod(Path("text").c_str(), 0600), 0);
  EXPECT_THAT(Error("right.crt", "other.key"),
              HasSubstr("tls_key: \"" + Path("other.key") + "\": is not the key"));
  EXPECT_THAT(Error("old.crt", "old.key"), HasSubstr("has expired"));
  EXPECT_THAT(Error("early.crt", "early.key"), HasSubstr("is not valid yet"));
  EXPECT_THAT(Error("text", "right.key"),
              HasSubstr("tls_cert: \"" + Path("text") + "\": holds no certificate"));
  EXPECT_THAT(Error("right.crt", "text"), HasSubstr("holds no private key in PEM without passphrase"));
  EXPECT_THAT(Error("right.crt", "right.key", "text"), HasSubstr("tls_client_ca: \""));
  const std::string absent = Error("absent", "gone", "away");
  EXPECT_THAT(absent, StartsWith("3 mistakes\n"));
  EXPECT_THAT(absent, HasSubstr("tls_cert: \"" + Path("absent") + "\": is not there"));
  ASSERT_EQ(chmod(Path("right.key").c_str(), 0640), 0);
  EXPECT_THAT(Error("right.crt", "right.key"), HasSubstr("others than its owner may use it"));
}

}  // namespace
}  // namespace terrace::server
