// Places where the device failed twice are never used again, in this life and the next.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>

#include "backends/nvme/disk.h"
#include "backends/nvme/extent_allocator.h"
#include "backends/nvme/failed_places.h"
#include "backends/nvme/manifest.h"
#include "backends/nvme/tests/nvme_test_store.h"

namespace terrace {
namespace {

TEST(FailedPlacesTest, ASecondFailureIsBadWhereTheFirstWas) {
  FailedPlaces places;
  EXPECT_TRUE(places.Note({3, kMiB / 2, kMiB}, 10).empty());
  EXPECT_TRUE(places.Note({4, kMiB / 2, kMiB}, 20).empty()) << "another segment";
  // Of three granules two failed before.
  EXPECT_EQ(places.Note({3, kMiB - 4096, kMiB + 8192}, 30),
            (std::vector<Extent>{{3, kMiB - 4096, 4096}, {3, kMiB, kMiB}}));
  EXPECT_EQ(places.Note({3, 2 * kMiB, 4096}, 40), (std::vector<Extent>{{3, 2 * kMiB, 4096}}))
      << "the third granule failed then";
}

TEST(FailedPlacesTest, ADeviceThatDoesNothingRightHasNoBadPlaces) {
  FailedPlaces places;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(places.Note({0, 0, 4096}, 10).empty());
  EXPECT_EQ(places.Note({0, 0, 4096}, 11).size(), 1u);
}

TEST(FailedPlacesTest, TheOldestAreForgotten) {
  FailedPlaces places;
  for (uint64_t i = 0; i <= FailedPlaces::kMaxGranules; ++i) {
    EXPECT_TRUE(places.Note({0, i * kMiB, 4096}, i).empty());
  }
  EXPECT_FALSE(places.Note({0, kMiB, 4096}, 1'000'000).empty());
  EXPECT_TRUE(places.Note({0, 0, 4096}, 1'000'000).empty());
}

class NvmeQuarantineTest : public ::testing::Test {
 protected:
  void SetUp() override { store_.Open(kCapacity, MakeFaultyEngine(faults_)); }
  ~NvmeQuarantineTest() override { faults_->Release(); }

  // Fails requests of `direction` that touch the page at `offset`, in every segment.
  void Break(IoDirection direction, uint64_t offset, int error = EIO) {
    const std::lock_guard lock(faults_->mutex);
    faults_->change = [=, this](IoCompletion& completion) {
      const IoRequest& request = *completion.request;
      uint64_t end = request.offset;
      for (uint32_t i = 0; i < request.num_memory; ++i) end += request.memory[i].iov_len;
      if (request.direction != direction || request.offset > offset || end <= offset) return;
      completion.result = -error;
      ++failed_;
    };
  }
  int64_t quarantined() const { return store_.Metric("terrace_nvme_quarantined_bytes"); }

