#include "connectors/server/server_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "connectors/server/strict_json.h"

namespace terrace::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct Read {
  ServerConfig config;
  std::string error;  // empty: right
};

Read ReadAll(std::string_view file, const std::vector<FlagValue>& flags = {}) {
  Mistakes mistakes;
  Read read;
  read.config = ReadServerConfig(file, flags, mistakes);
  CheckTogether(read.config, mistakes);
  const Status status = mistakes.ToStatus();
  EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument);
  read.error = std::string(status.message());
  return read;
}

std::string ErrorOf(std::string_view file, const std::vector<FlagValue>& flags = {}) {
  const Read read = ReadAll(file, flags);
  EXPECT_NE(read.error, "") << file;
  return read.error;
}

TEST(ServerConfigTest, WithoutAnythingItListensOnLoopbackAlone) {
  const Read read = ReadAll("");
  EXPECT_EQ(read.error, "");
  EXPECT_THAT(read.config.listen, ElementsAre("127.0.0.1:7420"));
  EXPECT_EQ(read.config.metrics_port, kDefaultMetricsPort);
  EXPECT_EQ(read.config.host_bytes, uint64_t{1} << 30);
  EXPECT_TRUE(read.config.bulk);
}

TEST(ServerConfigTest, EveryFieldOfTheFile) {
  const Read read = ReadAll(R"({
    "listen": ["127.0.0.1:1", "[::1]:2", ":3"], "unix": "/run/t.sock", "host_bytes": "64MiB",
    "nvme_dir": "/n", "nvme_bytes": 1073741824, "nvme_key_file": "/k", "tls_cert": "/c", "tls_key": "/p",
    "tls_client_ca": "/a", "token_file": "/t", "metrics_port": 0, "drain_seconds": 7, "bulk": false,
    "bulk_connections": 2, "shm": "off", "staging_bytes": "2MiB", "shm_users": [1000, "1001"],
    "max_connections": 5, "max_message_bytes": "4MiB", "max_sessions": 6, "session_ttl_seconds": 30,
    "log_level": "debug", "allow_plaintext": true, "allow_anyone": false})");
  EXPECT_EQ(read.error, "");
  const ServerConfig& config = read.config;
  EXPECT_THAT(config.listen, ElementsAre("127.0.0.1:1", "[::1]:2", "127.0.0.1:3"));
  EXPECT_EQ(config.unix_path, "/run/t.sock");
  EXPECT_EQ(config.host_bytes, uint64_t{64} << 20);
  EXPECT_EQ(config.nvme_dir, "/n");
  EXPECT_EQ(config.nvme_bytes, uint64_t{1} << 30);
  EXPECT_EQ(config.nvme_key_file, "/k");
  EXPECT_EQ(config.tls_cert + config.tls_key + config.tls_client_ca + config.token_file, "/c/p/a/t");
  EXPECT_EQ(config.metrics_port, 0);
  EXPECT_EQ(config.drain_seconds, 7u);
  EXPECT_FALSE(config.bulk);
  EXPECT_EQ(config.bulk_connections, 2u);
  EXPECT_FALSE(config.shm);
  EXPECT_EQ(config.staging_bytes, uint64_t{2} << 20);
  EXPECT_THAT(config.shm_users, ElementsAre(1000, 1001));
  EXPECT_EQ(config.max_connections, 5u);
  EXPECT_EQ(config.max_message_bytes, uint64_t{4} << 20);
  EXPECT_EQ(config.max_sessions, 6u);
  EXPECT_EQ(config.session_ttl_seconds, 30u);
  EXPECT_EQ(config.log_level, LogLevel::kDebug);
  EXPECT_TRUE(config.allow_plaintext);
  EXPECT_FALSE(config.allow_anyone);
}

TEST(ServerConfigTest, FlagsOverrideTheFile) {
  const Read read = ReadAll(R"({"listen": ["127.0.0.1:1"], "host_bytes": "64MiB", "drain_seconds": 7})",
                            {{"listen", {"127.0.0.1:8", "localhost:9"}},
                             {"host_bytes", {"128MiB"}},
                             {"metrics_port", {"off"}},
                             {"bulk", {"off"}},
                             {"allow_plaintext", {}}});
  EXPECT_EQ(read.error, "");
  EXPECT_THAT(read.config.listen, ElementsAre("127.0.0.1:8", "localhost:9"));
  EXPECT_EQ(read.config.host_bytes, uint64_t{128} << 20);
  EXPECT_EQ(read.config.drain_seconds, 7u);
  EXPECT_FALSE(read.config.metrics_port.has_value());
  EXPECT_FALSE(read.config.bulk);
  EXPECT_TRUE(read.config.allow_plaintext);
}

