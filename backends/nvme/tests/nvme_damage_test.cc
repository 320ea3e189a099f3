// Bytes on disk that are not what was written: each is a miss with its counter, never an answer.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "backends/nvme/file_descriptor.h"
#include "backends/nvme/manifest.h"
#include "backends/nvme/private_file_system.h"
#include "backends/nvme/superblock.h"
#include "backends/nvme/tests/nvme_test_store.h"
#include "lib/wire/frame.h"
#include "lib/wire/tier_page.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

class NvmeDamageTest : public ::testing::Test {
 protected:
  // The bytes of segment 0. O_DIRECT writes of the backend and these do not meet: the store is closed or
  // idle.
  std::string Read(uint64_t offset, size_t n) {
    FileDescriptor file(open(store_.segment(0).c_str(), O_RDONLY));
    std::string bytes(n, '\0');
    EXPECT_EQ(pread(file.get(), bytes.data(), n, static_cast<off_t>(offset)), static_cast<ssize_t>(n));
    return bytes;
  }
  void Write(uint64_t offset, const std::string& bytes) {
    FileDescriptor file(open(store_.segment(0).c_str(), O_WRONLY));
    EXPECT_EQ(pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(fsync(file.get()), 0);
  }
  void FlipBit(uint64_t offset, int bit) {
    std::string byte = Read(offset, 1);
    byte[0] = static_cast<char>(byte[0] ^ (1 << bit));
    Write(offset, byte);
  }
  // Objects of one size, put one after another into an empty segment, lie one after another.
  std::vector<TestObject> PutSome(size_t n, uint64_t frame_bytes, uint64_t first_seed = 1) {
    std::vector<TestObject> objects;
    for (uint64_t seed = first_seed; seed < first_seed + n; ++seed) {
      objects.push_back(MakeNvmeObject(seed, frame_bytes));
      EXPECT_TRUE(store_.Put(objects.back()).ok());
    }
    return objects;
  }
  DirectorySecret ReadSecret() const {
    std::string superblock(kSuperblockBytes, '\0');
    FileDescriptor file(open((store_.path() / "superblock").c_str(), O_RDONLY));
    EXPECT_EQ(pread(file.get(), superblock.data(), superblock.size(), 0),
              static_cast<ssize_t>(superblock.size()));
    return DecodeSuperblock(superblock).value().secret;
  }
  static Result<TierPage> ParsePage(const std::string& run, const DirectorySecret& secret) {
    const Bytes bytes = std::as_bytes(std::span(run));
    const uint32_t header_bytes = PeekHeaderBytes(bytes.subspan(kTierPageBytes)).value();
    return ParseTierPage(bytes.first(kTierPageBytes), bytes.subspan(kTierPageBytes, header_bytes), secret);
  }
  int64_t Corrupt() const { return store_.Metric("terrace_nvme_corrupt_objects_total"); }
  int64_t Dropped() const { return store_.Metric("terrace_nvme_dropped_records_total"); }

  NvmeTestStore store_;
};

constexpr uint64_t kFrame = 64 * kKiB;
constexpr uint64_t kRun = kTierPageBytes + kFrame;

TEST_F(NvmeDamageTest, AFlippedBitInTierPageOrHeaderDropsTheObject) {
  store_.Open();
  // Magic, version, header length, directory, generation, frame length, expiry, priority, code; then the
  // header area.
  const std::vector<uint64_t> places = {0,  9,  13, 20,       33,        41,        50,
                                        57, 64, 79, 4096 + 3, 4096 + 20, 4096 + 700};
  const std::vector<TestObject> objects = PutSome(places.size(), kFrame);
  for (size_t i = 0; i < places.size(); ++i) FlipBit(i * kRun + places[i], static_cast<int>(i % 8));
  const uint64_t used = store_.backend().used_bytes();
  for (size_t i = 0; i < places.size(); ++i) {
    SCOPED_TRACE(places[i]);
    EXPECT_EQ(store_.GetCode(objects[i]), StatusCode::kDataLoss);
    EXPECT_EQ(Corrupt(), static_cast<int64_t>(i + 1));
    EXPECT_EQ(store_.GetCode(objects[i]), StatusCode::kNotFound) << "it is dropped";
    EXPECT_EQ(Corrupt(), static_cast<int64_t>(i + 1));
  }
  ASSERT_TRUE(store_.Put(objects[0]).ok()) << "its place and its id are free";
  store_.ExpectHas(objects[0]);
  EXPECT_LT(store_.backend().used_bytes(), used);
  store_.Reopen();
  for (size_t i = 1; i < places.size(); ++i) EXPECT_EQ(store_.GetCode(objects[i]), StatusCode::kNotFound);
  store_.ExpectHas(objects[0]);
}

TEST_F(NvmeDamageTest, SwappedExtentsAreNotTheirObjects) {
  store_.Open();
  const std::vector<TestObject> objects = PutSome(3, kFrame);
  const std::string first = Read(0, kRun);
  Write(0, Read(kRun, kRun));
  Write(kRun, first);
  EXPECT_EQ(store_.GetCode(objects[0]), StatusCode::kDataLoss);
  EXPECT_EQ(store_.GetCode(objects[1]), StatusCode::kDataLoss);
  store_.ExpectHas(objects[2]);
  EXPECT_EQ(Corrupt(), 2);
}

TEST_F(NvmeDamageTest, AnOldSaveOfTheSameObjectIsNotAdopted) {
  store_.Open();
  const TestObject old_save = MakeNvmeObject(1, kFrame);
  ASSERT_TRUE(store_.Put(old_save).ok());
  const std::string old_bytes = Read(0, kRun);
  ASSERT_TRUE(store_.Erase(old_save.id, EraseMode::kEvict).ok());
  const TestObject new_save = MakeNvmeObject(1, kFrame, 1);
  ASSERT_TRUE(store_.Put(new_save).ok());
  store_.ExpectHas(new_save);
  Write(0, old_bytes);  // whole, of this directory, with a right code: only its generation is another
  EXPECT_EQ(store_.GetCode(new_save), StatusCode::kDataLoss);
}

TEST_F(NvmeDamageTest, AFakeTierPageIsNotAdopted) {
  store_.Open();
  const std::vector<TestObject> objects = PutSome(2, kFrame);
  const Result<TierPage> real = ParsePage(Read(0, kRun), ReadSecret());
  ASSERT_TRUE(real.ok()) << "the place on disk is where this test thinks";
  // Everything right but the secret, in front of another object's frame.
  const TestObject other = MakeNvmeObject(77, kFrame);
  std::string fake(kTierPageBytes, '\0');
  const Bytes frame = other.frame.frame();
  WriteTierPage(*real, frame.first(PeekHeaderBytes(frame).value()), DirectorySecret{},
                std::as_writable_bytes(std::span(fake)));
  Write(0, fake + std::string(reinterpret_cast<const char*>(frame.data()), kFrame));
  EXPECT_EQ(store_.GetCode(objects[0]), StatusCode::kDataLoss);
  EXPECT_EQ(store_.GetCode(other), StatusCode::kNotFound);
  store_.ExpectHas(objects[1]);
}

TEST_F(NvmeDamageTest, WhatWasClearedDoesNotComeBackWithItsBytes) {
  store_.Open();
  const TestObject object = MakeNvmeObject(1, kFrame);
  ASSERT_TRUE(store_.Put(object).ok());
  const std::string cleared = Read(0, kRun);
  ASSERT_TRUE(ParsePage(cleared, ReadSecret()).ok());
  ASSERT_TRUE(store_.Clear().ok());
  EXPECT_FALSE(ParsePage(cleared, ReadSecret()).ok()) << "a scan would adopt it";
  ASSERT_TRUE(store_.Put(object).ok());
  store_.ExpectHas(object);
  EXPECT_TRUE(ParsePage(Read(0, kRun), ReadSecret()).ok()) << "a start would lose it";
  Write(0, cleared);
  EXPECT_EQ(store_.GetCode(object), StatusCode::kDataLoss);
}

TEST_F(NvmeDamageTest, EraseWipesTheTierPage) {
  store_.Open();
  const std::vector<TestObject> objects = PutSome(2, kFrame);
  ASSERT_NE(Read(0, kTierPageBytes), std::string(kTierPageBytes, '\0'));
  ASSERT_TRUE(store_.Erase(objects[0].id, EraseMode::kErase).ok());
  EXPECT_EQ(Read(0, kTierPageBytes), std::string(kTierPageBytes, '\0'));
  ASSERT_TRUE(store_.Erase(objects[1].id, EraseMode::kEvict).ok());
  EXPECT_NE(Read(kRun, kTierPageBytes), std::string(kTierPageBytes, '\0')) << "evicting costs no write";
}

TEST_F(NvmeDamageTest, ATruncatedSegmentLosesWhatIsBehindItsEnd) {
  store_.Open();
  const std::vector<TestObject> objects = PutSome(10, kFrame);
  store_.Close();
  fs::resize_file(store_.segment(0), 6 * kRun + 8192);
  store_.Open();
  for (size_t i = 0; i < 10; ++i) {
    if (i < 6)
      store_.ExpectHas(objects[i]);
    else
      EXPECT_EQ(store_.GetCode(objects[i]), StatusCode::kNotFound);
  }
  EXPECT_EQ(Dropped(), 4);
  EXPECT_EQ(store_.backend().used_bytes(), 6 * kRun);
  EXPECT_EQ(fs::file_size(store_.segment(0)), 16 * kMiB) << "it serves in full again";
  // While it is open.
  fs::resize_file(store_.segment(0), 2 * kRun + 8192);
  store_.ExpectHas(objects[1]);
  EXPECT_EQ(store_.GetCode(objects[2]), StatusCode::kDataLoss);
  EXPECT_EQ(store_.GetCode(objects[2]), StatusCode::kNotFound);
  EXPECT_EQ(Corrupt(), 1);
}

TEST_F(NvmeDamageTest, AMissingSegmentIsMadeAgain) {
  store_.Open();
  const TestObject object = MakeNvmeObject(1, kFrame);
  ASSERT_TRUE(store_.Put(object).ok());
  store_.Close();
  fs::remove(store_.segment(0));
  store_.Open();
  EXPECT_EQ(Dropped(), 1);
  EXPECT_EQ(store_.GetCode(object), StatusCode::kNotFound);
  ASSERT_TRUE(store_.Put(object).ok());
  store_.ExpectHas(object);
}

TEST_F(NvmeDamageTest, AStartCountsContentsThatItDoesNotRead) {
  store_.Open();
  std::vector<TestObject> objects = PutSome(20, kFrame);
  TestObject bare = MakeNvmeObject(999, kFrame);
  bare.meta.content = nullptr;
  ASSERT_TRUE(store_.Put(bare).ok());
  store_.Close();
  auto manifest = Manifest::Open((store_.path() / "manifest").string(), ManifestReserve(128 * kMiB),
                                 MakePrivateFileSystem(rocksdb::FileSystem::Default()))
                      .value();
  std::map<ObjectId, LoadedRecord> whole;
  std::map<ObjectId, LoadedRecord> places;
  std::vector<std::string> broken;
  ASSERT_TRUE(manifest->Load([&](LoadedRecord l) { whole[l.id] = std::move(l); }, &broken).ok());
  const auto keep = [&](std::span<LoadedRecord> records) {
    for (const LoadedRecord& loaded : records) EXPECT_TRUE(places.emplace(loaded.id, loaded).second);
  };
  ASSERT_TRUE(manifest->LoadPlaces(keep, &broken).ok());
  EXPECT_TRUE(broken.empty());
  ASSERT_EQ(whole.size(), 21u);
  ASSERT_EQ(places.size(), 21u);
  for (const auto& [id, loaded] : whole) {
    EXPECT_EQ(places[id].record_bytes, loaded.record_bytes);
    EXPECT_EQ(places[id].record.extents, loaded.record.extents);
    EXPECT_EQ(places[id].record.meta.generation, loaded.record.meta.generation);
  }
  // As a former build wrote it: counted with what a header has room for.
  ObjectRecord old = whole[bare.id].record;
  old.content_bytes.reset();
  const std::vector<RecordChange> changes = {{.key = EncodeRecordKey(bare.id), .place = EncodePlace(old)}};
  ASSERT_TRUE(manifest->Apply(changes, RecordWrite::kSynced).ok());
  places.clear();
  ASSERT_TRUE(manifest->LoadPlaces(keep, &broken).ok());
  EXPECT_EQ(places[bare.id].record_bytes, whole[bare.id].record_bytes + old.header_bytes);
  EXPECT_TRUE(manifest->Close().ok());
}

TEST_F(NvmeDamageTest, BrokenRecordsAreDroppedAndOfTwoOwnersTheLaterWins) {
  store_.Open();
  std::vector<TestObject> objects = PutSome(4, kFrame);
  store_.Close();
  const auto key = [&](size_t i) { return EncodeRecordKey(objects[i].id); };
  {
    auto manifest = Manifest::Open((store_.path() / "manifest").string(), ManifestReserve(128 * kMiB),
                                   MakePrivateFileSystem(rocksdb::FileSystem::Default()))
                        .value();
    std::map<ObjectId, ObjectRecord> records;
    std::vector<std::string> broken;
    ASSERT_TRUE(manifest->Load([&](LoadedRecord l) { records[l.id] = l.record; }, &broken).ok());
    ASSERT_EQ(records.size(), 4u);
    ASSERT_TRUE(broken.empty());
    // 0: a place that is no place. 1: a content that is none. 2 claims the place of 3, which was written
    // later.
    ObjectRecord claim = records[objects[2].id];
    claim.extents = records[objects[3].id].extents;
    std::string flipped = EncodePlace(records[objects[0].id]);
    flipped[50] = static_cast<char>(flipped[50] ^ 4);
    const std::string content = EncodeRecordContent(*objects[0].meta.content);
    const std::vector<RecordChange> changes = {
        {.key = key(0), .place = flipped, .content = content},
        {.key = key(1), .place = EncodePlace(records[objects[1].id]), .content = content.substr(1)},
        {.key = key(2),
         .place = EncodePlace(claim),
         .content = EncodeRecordContent(*objects[2].meta.content)},
        {.key = std::string("no record key"), .place = EncodePlace(claim)},
    };
    ASSERT_TRUE(manifest->Apply(changes, RecordWrite::kSynced).ok());
    ASSERT_TRUE(manifest->Close().ok());
  }
  store_.Open();
  EXPECT_EQ(Dropped(), 3);
  for (const size_t i : {0, 2}) EXPECT_EQ(store_.GetCode(objects[i]), StatusCode::kNotFound) << i;
  for (const size_t i : {1, 3}) store_.ExpectHas(objects[i]);
  EXPECT_EQ(store_.backend().used_bytes(), 2 * kRun);
  // A start does not read contents: a frame has its own.
  const Result<ScanPage> page = store_.backend().Scan("", 10);
  ASSERT_TRUE(page.ok());
  for (const ScannedObject& scanned : page->objects) {
    EXPECT_EQ(scanned.meta.content == nullptr, scanned.id == objects[1].id);
  }
  store_.Reopen();
  EXPECT_EQ(Dropped(), 0) << "they are gone for good";
  for (const TestObject& object : objects) {
    const Status put = store_.Put(object);
    EXPECT_TRUE(put.ok() || put.code() == StatusCode::kAlreadyExists);
    store_.ExpectHas(object);
  }
}

}  // namespace
}  // namespace terrace
