#include "connectors/server/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "connectors/server/tenant_table.h"
#include "tests/support/temporary_directory.h"

namespace terrace::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr TierTotals kTotals{1024 * kMiB, 4096 * kMiB};
const std::string kToken = "a-token-of-20-chars!";

std::string Hex(const std::string& digest) {
  std::string hex;
  for (const unsigned char c : digest) {
    char text[3];
    std::snprintf(text, sizeof(text), "%02x", c);
    hex += text;
  }
  return hex;
}

TenantFile Parsed(const std::string& text) {
  Mistakes mistakes;
  TenantFile file = ParseTenants(text, kTotals, mistakes);
  EXPECT_EQ(mistakes.ToStatus().ToString(), "Ok") << text;
  return file;
}

std::string ErrorOf(const std::string& text) {
  Mistakes mistakes;
  ParseTenants(text, kTotals, mistakes);
  EXPECT_FALSE(mistakes.empty()) << text;
  return std::string(mistakes.ToStatus().message());
}

// A file of one tenant, with these members beside name, tokens and rights.
std::string One(const std::string& more) {
  return R"({"tenants": [{"name": "a", "tokens": [], "rights": ["read"])" +
         (more.empty() ? "" : ", " + more) + "}]}";
}

TEST(TokenFileTest, TokensInBothForms) {
  const TenantFile file = Parsed(R"({"tenants": [
    {"name": "a", "tokens": [")" +
                                 kToken + R"(", "sha256:)" + Hex(TokenDigest("another-secret-token")) + R"("],
     "rights": ["read", "write"], "limits": {"max_sessions": 3, "max_streams": 4, "max_inflight_bytes": "2MiB",
     "calls_per_second": 5, "bytes_per_second": "1GB"}},
    {"name": "b", "namespace": "shared/x", "tokens": [], "rights": ["admin"],
     "quota": {"host_bytes": "256MiB", "nvme_bytes": "1GiB"}}]})");
  ASSERT_EQ(file.entries.size(), 2u);
  const Tenant& a = file.entries[0].tenant;
  EXPECT_EQ(a.name_space, "a");
  EXPECT_TRUE(a.may_read && a.may_write && !a.may_admin);
  EXPECT_EQ(a.limits, (TenantLimits{3, 4, 2 * kMiB, 5, 1'000'000'000}));
  EXPECT_THAT(file.entries[0].token_sha256,
              ::testing::ElementsAre(TokenDigest(kToken), TokenDigest("another-secret-token")));
  const Tenant& b = file.entries[1].tenant;
  EXPECT_EQ(b.name_space, "shared/x");
  EXPECT_TRUE(!b.may_read && !b.may_write && b.may_admin);
  EXPECT_EQ(b.limits, TenantLimits());
  ASSERT_EQ(file.quotas.size(), 2u);
  EXPECT_EQ(file.quotas[0], (NamespaceQuota{"a", 768 * kMiB, 3072 * kMiB}));  // what the other leaves
  EXPECT_EQ(file.quotas[1], (NamespaceQuota{"shared/x", 256 * kMiB, 1024 * kMiB}));
}

TEST(TokenFileTest, DigestIsSha256) {
  EXPECT_EQ(Hex(TokenDigest("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(TokenFileTest, NamespacesWithoutQuotaShareTheRest) {
  const TenantFile file = Parsed(R"({"tenants": [
    {"name": "a", "tokens": [], "rights": ["read"]}, {"name": "b", "tokens": [], "rights": ["read"]},
    {"name": "c", "namespace": "b", "tokens": [], "rights": ["read"]},
    {"name": "d", "tokens": [], "rights": ["read"], "quota": {"host_bytes": "24MiB"}}]})");
  ASSERT_EQ(file.quotas.size(), 3u);
  EXPECT_EQ(file.quotas[0], (NamespaceQuota{"a", 500 * kMiB, 2048 * kMiB}));
  EXPECT_EQ(file.quotas[1], (NamespaceQuota{"b", 500 * kMiB, 2048 * kMiB}));
  EXPECT_EQ(file.quotas[2], (NamespaceQuota{"d", 24 * kMiB, 0}));
}

TEST(TokenFileTest, AFileThatLetsEverybodyInIsRefused) {
  for (const char* text : {"{}", R"({"tenants": []})", R"({"tenants": {}})", R"({"tenants": null})"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("tenants: is no list of 1 to 1000 tenants")) << text;
  }
  EXPECT_THAT(ErrorOf("x"), HasSubstr("token_file: is no valid JSON at line 1"));
}

TEST(TokenFileTest, EveryMistakeIsNamed) {
  const std::string error = ErrorOf(R"({"tenant": 1, "tenants": [
    {"name": "a", "tokens": ["short", "sha256:12", 5, "with a space in the token"], "right": [], "rights": []},
    {"name": "a", "tokens": 7, "rights": ["read", "execute"], "limits": {"max_stream": 1, "max_sessions": 0,
     "max_streams": "9", "max_inflight_bytes": 1, "bytes_per_second": "fast", "calls_per_second": 4294967296}},
    {"name": "sp ace"}, 7, {"tokens": []},
    {"name": "q", "namespace": "", "tokens": [], "rights": ["read"], "quota": {"host_bytes": 1, "disk": 2}}]})");
  for (const char* wanted : {"\n  tenant: is no key of this file; there are: tenants",
                             "\n  tenants[0].tokens[0]: is not allowed (and",
                             "\n  tenants[0].tokens[1]: ",
                             "\n  tenants[0].tokens[2]: ",
                             "\n  tenants[0].tokens[3]: ",
                             "\n  tenants[0].right: is no key",
                             "\n  tenants[0].rights: [] is not allowed",
                             "\n  tenants[1].name: is that of tenants[0]",
                             "\n  tenants[1].tokens: is no list",
                             "\n  tenants[1].rights: \"execute\" is not allowed",
                             "\n  tenants[1].limits.max_stream: is no key",
                             "\n  tenants[1].limits.max_sessions: 0 is not",
                             "\n  tenants[1].limits.max_streams: \"9\" is not",
                             "\n  tenants[1].limits.max_inflight_bytes: 1 is not",
                             "\n  tenants[1].limits.bytes_per_second: \"fast\"",
                             "\n  tenants[1].limits.calls_per_second: 4294967296 is not",
                             "\n  tenants[2].name: \"sp ace\" is not",
                             "\n  tenants[3]: is no object",
                             "\n  tenants[4].name: nothing is not allowed",
                             "\n  tenants[5].namespace: \"\" is not",
                             "\n  tenants[5].quota.disk: is no key",
                             "\n  tenants[5].quota.host_bytes: 1 is not"}) {
    EXPECT_THAT(error, HasSubstr(wanted));
  }
  EXPECT_THAT(error, Not(HasSubstr("short")));
  EXPECT_THAT(error, Not(HasSubstr("with a space")));
  EXPECT_THAT(ErrorOf(One(R"("quota": 5)")), HasSubstr("tenants[0].quota: is no object"));
  EXPECT_THAT(ErrorOf(One(R"("quota": {})")), HasSubstr("tenants[0].quota.host_bytes: is missing"));
  EXPECT_THAT(ErrorOf(One(R"("limits": [])")), HasSubstr("tenants[0].limits: is no object"));
}

TEST(TokenFileTest, ATokenBelongsToOneTenant) {
  const std::string error = ErrorOf(R"({"tenants": [
    {"name": "a", "tokens": [")" + kToken +
                                    R"("], "rights": ["read"]},
    {"name": "b", "tokens": ["sha256:)" +
                                    Hex(TokenDigest(kToken)) + R"("], "rights": ["read"]}]})");
  EXPECT_THAT(error, HasSubstr("tenants[1].tokens[0]: is the token of tenants[0].tokens[0]"));
  EXPECT_THAT(error, Not(HasSubstr(kToken)));
}

