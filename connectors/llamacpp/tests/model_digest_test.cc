#include "connectors/llamacpp/model_digest.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "connectors/llamacpp/tests/engine_host.h"

namespace terrace::llamacpp {
namespace {

void WriteFile(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(ModelDigestsTest, IsSha256OfTheBytes) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "abc";
  WriteFile(path, "abc");
  ModelDigests digests;
  const Result<Digest> digest = digests.OfFile(path);
  ASSERT_TRUE(digest.ok());
  EXPECT_EQ(digest->ToHex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(ModelDigestsTest, RemembersUntilTheFileChanges) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "weights";
  WriteFile(path, std::string(9 << 20, 'x'));
  ModelDigests digests;
  const Result<Digest> first = digests.OfFile(path);
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(digests.OfFile(path).ok());
  EXPECT_EQ(digests.files_read(), 1u);
  WriteFile(path, std::string(9 << 20, 'x') + "y");
  const Result<Digest> second = digests.OfFile(path);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(digests.files_read(), 2u);
  EXPECT_NE(first->ToHex(), second->ToHex());
}

TEST(ModelDigestsTest, PartsCountInTheirOrder) {
  const TemporaryDirectory directory;
  const std::string a = directory.path() / "a", b = directory.path() / "b";
  WriteFile(a, "one");
  WriteFile(b, "two");
  ModelDigests digests;
  EXPECT_NE(*digests.OfParts({a, b}), *digests.OfParts({b, a}));
  EXPECT_NE(*digests.OfParts({a, b}), *digests.OfParts({a}));
  EXPECT_EQ(*digests.OfParts({a}), digests.OfFile(a)->ToHex());
  EXPECT_EQ(digests.files_read(), 2u);
}

TEST(ModelDigestsTest, NamesTheFileThatIsMissing) {
  const TemporaryDirectory directory;
  ModelDigests digests;
  const Result<Digest> missing = digests.OfFile(directory.path() / "gone.gguf");
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_NE(missing.status().ToString().find("gone.gguf"), std::string::npos);
  EXPECT_EQ(digests.OfFile(directory.path()).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace terrace::llamacpp
