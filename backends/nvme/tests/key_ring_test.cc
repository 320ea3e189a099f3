// Which keys a directory takes: the table in key_ring.h, row by row.
#include "backends/nvme/key_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

EncryptionKey KeyOf(uint32_t id, int fill) {
  EncryptionKey key{.id = id};
  key.bytes.fill(static_cast<std::byte>(fill));
  return key;
}

KeyRing RingOf(std::vector<EncryptionKey> keys) { return KeyRing(keys); }

const DirectoryId kDirectory = {std::byte{1}, std::byte{2}};

TEST(KeyRingTest, OptionsAreChecked) {
  EXPECT_TRUE(ValidateKeys({}).ok());
  std::vector<EncryptionKey> keys;
  for (uint32_t id = 1; id <= 8; ++id) keys.push_back(KeyOf(id, 0x5a));
  EXPECT_TRUE(ValidateKeys(keys).ok());
  keys.push_back(KeyOf(9, 1));
  EXPECT_EQ(ValidateKeys(keys).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ValidateKeys(keys).message()), HasSubstr("9, allowed: at most 8"));
  const std::vector<EncryptionKey> zero = {KeyOf(0, 1)};
  EXPECT_THAT(std::string(ValidateKeys(zero).message()), HasSubstr("the id 0"));
  const std::vector<EncryptionKey> twice = {KeyOf(3, 1), KeyOf(4, 1), KeyOf(3, 2)};
  EXPECT_THAT(std::string(ValidateKeys(twice).message()), HasSubstr("the id 3"));
  NvmeOptions options;
  options.directory = "d";
  options.keys = twice;
  EXPECT_EQ(options.Validate().code(), StatusCode::kInvalidArgument);
}

TEST(KeyRingTest, TheNewestEncrypts) {
  EXPECT_EQ(KeyRing().newest_id(), 0u);
  EXPECT_TRUE(KeyRing().empty());
  const KeyRing ring = RingOf({KeyOf(9, 1), KeyOf(2, 2), KeyOf(4, 3)});
  EXPECT_EQ(ring.newest_id(), 9u);
  EXPECT_EQ(ring.Find(2)->bytes()[0], std::byte{2});
  EXPECT_EQ(ring.Find(3), nullptr);
}

TEST(KeyRingTest, ChecksTellKeysIdsAndDirectoriesApart) {
  const KeyCheck check = CheckOf(1, CipherKey(KeyOf(1, 1).bytes), kDirectory);
  EXPECT_EQ(check, CheckOf(1, CipherKey(KeyOf(1, 1).bytes), kDirectory));
  EXPECT_NE(check.check, CheckOf(1, CipherKey(KeyOf(1, 2).bytes), kDirectory).check);
  EXPECT_NE(check.check, CheckOf(1, CipherKey(KeyOf(1, 1).bytes), DirectoryId{}).check);
}

TEST(KeyRingTest, APlainDirectoryStaysPlain) {
  EXPECT_TRUE(KeyRing().Checks(kDirectory).empty());
  EXPECT_TRUE(KeyRing().Match(kDirectory, {}).value().empty());
  const Result<std::vector<KeyCheck>> given = RingOf({KeyOf(1, 1)}).Match(kDirectory, {});
  EXPECT_EQ(given.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(given.status().message()), HasSubstr("without encryption"));
}

TEST(KeyRingTest, TheSameKeysMatch) {
  const KeyRing ring = RingOf({KeyOf(1, 1), KeyOf(5, 5)});
  const std::vector<KeyCheck> stored = ring.Checks(kDirectory);
  ASSERT_EQ(stored.size(), 2u);
  EXPECT_EQ(ring.Match(kDirectory, stored).value(), stored);
}

TEST(KeyRingTest, AMissingOrWrongKeyIsNamed) {
  const std::vector<KeyCheck> stored = RingOf({KeyOf(1, 1), KeyOf(5, 5)}).Checks(kDirectory);
  Status none = KeyRing().Match(kDirectory, stored).status();
  EXPECT_EQ(none.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(none.message()), HasSubstr("1, 5"));
  Status missing = RingOf({KeyOf(5, 5)}).Match(kDirectory, stored).status();
  EXPECT_EQ(missing.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("key id 1 was not given"));
  Status wrong = RingOf({KeyOf(1, 1), KeyOf(5, 6)}).Match(kDirectory, stored).status();
  EXPECT_EQ(wrong.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("key id 5: not the key"));
  EXPECT_THAT(std::string(wrong.message()), Not(HasSubstr("0505")));
  // A directory's check is another one's wrong key.
  EXPECT_EQ(RingOf({KeyOf(1, 1), KeyOf(5, 5)}).Match(DirectoryId{}, stored).status().code(),
            StatusCode::kPermissionDenied);
}

TEST(KeyRingTest, ARotationAddsAHigherId) {
  const std::vector<KeyCheck> stored = RingOf({KeyOf(3, 3)}).Checks(kDirectory);
  const KeyRing rotated = RingOf({KeyOf(3, 3), KeyOf(4, 4), KeyOf(10, 1)});
  EXPECT_EQ(rotated.Match(kDirectory, stored).value(), rotated.Checks(kDirectory));
  Status lower = RingOf({KeyOf(2, 2), KeyOf(3, 3)}).Match(kDirectory, stored).status();
  EXPECT_EQ(lower.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(lower.message()), HasSubstr("above 3"));
}

}  // namespace
}  // namespace terrace
