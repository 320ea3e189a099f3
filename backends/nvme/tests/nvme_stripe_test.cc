// Several directories as one tier, on the real file system.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "backends/nvme/tests/nvme_test_store.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class NvmeStripeTest : public ::testing::Test {
 protected:
  NvmeStripeTest() {
    fs::create_directory(store_.root() / "device");
    options_ = store_.options();
    options_.more_directories = {second().string()};
    for (uint64_t seed = 1; seed <= 40; ++seed) objects_.push_back(MakeNvmeObject(seed, 64 * kKiB));
  }
  fs::path second() const { return store_.root() / "device" / "tier"; }
  void Open() {
    const Status status = store_.TryOpen(options_);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  size_t NumFound() {
    size_t found = 0;
    for (const TestObject& object : objects_) {
      BufferRef dst;
      const GetResult result = store_.Get(object, &dst);
      if (!result.status.ok()) {
        EXPECT_EQ(result.status.code(), StatusCode::kNotFound);
        continue;
      }
      EXPECT_TRUE(object.Holds(dst));
      ++found;
    }
    return found;
  }

  NvmeTestStore store_;
  NvmeOptions options_;
  std::vector<TestObject> objects_;
};

TEST_F(NvmeStripeTest, BothDirectoriesServeAndTheirFiguresAddUp) {
  Open();
  for (const TestObject& object : objects_) ASSERT_TRUE(store_.Put(object).ok());
  EXPECT_EQ(NumFound(), 40u);
  const uint64_t used = 40 * (64 * kKiB + kTierPageBytes);
  EXPECT_EQ(store_.backend().used_bytes(), used);
  EXPECT_EQ(store_.Metric("terrace_nvme_used_bytes"), static_cast<int64_t>(used));
  EXPECT_EQ(store_.Metric("terrace_nvme_live_objects"), 40);
  EXPECT_LE(store_.backend().capacity_bytes(), 128 * kMiB);
  EXPECT_GT(store_.backend().capacity_bytes(), 120 * kMiB);
  store_.Close();
  Open();
  EXPECT_EQ(NumFound(), 40u);
}

TEST_F(NvmeStripeTest, ADeviceThatIsGoneTakesOnlyItsOwnObjects) {
  Open();
  for (const TestObject& object : objects_) ASSERT_TRUE(store_.Put(object).ok());
  store_.Close();
  fs::rename(store_.root() / "device", store_.root() / "away");
  Open();
  const size_t left = NumFound();
  EXPECT_GT(left, 5u);
  EXPECT_LT(left, 35u);
  store_.Close();
  fs::rename(store_.root() / "away", store_.root() / "device");
  Open();
  EXPECT_EQ(NumFound(), 40u) << "and back";
  store_.Close();
  // One directory alone is what it was; the other's are found when it is named again.
  options_.more_directories.clear();
  Open();
  EXPECT_EQ(NumFound(), left);
}

TEST_F(NvmeStripeTest, WhatSomebodyHasToDecideAboutIsAnError) {
  Open();
  store_.Close();
  {
    NvmeTestStore other;
    NvmeOptions held = options_;
    held.directory = second().string();
    held.more_directories.clear();
    ASSERT_TRUE(other.TryOpen(held).ok());
    const Status status = store_.TryOpen(options_);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.ToString(), HasSubstr("is held by process"));
  }
  fs::remove_all(second());
  fs::copy(store_.path(), second(), fs::copy_options::recursive);
  const Status copied = store_.TryOpen(options_);
  EXPECT_EQ(copied.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(copied.ToString(), HasSubstr("is a copy of"));
  fs::remove_all(second());
  fs::create_directory(second());
  std::ofstream(second() / "somebody's") << "file";
  EXPECT_EQ(store_.TryOpen(options_).code(), StatusCode::kDataLoss);
  options_.directory = (store_.root() / "nowhere" / "a").string();
  options_.more_directories = {(store_.root() / "nowhere" / "b").string()};
  EXPECT_EQ(store_.TryOpen(options_).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace terrace
