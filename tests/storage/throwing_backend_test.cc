// A backend that throws from its calls: the manager answers with a Status or a miss, and nothing waits for
// ever.
#include "tests/support/throwing_backend.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/manager_fixture.h"

namespace terrace {
namespace {

class ThrowingBackendTest : public testing::Test {
 protected:
  void WrapDisk(bool at_once = false) {
    fixture_.wrap_disk = [this, at_once](std::unique_ptr<Backend> base) {
      auto wrapper = std::make_unique<ThrowingBackend>(std::move(base), at_once);
      throwing_ = wrapper.get();
      return wrapper;
    };
  }
  void WrapHost() {
    fixture_.wrap_host = [this](std::unique_ptr<Backend> base) {
      auto wrapper = std::make_unique<ThrowingBackend>(std::move(base));
      throwing_ = wrapper.get();
      return wrapper;
    };
  }
  static void ExpectThrown(const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kInternal) << status.ToString();
    EXPECT_NE(status.ToString().find("thrown by the test"), std::string::npos) << status.ToString();
  }

  ManagerFixture fixture_;
  ThrowingBackend* throwing_ = nullptr;
  const std::vector<Token> prompt_ = TestTokens(4 * kTestChunk);
};

TEST_F(ThrowingBackendTest, WhileTheManagerIsOpenedItIsAStatus) {
  WrapDisk(true);
  std::vector<Tier> tiers;
  tiers.push_back({.backend = fixture_.wrap_disk(MakeMemoryDisk(fixture_.platters, fixture_.disk_bytes))});
  const auto opened = StorageManager::Open(fixture_.options, std::move(tiers));
  ASSERT_FALSE(opened.ok());
  ExpectThrown(opened.status());
}

TEST_F(ThrowingBackendTest, EveryCallOfTheDiskIsAStatusOrAMiss) {
  WrapDisk();
  fixture_.Open();
  ASSERT_EQ(fixture_.Store(prompt_), 4u);
  ASSERT_TRUE(fixture_.manager->Flush().ok());
  throwing_->SetThrows(true);
  // A root that the disk cannot keep works in this process, and is no longer waited for.
  const Result<ChunkKey> root = fixture_.manager->Root(TestSpec(Cut::kNone));
  ASSERT_TRUE(root.ok()) << root.status().ToString();
  EXPECT_EQ(fixture_.Store(TestTokens(kTestChunk, 2)), 1u);
  ExpectThrown(fixture_.manager->Flush());
  EXPECT_GE(throwing_->thrown(), 3u);  // root, write, flush
  EXPECT_EQ(fixture_.LoadAll(prompt_), prompt_.size()) << "the host tier has it";
  ExpectThrown(fixture_.manager->Clear());
  throwing_->SetThrows(false);
  EXPECT_TRUE(fixture_.manager->Flush().ok());
}

TEST_F(ThrowingBackendTest, AReadThatThrowsEndsTheLoad) {
  WrapDisk();
  fixture_.with_host = false;
  fixture_.Open();
  ASSERT_EQ(fixture_.Store(prompt_), 4u);
  ASSERT_TRUE(fixture_.manager->Flush().ok());
  throwing_->SetThrows(true);
  LoadReport report;
  EXPECT_EQ(fixture_.LoadAll(prompt_, {}, &report), 0u);
  ExpectThrown(report.status);
  throwing_->SetThrows(false);
  EXPECT_EQ(fixture_.LoadAll(prompt_), prompt_.size());
}

TEST_F(ThrowingBackendTest, ABorrowThatThrowsIsAMissOfTheHostTier) {
  WrapHost();
  fixture_.Open();
  ASSERT_EQ(fixture_.Store(prompt_), 4u);
  ASSERT_TRUE(fixture_.manager->Flush().ok());
  throwing_->SetThrows(true);
  EXPECT_EQ(fixture_.LoadAll(prompt_), prompt_.size()) << "from the disk";
  EXPECT_GT(throwing_->thrown(), 0u);
  throwing_->SetThrows(false);
}

TEST_F(ThrowingBackendTest, ACloseThatThrowsIsAStatus) {
  WrapDisk();
  fixture_.Open();
  throwing_->SetThrows(true);
  ExpectThrown(fixture_.manager->Close());
  EXPECT_TRUE(fixture_.manager->Close().ok());
}

}  // namespace
}  // namespace terrace
