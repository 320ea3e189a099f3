// What was erased or cleared never comes back, whatever is lost of manifest and log.
#include <gtest/gtest.h>

#include "backends/nvme/superblock.h"
#include "backends/nvme/tests/rebuild_fixture.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

class NvmeErasedTest : public RebuildFixture {};

TEST_F(NvmeErasedTest, WhatWasErasedStaysErased) {
  store_.Open();
  const TestObject live = PutNew(1);
  Erase(live, EraseMode::kErase);
  const TestObject keeps_place = PutNew(2);  // in the place of the first
  const TestObject evicted_then_erased = PutNew(3);
  const TestObject twice = PutNew(4);
  PutNew(5);
  Erase(evicted_then_erased, EraseMode::kEvict);
  Erase(evicted_then_erased, EraseMode::kErase);
  Erase(twice, EraseMode::kEvict);
  const TestObject second_save = PutNew(4, kFrame, 1);
  Erase(second_save, EraseMode::kEvict);
  Erase(second_save, EraseMode::kErase);
  const TestObject evicted = PutNew(6);
  Erase(evicted, EraseMode::kEvict);
  TestObject again = PutNew(7);
  Erase(again, EraseMode::kErase);
  again = PutNew(7, kFrame, 1);
  LoseManifestAndOpen();
  store_.ExpectHas(keeps_place);
  store_.ExpectHas(again);
  ExpectMiss(live);
  ExpectMiss(evicted_then_erased);
  ExpectMiss(twice);
  HasOrMisses(evicted);
  EXPECT_GT(Unadopted(), 0);
}

// The wipe of a page may not have reached the disk; the log's entry did, and is enough.
TEST_F(NvmeErasedTest, AnErasedFrameWhoseWipeIsLostStaysErased) {
  store_.Open();
  const TestObject object = PutNew(1);
  const std::string page = Read(0, kTierPageBytes);
  Erase(object, EraseMode::kErase);
  store_.Close();
  Write(0, page);
  store_.Open();
  LoseManifestAndOpen();
  ExpectMiss(object);
  EXPECT_EQ(Rebuilt(), 0);
  EXPECT_EQ(Unadopted(), 1);
}

TEST_F(NvmeErasedTest, WhatWasClearedStaysCleared) {
  store_.Open();
  const TestObject cleared = PutNew(1);
  const TestObject erased = PutNew(2);
  Erase(erased, EraseMode::kErase);
  ASSERT_TRUE(store_.Clear().ok());
  EXPECT_EQ(fs::file_size(store_.path() / kErasedLogName), 0u) << "another secret does its work";
  const TestObject later = PutNew(3, 2 * kMiB);
  LoseManifestAndOpen();
  ExpectMiss(cleared);
  ExpectMiss(erased);
  store_.ExpectHas(later);
  EXPECT_EQ(Rebuilt(), 1);
}

// A manifest from before a Clear or an Erase, as a lost end of its log leaves it.
TEST_F(NvmeErasedTest, AnOutdatedManifestBringsNothingBack) {
  store_.Open();
  const TestObject erased = PutNew(1);
  const TestObject kept = PutNew(2);
  store_.Close();
  const fs::path old = store_.root() / "old";
  fs::copy(manifest(), old, fs::copy_options::recursive);
  const auto restore = [&] {
    store_.Close();
    fs::remove_all(manifest());
    fs::copy(old, manifest(), fs::copy_options::recursive);
    store_.Open();
  };
  store_.Open();
  Erase(erased, EraseMode::kErase);
  restore();
  EXPECT_EQ(Rebuilt(), 0);
  ExpectMiss(erased);
  store_.ExpectHas(kept);
  ASSERT_TRUE(store_.Clear().ok());
  const TestObject later = PutNew(3);
  restore();
  EXPECT_EQ(Rebuilt(), 1);
  ExpectMiss(erased);
  ExpectMiss(kept);
  store_.ExpectHas(later);
}