TEST(TokenFileTest, Quotas) {
  EXPECT_THAT(ErrorOf(One(R"("quota": {"host_bytes": "2GiB"})")),
              HasSubstr("together more than the server has"));
  EXPECT_THAT(ErrorOf(One(R"("quota": {"host_bytes": "1GiB", "nvme_bytes": "4.1GiB"})")),
              HasSubstr("nvme_bytes 4.0 GiB"));
  EXPECT_THAT(ErrorOf(One(R"("quota": {"host_bytes": "1GiB", "nvme_bytes": "1MiB"})")),
              HasSubstr("quota.nvme_bytes: \"1MiB\" is not allowed; allowed: 64.0 MiB"));
  const auto two = [](const char* second) {
    return std::string(R"({"tenants": [
      {"name": "a", "tokens": [], "rights": ["read"], "quota": {"host_bytes": "1020MiB"}},
      {"name": "b", "tokens": [], "rights": ["read"]}, )") +
           second + "]}";
  };
  EXPECT_THAT(ErrorOf(two(R"({"name": "c", "namespace": "a", "tokens": [], "rights": ["read"],
                            "quota": {"host_bytes": "64MiB"}})")),
              HasSubstr("tenants[2].quota: is not that of tenants[0].quota"));
  EXPECT_THAT(ErrorOf(two(R"({"name": "c", "namespace": "a", "tokens": [], "rights": ["read"],
                            "quota": {"host_bytes": "1020MiB"}})")),
              HasSubstr("leave the namespace b, which has no quota, less than 16.0 MiB"));
}