  static constexpr uint64_t kCapacity = 17 * kMiB;  // one segment of 16 MiB
  std::atomic<int> failed_{0};
  std::shared_ptr<EngineFaults> faults_ = std::make_shared<EngineFaults>();
  NvmeTestStore store_;
};

TEST_F(NvmeQuarantineTest, AWriteThatFailsTwiceLeavesItsPlace) {
  const uint64_t capacity = store_.backend().capacity_bytes();
  ASSERT_EQ(capacity, 16 * kMiB);
  const TestObject object = MakeNvmeObject(1, 5 * kMiB);
  // In the second request, of 2 MiB.
  Break(IoDirection::kWrite, 2 * kMiB + 5 * kExtentUnit);
  EXPECT_EQ(store_.Put(object).code(), StatusCode::kUnavailable);
  EXPECT_EQ(quarantined(), 0);
  EXPECT_EQ(store_.Put(object).code(), StatusCode::kUnavailable);
  EXPECT_EQ(failed_, 2);
  EXPECT_EQ(quarantined(), 2 * kMiB) << "the request, and no more";
  EXPECT_EQ(store_.backend().used_bytes(), 0u);
  EXPECT_EQ(store_.backend().capacity_bytes(), capacity - 2 * kMiB);
  EXPECT_TRUE(store_.Put(object).ok()) << "elsewhere";
  store_.ExpectHas(object);
  uint64_t seed = 100;
  while (store_.Put(MakeNvmeObject(seed, 256 * kKiB)).ok()) ++seed;
  EXPECT_GT(seed, 120u);
  EXPECT_EQ(failed_, 2) << "nothing was written there again";
  EXPECT_LE(store_.backend().used_bytes(), store_.backend().capacity_bytes());
  // A start knows it; nothing of what was stored is lost.
  store_.Reopen(kCapacity);
  EXPECT_EQ(quarantined(), 2 * kMiB);
  EXPECT_EQ(store_.backend().capacity_bytes(), capacity - 2 * kMiB);
  EXPECT_EQ(store_.Metric("terrace_nvme_dropped_records_total"), 0);
  store_.ExpectHas(object);
  for (uint64_t each = 100; each < seed; ++each) store_.ExpectHas(MakeNvmeObject(each, 256 * kKiB));
  // So does one with nothing in it.
  ASSERT_TRUE(store_.Clear().ok());
  EXPECT_EQ(store_.Put(MakeNvmeObject(2, 15 * kMiB)).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(store_.Put(MakeNvmeObject(2, 13 * kMiB)).ok());
  store_.Reopen(kCapacity);
  EXPECT_EQ(quarantined(), 2 * kMiB);
}

TEST_F(NvmeQuarantineTest, AReadThatFailsTwiceDropsItsObjectAndNoOther) {
  const TestObject first = MakeNvmeObject(1, 512 * kKiB - kTierPageBytes);
  const TestObject bad = MakeNvmeObject(2, 3 * kMiB - kTierPageBytes);
  const TestObject last = MakeNvmeObject(3, 512 * kKiB - kTierPageBytes);
  for (const TestObject* object : {&bad, &first, &last}) ASSERT_TRUE(store_.Put(*object).ok());
  Break(IoDirection::kRead, 2 * kMiB + kMiB / 2);  // the second request: [2 MiB, 3 MiB)
  EXPECT_EQ(store_.GetCode(bad), StatusCode::kUnavailable);
  EXPECT_EQ(quarantined(), 0);
  store_.ExpectHas(first);
  EXPECT_EQ(store_.GetCode(bad), StatusCode::kUnavailable);
  EXPECT_EQ(store_.GetCode(bad), StatusCode::kNotFound);
  ASSERT_TRUE(store_.Flush().ok());
  EXPECT_EQ(quarantined(), kMiB);
  EXPECT_EQ(store_.backend().used_bytes(), kMiB);
  store_.ExpectHas(first);
  store_.ExpectHas(last);
  store_.Reopen(kCapacity);
  EXPECT_EQ(store_.GetCode(bad), StatusCode::kNotFound);
  EXPECT_EQ(quarantined(), kMiB);
  store_.ExpectHas(first);
  store_.ExpectHas(last);
}

TEST_F(NvmeQuarantineTest, AReaderKeepsTheObjectsPlaceUntilItIsDone) {
  const TestObject object = MakeNvmeObject(1, 3 * kMiB - kTierPageBytes);
  ASSERT_TRUE(store_.Put(object).ok());
  Break(IoDirection::kRead, 2 * kMiB);
  EXPECT_EQ(store_.GetCode(object), StatusCode::kUnavailable);
  // Two at once: the first drops the object, the second ends after.
  Answers<GetResult> answers;
  std::vector<GetOp> ops;
  for (int i = 0; i < 2; ++i) ops.push_back(GetOpOf(object, MakeTestBuffer(object.meta.frame_bytes)));
  store_.backend().Get(std::move(ops), answers.Callback());
  for (const GetResult& result : answers.Wait()) EXPECT_EQ(result.status.code(), StatusCode::kUnavailable);
  ASSERT_TRUE(store_.Flush().ok());
  EXPECT_EQ(store_.backend().used_bytes(), 0u);
  EXPECT_EQ(quarantined(), kMiB) << "once, though it failed three times";
}

TEST_F(NvmeQuarantineTest, AFullFileSystemAndABusyOneAreNoBadPlaces) {
  for (const int error : {ENOSPC, EAGAIN, ENOMEM}) {
    Break(IoDirection::kWrite, 0, error);
    for (int i = 0; i < 2; ++i) EXPECT_FALSE(store_.Put(MakeNvmeObject(1, 5 * kMiB)).ok());
  }
  EXPECT_GT(failed_, 6);
  EXPECT_EQ(quarantined(), 0);
}

TEST(NvmeQuarantineManifestTest, KeepsWhatWasPut) {
  NvmeTestStore store;
  std::filesystem::create_directory(store.path());
  const std::string path = (store.path() / "manifest").string();
  const auto disk = MakeSystemDisk(store.path().string(), IoEngineKind::kAuto);
  const std::vector<Extent> extents = {{0, 4096, 8192}, {1, uint64_t{5} << 32, kMiB}, {700, 0, 4096}};
  {
    auto manifest = Manifest::Open(path, 4 * kMiB, disk->RocksFileSystem());
    ASSERT_TRUE(manifest.ok()) << manifest.status().ToString();
    EXPECT_TRUE((*manifest)->LoadQuarantine()->empty());
    ASSERT_TRUE((*manifest)->PutQuarantine({&extents[2], 1}).ok());
    ASSERT_TRUE((*manifest)->PutQuarantine({extents.data(), 2}).ok());
    EXPECT_TRUE((*manifest)->DropAll().ok());
    EXPECT_TRUE((*manifest)->ReserveGenerations(5, 0, {}).ok());
    EXPECT_TRUE((*manifest)->Close().ok());
  }
  auto manifest = Manifest::Open(path, 4 * kMiB, disk->RocksFileSystem());
  ASSERT_TRUE(manifest.ok()) << manifest.status().ToString();
  EXPECT_EQ(*(*manifest)->LoadQuarantine(), extents);
}

}  // namespace
}  // namespace terrace
