// A file system that is really full: a small tmpfs of the test's own, where mounting one is allowed.
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "backends/nvme/tests/nvme_test_store.h"

namespace terrace {
namespace {

class NvmeFullDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string where = (store_.root() / "small").string();
    std::filesystem::create_directory(where);
    if (mount("tmpfs", where.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, "size=40m") != 0) {
      GTEST_SKIP() << "no tmpfs can be mounted here: " << std::strerror(errno);
    }
    mounted_ = where;
    options_ = store_.options();
    options_.directory = where + "/tier";
    options_.min_free_bytes = 0;
  }
  ~NvmeFullDiskTest() override {
    store_.Drop();
    if (!mounted_.empty()) umount2(mounted_.c_str(), MNT_DETACH);
  }
  void Open() {
    const Status status = store_.TryOpen(options_);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  // Puts until one is refused; of each that succeeded the seed.
  std::vector<uint64_t> Fill(uint64_t first, Status* refused) {
    std::vector<uint64_t> stored;
    for (uint64_t seed = first; seed < first + 500; ++seed) {
      *refused = store_.Put(MakeNvmeObject(seed, kFrame));
      if (!refused->ok()) return stored;
      stored.push_back(seed);
    }
    ADD_FAILURE() << "500 objects of " << kFrame << " bytes in 40 MiB";
    return stored;
  }

  static constexpr uint64_t kFrame = 256 * kKiB;
  NvmeTestStore store_;
  NvmeOptions options_;
  std::string mounted_;
};

TEST_F(NvmeFullDiskTest, APutIsRefusedAndEverythingElseGoesOn) {
  Open();  // 128 MiB are allowed
  Status refused;
  std::vector<uint64_t> stored = Fill(1, &refused);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.ToString();
  EXPECT_GT(stored.size(), 50u);
  for (const uint64_t seed : stored) store_.ExpectHas(MakeNvmeObject(seed, kFrame));
  const uint64_t used = store_.backend().used_bytes();
  EXPECT_EQ(used, stored.size() * (kFrame + kTierPageBytes)) << "a refused Put left nothing behind";
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(store_.Erase(MakeNvmeObject(stored[0], kFrame).id, EraseMode::kErase).ok());
    stored.erase(stored.begin());
  }
  EXPECT_TRUE(store_.Put(MakeNvmeObject(900, kFrame)).ok()) << "in the place of what was erased";
  store_.Close();
  Open();
  for (const uint64_t seed : stored) store_.ExpectHas(MakeNvmeObject(seed, kFrame));
  store_.ExpectHas(MakeNvmeObject(900, kFrame));
}

// Somebody else takes the last byte: the manifest's log cannot grow either.
TEST_F(NvmeFullDiskTest, WithoutRoomForARecordNothingIsAcknowledgedThatIsNotThere) {
  Open();
  ASSERT_TRUE(store_.Put(MakeNvmeObject(1, kFrame)).ok());
  std::filesystem::path filler = mounted_ + "/filler";
  {
    std::ofstream out(filler, std::ios::binary);
    const std::string block(1 << 16, 'x');
    while (out.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
    }
  }
  std::vector<uint64_t> acknowledged = {1};
  Status status;
  for (uint64_t seed = 2; seed < 40; ++seed) {
    status = store_.Put(MakeNvmeObject(seed, kFrame));
    if (status.ok()) acknowledged.push_back(seed);
  }
  for (const uint64_t seed : acknowledged) store_.ExpectHas(MakeNvmeObject(seed, kFrame));
  std::filesystem::remove(filler);
  // Room again: the tier goes on by itself, or the Put says why it does not.
  for (uint64_t seed = 100; seed < 110; ++seed) {
    if (store_.Put(MakeNvmeObject(seed, kFrame)).ok()) acknowledged.push_back(seed);
  }
  EXPECT_GT(acknowledged.size(), 1u) << status.ToString();
  store_.Drop();
  Open();
  for (const uint64_t seed : acknowledged) store_.ExpectHas(MakeNvmeObject(seed, kFrame));
}

// Somebody removes the directory below an open tier: the files that are open serve, and no new ones can be
// made.
TEST(NvmeRemovedDirectoryTest, WhatIsOpenServesAndNothingElseIsAcknowledged) {
  NvmeTestStore store;
  store.Open();
  std::vector<uint64_t> acknowledged;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    ASSERT_TRUE(store.Put(MakeNvmeObject(seed, kMiB)).ok());
    acknowledged.push_back(seed);
  }
  std::filesystem::remove_all(store.path());
  Status refused;
  for (uint64_t seed = 100; seed < 160; ++seed) {
    const Status put = store.Put(MakeNvmeObject(seed, kMiB));
    if (put.ok()) {
      acknowledged.push_back(seed);
    } else {
      refused = put;
    }
  }
  EXPECT_FALSE(refused.ok()) << "60 MiB in one segment of 16";
  for (const uint64_t seed : acknowledged) store.ExpectHas(MakeNvmeObject(seed, kMiB));
  EXPECT_EQ(store.backend().used_bytes(), acknowledged.size() * (kMiB + kTierPageBytes));
  store.Drop();
  store.Open();
  EXPECT_EQ(store.backend().used_bytes(), 0u) << "a new directory";
  EXPECT_TRUE(store.Put(MakeNvmeObject(1, kMiB)).ok());
}

}  // namespace
}  // namespace terrace