class TokenFileOnDiskTest : public ::testing::Test {
 protected:
  std::string Error() const {
    Mistakes mistakes;
    ReadTenantFile(path_, kTotals, mistakes);
    return std::string(mistakes.ToStatus().message());
  }
  const TemporaryDirectory directory_;
  const std::string path_ = directory_ / "tokens";
};

TEST_F(TokenFileOnDiskTest, IsItsOwnersAlone) {
  EXPECT_THAT(Error(), HasSubstr("token_file: \"" + path_ + "\": is not there"));
  std::ofstream(path_) << One("");
  for (const mode_t mode : {0640, 0604, 0620, 0666}) {
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    EXPECT_THAT(Error(), HasSubstr("others than its owner may use it; needed: chmod 600")) << mode;
  }
  for (const mode_t mode : {0600, 0400}) {
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    EXPECT_EQ(Error(), "") << mode;
  }
}

TEST(TenantTableTest, FindsByTokenAlone) {
  TenantTable table({{Tenant{"a", "a", true}, {TokenDigest("token-of-a"), TokenDigest("second-of-a")}},
                     {Tenant{"b", "b", true}, {TokenDigest("token-of-b")}},
                     {Tenant{"none", "none", true}, {}}});
  EXPECT_TRUE(table.needs_token());
  EXPECT_EQ(table.Find("token-of-a")->name, "a");
  EXPECT_EQ(table.Find("second-of-a")->name, "a");
  EXPECT_EQ(table.Find("token-of-b")->name, "b");
  for (const std::string& token : {std::string(), std::string("token-of-"), std::string("token-of-aa"),
                                   std::string("TOKEN-OF-A"), std::string("a"), TokenDigest("token-of-a"),
                                   std::string("token-of-a\0", 11), std::string(1 << 20, 'x')}) {
    EXPECT_EQ(table.Find(token), nullptr) << token.size();
  }
}

TEST(TenantTableTest, ADigestOfAnotherLengthMatchesNothing) {
  TenantTable table({{Tenant{"a", "a", true}, {"", TokenDigest("x").substr(0, 31)}}});
  EXPECT_EQ(table.Find("x"), nullptr);
  EXPECT_EQ(table.Find(""), nullptr);
}

TEST(TenantTableTest, WithoutEntriesEverybodyIsTheDefaultTenant) {
  TenantTable table({});
  EXPECT_FALSE(table.needs_token());
  const TenantRef tenant = table.Find("whatever");
  ASSERT_NE(tenant, nullptr);
  EXPECT_EQ(tenant, table.Find(""));
  EXPECT_EQ(tenant->name_space, "default");
  EXPECT_TRUE(tenant->may_read && tenant->may_write && tenant->may_admin);
}

TEST(TenantTableTest, WhoLostSomethingIsNotStillATenant) {
  TenantTable table({{Tenant{"a", "a", true, true}, {TokenDigest("1")}}});
  const TenantRef a = table.Find("1");
  table.Replace({{Tenant{"a", "a", true, true, true}, {TokenDigest("2")}}});
  EXPECT_TRUE(table.StillHas(*a)) << "more rights, another token";
  table.Replace({{Tenant{"a", "a", true, false}, {TokenDigest("1")}}});
  EXPECT_FALSE(table.StillHas(*a)) << "a right less";
  table.Replace({{Tenant{"a", "b", true, true}, {TokenDigest("1")}}});
  EXPECT_FALSE(table.StillHas(*a)) << "another namespace";
  table.Replace({{Tenant{"b", "a", true, true}, {TokenDigest("1")}}});
  EXPECT_FALSE(table.StillHas(*a));
  const TenantTable open({});
  EXPECT_TRUE(open.StillHas(*open.Find("")));
  EXPECT_FALSE(open.StillHas(*a));
}

TEST(TenantTableTest, ReplaceKeepsTenantsThatDidNotChange) {
  TenantTable table(
      {{Tenant{"a", "a", true}, {TokenDigest("1")}}, {Tenant{"b", "b", true}, {TokenDigest("2")}}});
  const TenantRef a = table.Find("1"), b = table.Find("2");
  table.Replace(
      {{Tenant{"a", "a", true}, {TokenDigest("3")}}, {Tenant{"b", "b", false}, {TokenDigest("2")}}});
  EXPECT_EQ(table.Find("1"), nullptr) << "a token that was taken away";
  EXPECT_EQ(table.Find("3"), a);
  ASSERT_NE(table.Find("2"), nullptr);
  EXPECT_NE(table.Find("2"), b);
  EXPECT_FALSE(table.Find("2")->may_read);
  EXPECT_TRUE(b->may_read) << "calls in flight keep what they were given";
}

}  // namespace
}  // namespace terrace::server