TEST(ServerConfigTest, AllMistakesAreInOneMessage) {
  const std::string error =
      ErrorOf(R"({"host_byte": 1, "host_bytes": "12x", "drain_seconds": -1, "bulk": 3})",
              {{"metrics_port", {"65536"}}, {"log_level", {"loud"}}, {"steam", {"on"}}});
  EXPECT_THAT(error, HasSubstr("7 mistakes\n"));
  EXPECT_THAT(error, HasSubstr("\n  host_byte: is no key of this file; there are: listen, unix, host_bytes"));
  EXPECT_THAT(error, HasSubstr("\n  host_bytes: \"12x\" is not allowed; allowed: 16.0 MiB to "));
  EXPECT_THAT(error,
              HasSubstr("\n  drain_seconds: -1 is not allowed; allowed: a whole number from 0 to 3600"));
  EXPECT_THAT(error, HasSubstr("\n  bulk: 3 is not allowed; allowed: on, off"));
  EXPECT_THAT(error, HasSubstr("\n  --metrics-port: \"65536\" is not allowed; allowed: a port from 0"));
  EXPECT_THAT(error,
              HasSubstr("\n  --log-level: \"loud\" is not allowed; allowed: debug, info, warning, error"));
  EXPECT_THAT(error, HasSubstr("\n  steam: is no flag"));
}

// Each field refuses each of these, and says what it takes.
TEST(ServerConfigTest, EveryFieldRefusesWhatIsNotOfItsKind) {
  const std::set<std::string> switches = {"bulk", "shm", "allow_plaintext", "allow_anyone"};
  for (const ConfigField& field : ServerConfigFields()) {
    for (const char* value :
         {"null", "{}", "-1", "1.5", "\"\"", "\"no such value\\u0000\"", "[[]]", "true"}) {
      if (switches.contains(field.key) && std::string(value) == "true") continue;
      // Any text that is not empty may be a path.
      if (std::string(value).starts_with("\"no") && field.type_name == "FILE") continue;
      if (std::string(value).starts_with("\"no") && field.type_name == "DIR") continue;
      EXPECT_THAT(ErrorOf("{\"" + field.key + "\": " + value + "}"), HasSubstr("\n  " + field.key + ": "))
          << value;
    }
    const FlagValue twice{field.key, {"1", "2"}};
    if (field.form == ConfigField::Form::kValue) {
      EXPECT_THAT(ErrorOf("", {twice}), HasSubstr(field.flag() + ": is given 2 times"));
    }
  }
}

TEST(ServerConfigTest, LimitsOfNumbers) {
  const auto refused = [](const std::string& file) { return ReadAll(file).error; };
  EXPECT_THAT(refused(R"({"host_bytes": 16777215})"), HasSubstr("host_bytes: 16777215 is not allowed"));
  EXPECT_EQ(refused(R"({"host_bytes": 16777216})"), "");
  EXPECT_THAT(refused(R"({"host_bytes": "4096TiB"})"), HasSubstr("host_bytes: \"4096TiB\""));
  EXPECT_THAT(refused(R"({"drain_seconds": 3601})"), HasSubstr("3601"));
  EXPECT_EQ(refused(R"({"drain_seconds": 3600})"), "");
  EXPECT_THAT(refused(R"({"drain_seconds": 18446744073709551616})"), HasSubstr("drain_seconds"));
  EXPECT_THAT(refused(R"({"bulk_connections": 9})"), HasSubstr("bulk_connections: 9"));
  EXPECT_THAT(refused(R"({"shm_users": [4294967295]})"), HasSubstr("user ids"));
  EXPECT_THAT(refused(R"({"unix": "relative"})"), HasSubstr("absolute path"));
  EXPECT_THAT(refused("{\"unix\": \"/" + std::string(102, 'x') + "\"}"), HasSubstr("at most 102 bytes"));
  EXPECT_EQ(refused("{\"unix\": \"/" + std::string(101, 'x') + "\"}"), "");
}

TEST(ServerConfigTest, BeyondLoopbackOnlyWithTlsAndTokens) {
  const std::string file = R"({"listen": "0.0.0.0:7420"})";
  EXPECT_THAT(ErrorOf(file), HasSubstr("2 mistakes"));
  EXPECT_THAT(ErrorOf(file),
              HasSubstr("listen: 0.0.0.0:7420 is not allowed; allowed: beyond loopback only with tls_cert"));
  EXPECT_THAT(ErrorOf(file), HasSubstr("beyond loopback only with token_file, or with allow_anyone"));
  const FlagValue cert{"tls_cert", {"/c"}}, key{"tls_key", {"/k"}}, tokens{"token_file", {"/t"}};
  EXPECT_EQ(ReadAll(file, {cert, key, tokens}).error, "");
  EXPECT_THAT(ErrorOf(file, {cert, key}), Not(HasSubstr("allow_plaintext")));
  EXPECT_THAT(ErrorOf(file, {tokens}), Not(HasSubstr("allow_anyone")));
  EXPECT_EQ(ReadAll(file, {{"allow_plaintext", {}}, {"allow_anyone", {}}}).error, "");
  EXPECT_THAT(ErrorOf(file, {{"allow_plaintext", {}}}), HasSubstr("1 mistake\n"));
  EXPECT_THAT(ErrorOf(file, {{"allow_anyone", {}}}), HasSubstr("1 mistake\n"));
  for (const char* host : {"127.8.9.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", ""}) {
    EXPECT_EQ(ReadAll(std::string("{\"listen\": \"") + host + ":1\"}").error, "") << host;
  }
  for (const char* host :
       {"[::]", "10.0.0.1", "example.org", "127.0.0.1.nip.io", "[::ffff:10.0.0.1]", "128.0.0.1"}) {
    EXPECT_THAT(ErrorOf(std::string("{\"listen\": \"") + host + ":1\"}"), HasSubstr("2 mistakes")) << host;
  }
}

