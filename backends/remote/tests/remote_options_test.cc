#include <gtest/gtest.h>

#include <functional>

#include "backends/remote/server_address.h"
#include "terrace/remote_backend.h"

namespace terrace::remote {
namespace {

RemoteOptions Good() {
  RemoteOptions options;
  options.addresses = {"127.0.0.1:7000", "unix:/run/terrace.sock"};
  return options;
}

TEST(RemoteOptionsTest, DefaultsWithAnAddressAreValid) {
  EXPECT_TRUE(Good().Validate().ok());
  RemoteOptions by_file;
  by_file.address_file = "/etc/terrace/servers";
  EXPECT_TRUE(by_file.Validate().ok());
}

TEST(RemoteOptionsTest, EachWrongFieldIsRefusedByName) {
  using std::chrono::hours;
  using std::chrono::seconds;
  const std::vector<std::pair<std::string, std::function<void(RemoteOptions&)>>> cases = {
      {"addresses", [](RemoteOptions& o) { o.addresses.clear(); }},
      {"addresses", [](RemoteOptions& o) { o.addresses = {"host"}; }},
      {"addresses",
       [](RemoteOptions& o) {
         o.addresses = {"a:1", "a:1"};
       }},
      {"addresses", [](RemoteOptions& o) { o.addresses.assign(257, "a:1"); }},
      {"address_file", [](RemoteOptions& o) { o.address_file = std::string(5000, 'a'); }},
      {"dns_name", [](RemoteOptions& o) { o.dns_name = "name"; }},
      {"dns_name", [](RemoteOptions& o) { o.dns_name = "unix:/a"; }},
      {"replicas", [](RemoteOptions& o) { o.replicas = 0; }},
      {"replicas", [](RemoteOptions& o) { o.replicas = 4; }},
      {"membership_grace", [](RemoteOptions& o) { o.membership_grace = -seconds(1); }},
      {"token", [](RemoteOptions& o) { o.token = "two words"; }},
      {"token", [](RemoteOptions& o) { o.token = std::string(5000, 'a'); }},
      {"tls.roots", [](RemoteOptions& o) { o.tls = {.use_tls = true, .roots = "not a PEM"}; }},
      {"tls.certificate", [](RemoteOptions& o) { o.tls = {.use_tls = true, .certificate = "-----BEGIN X"}; }},
      {"tls.use_tls", [](RemoteOptions& o) { o.tls.server_name = "cache"; }},
      {"path", [](RemoteOptions& o) { o.path = static_cast<RemotePath>(9); }},
      {"path",
       [](RemoteOptions& o) {
         o.addresses = {"10.0.0.1:7000"};
         o.path = RemotePath::kSharedMemory;
       }},
      {"bulk_connections", [](RemoteOptions& o) { o.bulk_connections = 9; }},
      {"inflight_bytes", [](RemoteOptions& o) { o.inflight_bytes = 1; }},
      {"connect_deadline", [](RemoteOptions& o) { o.connect_deadline = Duration(0); }},
      {"operation_deadline", [](RemoteOptions& o) { o.operation_deadline = hours(2); }},
      {"retries", [](RemoteOptions& o) { o.retries = 6; }},
      {"breaker_failures", [](RemoteOptions& o) { o.breaker_failures = 0; }},
      {"breaker_pause", [](RemoteOptions& o) { o.breaker_pause = seconds(31); }},
  };
  for (const auto& [field, change] : cases) {
    RemoteOptions options = Good();
    change(options);
    const Status status = options.Validate();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(status.message().substr(0, field.size()), field) << status.ToString();
    EXPECT_EQ(MakeRemoteBackend(options).status().code(), StatusCode::kInvalidArgument) << field;
  }
}

TEST(RemoteOptionsTest, ATokenLeavesTheHostOnlyOverTlsOrByName) {
  RemoteOptions options = Good();
  options.token = "secret";
  EXPECT_TRUE(options.Validate().ok());
  options.addresses.push_back("10.0.0.1:7000");
  const Status refused = options.Validate();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message().find("secret"), std::string_view::npos);
  options.allow_plaintext_token = true;
  EXPECT_TRUE(options.Validate().ok());
  options.allow_plaintext_token = false;
  options.tls.use_tls = true;
  EXPECT_TRUE(options.Validate().ok());
  RemoteOptions by_file;
  by_file.address_file = "/servers";
  by_file.token = "secret";
  EXPECT_FALSE(by_file.Validate().ok()) << "the file may name any host";
}

TEST(ServerAddressTest, FormsAreTold) {
  EXPECT_EQ(ParseServerAddress("[::1]:80")->host, "::1");
  EXPECT_TRUE(ParseServerAddress("[::1]:80")->is_loopback());
  EXPECT_TRUE(ParseServerAddress("127.3.0.1:80")->is_loopback());
  EXPECT_FALSE(ParseServerAddress("128.0.0.1:80")->is_loopback());
  EXPECT_FALSE(ParseServerAddress("127.0.0.1.example.org:80")->is_loopback());
  EXPECT_EQ(ParseServerAddress("unix:/a/b")->unix_path, "/a/b");
  EXPECT_EQ(ParseServerAddress("cache-1.example:65535")->port, 65535);
  for (const char* wrong : {"", ":80", "a:0", "a:65536", "a:1x", "[::1:80", "[zz]:80", "unix:relative",
                            "unix:", "a b:80", "a:80 "})
    EXPECT_FALSE(ParseServerAddress(wrong).ok()) << wrong;
  EXPECT_FALSE(ParseServerAddress("unix:/" + std::string(107, 'a')).ok());
}

}  // namespace
}  // namespace terrace::remote
