#include "backends/remote/membership.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "backends/remote/tests/fake_server.h"

namespace terrace::remote {
namespace {

std::vector<std::string> Names(const std::vector<std::shared_ptr<ServerLink>>& links) {
  std::vector<std::string> names;
  for (const auto& link : links) names.push_back(link->name());
  return names;
}

using List = std::vector<std::string>;

TEST(MembershipTest, FormerServersAreAskedDuringTheGrace) {
  TestEnvironment environment;
  environment.shared->options.addresses = {"127.0.0.1:1", "127.0.0.1:2"};
  const auto membership = std::make_shared<Membership>(environment.shared);
  membership->Start();
  const ServerListRef first = membership->servers();
  EXPECT_EQ(Names(first->current), (List{"127.0.0.1:1", "127.0.0.1:2"}));
  membership->Set({"127.0.0.1:2", "127.0.0.1:3"});
  const ServerListRef second = membership->servers();
  EXPECT_EQ(Names(second->current), (List{"127.0.0.1:2", "127.0.0.1:3"}));
  EXPECT_EQ(Names(second->former), (List{"127.0.0.1:1"}));
  EXPECT_EQ(second->current[0], first->current[1]) << "who stays keeps its link";
  EXPECT_EQ(second->Find(first->current[0]->serial()), first->current[0]);
  membership->Set({"127.0.0.1:1"});
  EXPECT_EQ(membership->servers()->current.at(0), first->current[0]) << "who comes back gets its link back";
  EXPECT_EQ(Names(membership->servers()->former), (List{"127.0.0.1:2", "127.0.0.1:3"}));
  membership->Stop();
}

TEST(MembershipTest, WhoMustNotGetTheTokenIsLeftOut) {
  TestEnvironment environment;
  environment.shared->options.token = "secret";
  const auto membership = std::make_shared<Membership>(environment.shared);
  membership->Set({"10.0.0.1:1", "127.0.0.1:2", "nonsense"});
  EXPECT_EQ(Names(membership->servers()->current), (List{"127.0.0.1:2"}));
}

TEST(MembershipTest, TheFileIsReadAgainAndAWrongOneChangesNothing) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "terrace_remote_servers";
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  TestEnvironment environment;
  environment.shared->options.address_file = path;
  const auto membership = std::make_shared<Membership>(environment.shared);
  write("# servers\n 127.0.0.1:1  # first\n\n127.0.0.1:2\n127.0.0.1:1\n");
  membership->CheckFile();
  EXPECT_EQ(Names(membership->servers()->current), (List{"127.0.0.1:1", "127.0.0.1:2"}));
  write("127.0.0.1:1\nnot an address\n");
  membership->CheckFile();
  EXPECT_EQ(Names(membership->servers()->current), (List{"127.0.0.1:1", "127.0.0.1:2"}));
  std::filesystem::remove(path);
  membership->CheckFile();
  EXPECT_EQ(Names(membership->servers()->current), (List{"127.0.0.1:1", "127.0.0.1:2"}));
  write("127.0.0.1:3");
  membership->CheckFile();
  EXPECT_EQ(Names(membership->servers()->current), (List{"127.0.0.1:3"}));
  std::filesystem::remove(path);
}

TEST(MembershipTest, AddressFilesAreBounded) {
  EXPECT_EQ(ParseAddressFile("a:1\nb:x\n").status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(ParseAddressFile("a:1\nb:x\n").status().message().find("line 2"), std::string_view::npos);
  std::string many;
  for (int i = 1; i <= 257; ++i) many += "a:" + std::to_string(i) + "\n";
  EXPECT_EQ(ParseAddressFile(many).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(ParseAddressFile("")->empty());
}

}  // namespace
}  // namespace terrace::remote