TEST_F(NvmeErasedTest, AFullLogOfErasedGivesWayToAFloor) {
  store_.Open(kOneSegment);
  const TestObject erased = PutNew(1);
  const TestObject older = PutNew(2);
  Erase(erased, EraseMode::kEvict);
  Erase(erased, EraseMode::kErase);
  const auto superblock = [&] {
    std::ifstream in(store_.path() / kSuperblockFileName, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    return DecodeSuperblock(bytes).value();
  };
  ASSERT_EQ(superblock().rebuild_floor, 0u);
  for (uint64_t round = 0; superblock().rebuild_floor == 0; ++round) {
    ASSERT_LT(round, 100u);
    std::vector<ObjectId> absent;
    for (uint64_t i = 0; i < 40; ++i) absent.push_back(MakeNvmeObject(1000 + round * 40 + i, 8192).id);
    Answers<Status> answers;
    store_.backend().Erase(absent, EraseMode::kErase, answers.Callback());
    for (const Status& status : answers.Wait()) EXPECT_EQ(status.code(), StatusCode::kNotFound);
  }
  EXPECT_LE(fs::file_size(store_.path() / kErasedLogName), 40 * kErasedEntryBytes);
  const TestObject later = PutNew(3);
  store_.Reopen(kOneSegment);
  EXPECT_EQ(Rebuilt(), 0);
  store_.ExpectHas(older);
  LoseManifestAndOpen(kOneSegment);
  ExpectMiss(erased);
  ExpectMiss(older);  // the price
  store_.ExpectHas(later);
  EXPECT_EQ(Rebuilt(), 1);
}

TEST_F(NvmeErasedTest, WithoutALogOfErasedNothingOlderIsAdopted) {
  store_.Open();
  const TestObject erased = PutNew(1);
  const TestObject kept = PutNew(2);
  Erase(erased, EraseMode::kEvict);
  Erase(erased, EraseMode::kErase);
  store_.Close();
  fs::remove(store_.path() / kErasedLogName);
  store_.Open();
  store_.ExpectHas(kept);
  const TestObject later = PutNew(3, 2 * kMiB);
  LoseManifestAndOpen();
  ExpectMiss(erased);
  store_.ExpectHas(later);
  EXPECT_EQ(Rebuilt(), 1);
  // Both at once.
  store_.Close();
  fs::remove(store_.path() / kErasedLogName);
  OpenWithoutManifest();
  EXPECT_EQ(Rebuilt(), 0);
  ExpectMiss(erased);
  const TestObject last = PutNew(4, 3 * kMiB);
  LoseManifestAndOpen();
  store_.ExpectHas(last);
  EXPECT_EQ(Rebuilt(), 1);
}

// The name of what was erased cannot be read: everything up to the last erasure is left out.
TEST_F(NvmeErasedTest, ABrokenEntryOfTheLogKeepsEverythingOlderOut) {
  store_.Open();
  const TestObject erased = PutNew(1);
  Erase(erased, EraseMode::kEvict);
  Erase(erased, EraseMode::kErase);
  Erase(MakeNvmeObject(2, kFrame), EraseMode::kErase);
  const TestObject later = PutNew(3, 2 * kMiB);
  store_.Close();
  {
    std::fstream log(store_.path() / kErasedLogName, std::ios::binary | std::ios::in | std::ios::out);
    log.seekp(5);
    log.put('\x7f');
  }
  store_.Open();
  LoseManifestAndOpen();
  ExpectMiss(erased);
  store_.ExpectHas(later);
}

TEST_F(NvmeErasedTest, AnEraseThatCannotBeLoggedIsAnError) {
  const auto faults = std::make_shared<FileFaults>();
  ASSERT_TRUE(OpenOn(faults).ok());
  const TestObject object = PutNew(1);
  const TestObject other = PutNew(2);
  faults->write = [](const std::string& name) {
    return name == kErasedLogName ? UnavailableError("EIO") : OkStatus();
  };
  EXPECT_EQ(store_.Erase(object.id, EraseMode::kErase).code(), StatusCode::kUnavailable);
  EXPECT_EQ(store_.Erase(MakeNvmeObject(9, kFrame).id, EraseMode::kErase).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(store_.Erase(other.id, EraseMode::kEvict).ok()) << "nothing is logged for it";
  faults->write = nullptr;
  ExpectMiss(object);
  EXPECT_EQ(store_.Erase(object.id, EraseMode::kErase).code(), StatusCode::kNotFound) << "durable now";
}

}  // namespace
}  // namespace terrace