TEST(ServerConfigTest, AddressesThatAreNone) {
  for (const char* text :
       {"7420", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:x", "127.0.0.1:-1", "::1:7420",
        "[::1:7420", "[]:1", "[127.0.0.1]:1", "a b:1", "unix:/x:1", "host/:1"}) {
    EXPECT_FALSE(ParseListenAddress(text).has_value()) << text;
    EXPECT_THAT(ErrorOf(std::string("{\"listen\": \"") + text + "\"}"), HasSubstr("HOST:PORT")) << text;
  }
  const std::optional<ListenAddress> address = ParseListenAddress("[::1]:65535");
  ASSERT_TRUE(address.has_value());
  EXPECT_EQ(address->host, "::1");
  EXPECT_EQ(address->port, 65535);
  EXPECT_TRUE(address->is_loopback);
}

TEST(ServerConfigTest, FieldsThatGoTogether) {
  EXPECT_THAT(ErrorOf(R"({"listen": []})"), HasSubstr("at least one address, or none together with unix"));
  EXPECT_EQ(ReadAll(R"({"listen": [], "unix": "/s"})").error, "");
  EXPECT_THAT(ErrorOf(R"({"listen": ["127.0.0.1:1", ":1"]})"), HasSubstr("each address once"));
  EXPECT_EQ(ReadAll(R"({"listen": ["127.0.0.1:0", ":0"]})").error, "");
  EXPECT_THAT(ErrorOf(R"({"nvme_dir": "/n"})"), HasSubstr("nvme_bytes: is missing"));
  EXPECT_THAT(ErrorOf(R"({"nvme_bytes": "1GiB"})"), HasSubstr("nvme_dir: is missing"));
  EXPECT_THAT(ErrorOf(R"({"nvme_key_file": "/k"})"), HasSubstr("only together with nvme_dir"));
  EXPECT_THAT(ErrorOf(R"({"tls_cert": "/c"})"), HasSubstr("tls_key: is missing"));
  EXPECT_THAT(ErrorOf(R"({"tls_key": "/k"})"), HasSubstr("tls_cert: is missing"));
  EXPECT_THAT(ErrorOf(R"({"tls_client_ca": "/a"})"), HasSubstr("only together with tls_cert"));
  // A field that was refused is not called missing as well.
  EXPECT_THAT(ErrorOf(R"({"nvme_dir": "/n", "nvme_bytes": "x"})"), HasSubstr("1 mistake\n"));
  EXPECT_THAT(ErrorOf(R"({"nvme_dir": "/n"})", {{"nvme_bytes", {"x"}}}), HasSubstr("1 mistake\n"));
}

TEST(StrictJsonTest, SaysWhereAndNeverWhat) {
  const auto error = [](std::string_view text) {
    const Result<nlohmann::json> parsed = ParseStrictJson(text);
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << text;
    return std::string(parsed.status().message());
  };
  EXPECT_EQ(error("{\n  \"a\": secret-token }"), "is no valid JSON at line 2, column 8");
  EXPECT_THAT(error("{\"a\": 1"), HasSubstr("line 1"));
  EXPECT_THAT(error(""), HasSubstr("line 1, column 1"));
  EXPECT_THAT(error("{\"a\": \"\xff\"}"), HasSubstr("no valid JSON at line 1"));
  EXPECT_EQ(error("[1]"), "is no JSON object");
  EXPECT_EQ(error("{\"a\": 1e999}"), "is no valid JSON: a number is out of range");
  EXPECT_EQ(error(R"({"a": 1, "b": {"c": 1, "c": 2}, "a": 2})"), "keys that stand twice in one object: c, a");
  EXPECT_TRUE(ParseStrictJson(R"({"a": {"b": 1}, "b": [{"a": 1}, {"a": 2}]})").ok());
  EXPECT_FALSE(ParseStrictJson(std::string(100000, '[')).ok());
}

TEST(MistakesTest, LongValuesAreCut) {
  Mistakes mistakes;
  mistakes.Add("f", std::string(81, 'x'), "y");
  EXPECT_EQ(mistakes.ToStatus().message(),
            "1 mistake\n  f: " + std::string(80, 'x') + "... is not allowed; allowed: y");
  EXPECT_TRUE(Mistakes().ToStatus().ok());
}

}  // namespace
}  // namespace terrace::server
