#include "connectors/options/key_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_directory.h"

namespace terrace::options {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kHex = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";

std::string ErrorOf(const std::string& text) {
  const Result<std::vector<EncryptionKey>> keys = ParseKeys(text);
  EXPECT_EQ(keys.status().code(), StatusCode::kInvalidArgument) << text;
  return std::string(keys.status().message());
}

TEST(KeyFileTest, LinesOfAnIdAndAKey) {
  const Result<std::vector<EncryptionKey>> keys =
      ParseKeys("# ours\n\n  7 \t" + kHex + "  \r\n4294967295 " + std::string(64, 'f'));
  ASSERT_TRUE(keys.ok()) << keys.status().ToString();
  ASSERT_EQ(keys->size(), 2u);
  EXPECT_EQ((*keys)[0].id, 7u);
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ((*keys)[0].bytes[i], static_cast<std::byte>(i));
  EXPECT_EQ((*keys)[1].id, 4294967295u);
  EXPECT_EQ((*keys)[1].bytes[31], std::byte{0xff});
}

TEST(KeyFileTest, EveryErrorIsInOneMessageWithItsLine) {
  std::string not_hex = kHex;
  not_hex[40] = 'g';
  const std::string error =
      ErrorOf("1 " + kHex + "\n0 " + kHex + "\nx " + kHex + "\n# fine\n2 " + kHex.substr(1) + "\n3 " +
              not_hex + "\n4 " + kHex + " more\n1 " + kHex + "\n4294967296 " + kHex + "\n5\n");
  EXPECT_THAT(error, Not(HasSubstr("line 1:")));
  EXPECT_THAT(error, HasSubstr("line 2: begins with no id"));
  EXPECT_THAT(error, HasSubstr("line 3: begins with no id"));
  EXPECT_THAT(error, HasSubstr("line 5: 63 characters of key"));
  EXPECT_THAT(error, HasSubstr("line 6: a character of the key is no hex digit"));
  EXPECT_THAT(error, HasSubstr("line 7: something follows the key"));
  EXPECT_THAT(error, HasSubstr("line 8: id 1 is that of line 1"));
  EXPECT_THAT(error, HasSubstr("line 9: begins with no id"));
  EXPECT_THAT(error, HasSubstr("line 10: 0 characters of key"));
  EXPECT_THAT(error, Not(HasSubstr("0203")));
  EXPECT_THAT(ErrorOf(""), HasSubstr("no key in it"));
  EXPECT_THAT(ErrorOf("# only this\n"), HasSubstr("no key in it"));
}

class KeyFileOnDiskTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& text, mode_t mode) const {
    const std::string path = root_ / "keys";
    std::filesystem::remove(path);
    std::ofstream(path) << text;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  const TemporaryDirectory root_;
};

TEST_F(KeyFileOnDiskTest, OnlyItsOwnerMayUseIt) {
  for (const mode_t mode : {0600, 0400}) {
    const Result<std::vector<EncryptionKey>> keys = ReadKeyFile(Write("1 " + kHex + "\n", mode));
    ASSERT_TRUE(keys.ok()) << keys.status().ToString();
    EXPECT_EQ(keys->at(0).id, 1u);
  }
  for (const mode_t mode : {0640, 0604, 0620, 0601}) {
    const Status status = ReadKeyFile(Write("1 " + kHex + "\n", mode)).status();
    EXPECT_EQ(status.code(), StatusCode::kPermissionDenied) << mode;
    EXPECT_THAT(std::string(status.message()), HasSubstr("chmod 600"));
  }
}

TEST_F(KeyFileOnDiskTest, WhatIsNoKeyFileIsNamed) {
  EXPECT_EQ(ReadKeyFile(root_ / "none").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadKeyFile(root_.path().string()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadKeyFile("/dev/null").status().code(), StatusCode::kInvalidArgument);
  const Status loop = [&] {
    std::filesystem::create_symlink(root_ / "loop", root_ / "loop");
    return ReadKeyFile(root_ / "loop").status();
  }();
  EXPECT_EQ(loop.code(), StatusCode::kInvalidArgument) << loop.ToString();
  const Status wrong = ReadKeyFile(Write("1 abc\n", 0600)).status();
  EXPECT_EQ(wrong.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("keys\": line 1: 3 characters"));
  const std::string text = "1 " + kHex + "\n";
  EXPECT_TRUE(ReadKeyFile(Write(text + std::string(65536 - text.size(), '#'), 0600)).ok());
  const Status longer = ReadKeyFile(Write(text + std::string(65537 - text.size(), '#'), 0600)).status();
  EXPECT_THAT(std::string(longer.message()), HasSubstr("longer than 64 KiB"));
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything: a file without rights cannot be tried";
  EXPECT_EQ(ReadKeyFile(Write(text, 0)).status().code(), StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace terrace::options
