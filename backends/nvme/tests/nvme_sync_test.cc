// Syncs that fail: nothing is promised on the word of a later one.
#include <gtest/gtest.h>

#include <atomic>

#include "backends/nvme/tests/rebuild_fixture.h"

namespace terrace {
namespace {

class NvmeSyncTest : public RebuildFixture {
 protected:
  // The next `n` syncs of segments fail.
  void FailSyncs(int n) { failing_ = n; }
  void OpenWith(Durability durability) {
    faults_->sync = [this](const std::string& name) {
      if (!name.starts_with("seg-")) return OkStatus();
      return failing_.fetch_sub(1) > 0 ? UnavailableError("sync of " + name) : OkStatus();
    };
    NvmeOptions options = store_.options();
    options.durability = durability;
    ASSERT_TRUE(store_
                    .TryAttach(MakeNvmeBackendOnDisk(
                        options, std::make_unique<FaultyDisk>(
                                     MakeSystemDisk(options.directory, options.io_engine), faults_)))
                    .ok());
  }

  std::atomic<int> failing_{0};
  std::shared_ptr<FileFaults> faults_ = std::make_shared<FileFaults>();
};

TEST_F(NvmeSyncTest, AFlushAfterAFailedOneDoesNotPromiseWhatThatOneLost) {
  OpenWith(Durability::kFlush);
  const TestObject object = PutNew(1);
  EXPECT_TRUE(store_.Flush().ok());
  PutNew(2);
  FailSyncs(1);
  EXPECT_EQ(store_.Flush().code(), StatusCode::kUnavailable);
  const Status again = store_.Flush();
  EXPECT_EQ(again.code(), StatusCode::kUnavailable);
  EXPECT_NE(again.ToString().find("since the start"), std::string::npos) << again.ToString();
  store_.ExpectHas(object);
  EXPECT_TRUE(store_.Put(MakeNvmeObject(3, 8 * kKiB)).ok()) << "the tier goes on";
}

TEST_F(NvmeSyncTest, ASyncedPutIsRefusedWhereItsSyncFailed) {
  OpenWith(Durability::kSync);
  FailSyncs(1);
  const TestObject object = MakeNvmeObject(1, 8 * kKiB);
  EXPECT_EQ(store_.Put(object).code(), StatusCode::kUnavailable);
  EXPECT_EQ(store_.GetCode(object), StatusCode::kNotFound);
  EXPECT_EQ(store_.backend().used_bytes(), 0u);
  EXPECT_TRUE(store_.Put(object).ok());
  store_.ExpectHas(object);
  EXPECT_TRUE(store_.Flush().ok()) << "each Put had a sync of its own";
}

}  // namespace
}  // namespace terrace
