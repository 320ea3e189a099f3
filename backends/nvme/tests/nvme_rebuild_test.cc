// A manifest that is lost or damaged while the segments are whole: what was stored is found again, and
// nothing that only looks like a tier page is taken for one.
#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <cstring>

#include "backends/nvme/tests/rebuild_fixture.h"
#include "lib/wire/frame.h"
#include "lib/wire/tier_page.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

class NvmeRebuildTest : public RebuildFixture {};

TEST_F(NvmeRebuildTest, WithoutAManifestEverythingIsFoundAgain) {
  store_.Open();
  std::vector<TestObject> objects;
  uint64_t bytes = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    // Some reach over a read of 4 MiB, some have a header of more than one page.
    objects.push_back(PutNew(seed, seed % 5 == 0 ? 3 * kMiB + 4096 : seed * 8 * kKiB));
    bytes += kTierPageBytes + objects.back().meta.frame_bytes;
  }
  ASSERT_TRUE(store_.backend().PutRoot({}).ok());
  const std::map<ObjectId, ObjectMeta> before = ScanAll();
  LoseManifestAndOpen();
  EXPECT_EQ(Rebuilt(), 20);
  EXPECT_EQ(Unadopted(), 0);
  EXPECT_EQ(store_.backend().used_bytes(), bytes);
  for (const TestObject& object : objects) store_.ExpectHas(object);
  const std::map<ObjectId, ObjectMeta> after = ScanAll();
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [id, meta] : before) {
    const ObjectMeta& found = after.at(id);
    EXPECT_EQ(found.root, meta.root);
    EXPECT_EQ(found.parent, meta.parent);
    EXPECT_EQ(found.first_token, meta.first_token);
    EXPECT_EQ(*found.content, *meta.content);
    EXPECT_EQ(found.frame_bytes, meta.frame_bytes);
    EXPECT_EQ(found.payload_bytes, meta.payload_bytes);
    EXPECT_EQ(found.priority, meta.priority);
    EXPECT_EQ(found.expiry, meta.expiry);
    EXPECT_EQ(found.generation, meta.generation);
  }
  EXPECT_TRUE(store_.backend().ScanRoots()->empty()) << "the roots are lost";
  // It goes on as ever.
  const TestObject later = PutNew(21);
  EXPECT_GT(ScanAll().at(later.id).generation, before.rbegin()->second.generation);
  store_.Reopen();
  EXPECT_EQ(Rebuilt(), 0) << "once";
  store_.ExpectHas(later);
  for (const TestObject& object : objects) store_.ExpectHas(object);
  store_.Close();
  CheckAccounting(bytes + kRun);
}

TEST_F(NvmeRebuildTest, ARunInSeveralExtentsIsFoundAgain) {
  store_.Open(kOneSegment);
  const TestObject first = PutNew(1, 5 * kMiB);
  const TestObject second = PutNew(2, 5 * kMiB);
  const TestObject third = PutNew(3, 5 * kMiB);
  Erase(first, EraseMode::kEvict);
  Erase(third, EraseMode::kEvict);
  const TestObject split = PutNew(4, 8 * kMiB);
  LoseManifestAndOpen(kOneSegment);
  EXPECT_EQ(Rebuilt(), 2);
  store_.ExpectHas(second);
  store_.ExpectHas(split);
  ExpectMiss(first);
  ExpectMiss(third);
  EXPECT_EQ(store_.backend().used_bytes(), 13 * kMiB + 2 * kTierPageBytes);
}

TEST_F(NvmeRebuildTest, AManifestOfAnotherDirectoryIsNotUsed) {
  store_.Open();
  const TestObject object = PutNew(1);
  store_.Close();
  NvmeTestStore other;
  other.Open();
  ASSERT_TRUE(other.Put(MakeNvmeObject(2, kFrame)).ok());
  other.Close();
  fs::remove_all(manifest());
  fs::copy(other.path() / kManifestDirectoryName, manifest(), fs::copy_options::recursive);
  store_.Open();
  EXPECT_EQ(Rebuilt(), 1);
  store_.ExpectHas(object);
  ExpectMiss(MakeNvmeObject(2, kFrame));
}

// Every file of a manifest, in every way, one at a time.
TEST_F(NvmeRebuildTest, AnyDamageToTheManifestIsAMissAtWorst) {
  store_.Open();
  const TestObject erased_live = PutNew(1);
  const TestObject erased_evicted = PutNew(2);
  const TestObject early = PutNew(3);
  store_.Reopen();  // the records so far lie in tables now
  const TestObject late = PutNew(4);
  Erase(erased_evicted, EraseMode::kEvict);
  Erase(erased_evicted, EraseMode::kErase);
  Erase(erased_live, EraseMode::kErase);
  ASSERT_TRUE(store_.backend().PutRoot({}).ok());
  store_.Close();
  const fs::path pristine = store_.root() / "pristine";
  fs::copy(manifest(), pristine, fs::copy_options::recursive);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(pristine)) names.push_back(entry.path().filename());
  ASSERT_GE(names.size(), 6u);
  int rebuilds = 0;
  for (const std::string& name : names) {
    for (const std::string damage : {"removed", "empty", "cut", "flip"}) {
      SCOPED_TRACE(name + " " + damage);
      fs::remove_all(manifest());
      fs::copy(pristine, manifest(), fs::copy_options::recursive);
      const fs::path file = manifest() / name;
      const uint64_t size = fs::file_size(file);
      if (damage == "removed") {
        fs::remove(file);
      } else if (size == 0) {
        continue;
      } else if (damage == "empty" || damage == "cut") {
        fs::resize_file(file, damage == "cut" ? size - (size + 2) / 3 : 0);
      } else {
        const uint64_t at = size / 2;
        std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
        out.seekg(static_cast<std::streamoff>(at));
        const char byte = static_cast<char>(out.get() ^ 0x10);
        out.seekp(static_cast<std::streamoff>(at));
        out.put(byte);
      }
      store_.Open();
      if (HasFatalFailure()) return;
      rebuilds += Rebuilt() > 0;
      ExpectMiss(erased_live);
      ExpectMiss(erased_evicted);
      uint64_t live = HasOrMisses(early) ? kRun : 0;
      live += HasOrMisses(late) ? kRun : 0;
      EXPECT_TRUE(Rebuilt() == 0 || live == 2 * kRun) << live;
      EXPECT_EQ(store_.backend().used_bytes(), live);
      const TestObject fresh = MakeNvmeObject(100, kFrame);
      ASSERT_TRUE(store_.Put(fresh).ok());
      store_.ExpectHas(fresh);
      Erase(fresh, EraseMode::kErase);
      store_.Close();
      CheckAccounting(live);
    }
  }
  EXPECT_GT(rebuilds, 10);
}

// What lies in a payload is never an object, however right its bytes are.
TEST_F(NvmeRebuildTest, APageInsideAPayloadIsNotAdopted) {
  store_.Open();
  const TestObject original = PutNew(1);
  const std::string own_run = Read(0, kRun);
  NvmeTestStore other;
  other.Open();
  const TestObject foreign = MakeNvmeObject(2, kFrame);
  ASSERT_TRUE(other.Put(foreign).ok());
  other.Close();
  std::string foreign_run(kRun, '\0');
  std::ifstream(other.segment(0), std::ios::binary).read(foreign_run.data(), kRun);
  ASSERT_EQ(foreign_run.substr(0, 8), kTierPageMagic);
  // Of another directory; of this one, elsewhere; of this one's id, under a guessed secret, naming its place.
  TestObject carrier = MakeNvmeObject(3, kMiB);
  const MutableBytes payload = carrier.frame.mutable_frame().subspan(64 * kKiB);
  std::memcpy(payload.data(), foreign_run.data(), kRun);
  std::memcpy(payload.data() + kRun, own_run.data(), kRun);
  const Bytes own = std::as_bytes(std::span(own_run));
  TierPage claim = PeekTierPage(own.first(kTierPageBytes))->fields;
  claim.generation = ~uint64_t{0} - 1;
  const uint64_t place = kRun + kTierPageBytes + 64 * kKiB + 2 * kRun;  // behind the first run
  claim.extents = {{0, place, kRun}};
  const TestObject guessed = MakeNvmeObject(4, kFrame);
  const Bytes frame = guessed.frame.frame();
  WriteTierPage(claim, frame.first(PeekHeaderBytes(frame).value()), DirectorySecret{},
                payload.subspan(2 * kRun, kTierPageBytes));
  std::memcpy(payload.data() + 2 * kRun + kTierPageBytes, frame.data(), kFrame);
  ASSERT_TRUE(store_.Put(carrier).ok());
  ASSERT_EQ(Read(place, 8), kTierPageMagic) << "the place on disk is where this test thinks";
  Erase(original, EraseMode::kEvict);
  Erase(original, EraseMode::kErase);
  store_.Close();
  Write(0, std::string(kRun, 'x'));  // the copy inside the payload is the only one left
  store_.Open();
  LoseManifestAndOpen();
  EXPECT_EQ(Rebuilt(), 1);
  EXPECT_EQ(Unadopted(), 1) << "the copy of its own page";
  store_.ExpectHas(carrier);
  ExpectMiss(original);
  ExpectMiss(foreign);
  ExpectMiss(guessed);
}

// A payload that is written over an evicted object and holds that object's bytes, at their own place.
TEST_F(NvmeRebuildTest, APageAtItsOwnPlaceInsideALaterPayloadLosesToIt) {
  store_.Open(kOneSegment);
  const TestObject first = PutNew(1, kMiB);
  const TestObject inner = PutNew(2, kFrame);
  const uint64_t place = kTierPageBytes + kMiB;
  const std::string inner_run = Read(place, kRun);
  ASSERT_EQ(inner_run.substr(0, 8), kTierPageMagic);
  Erase(first, EraseMode::kEvict);
  Erase(inner, EraseMode::kEvict);
  TestObject carrier = MakeNvmeObject(3, 16 * kMiB - kTierPageBytes);
  std::memcpy(carrier.frame.mutable_frame().data() + kMiB, inner_run.data(), kRun);
  ASSERT_TRUE(store_.Put(carrier).ok());
  ASSERT_EQ(Read(place, kRun), inner_run);
  LoseManifestAndOpen(kOneSegment);
  EXPECT_EQ(Rebuilt(), 1);
  EXPECT_EQ(Unadopted(), 1);
  store_.ExpectHas(carrier);
  ExpectMiss(inner);
}

TEST_F(NvmeRebuildTest, OfTwoSavesTheLaterIsAdopted) {
  store_.Open();
  const TestObject old_save = PutNew(1);
  const TestObject between = PutNew(2);
  Erase(old_save, EraseMode::kEvict);
  const TestObject new_save = PutNew(1, 2 * kMiB, 1);  // too large for the place of the old one
  ASSERT_EQ(Read(0, 8), kTierPageMagic);
  LoseManifestAndOpen();
  store_.ExpectHas(new_save);
  store_.ExpectHas(between);
  EXPECT_EQ(Rebuilt(), 2);
  EXPECT_EQ(Unadopted(), 1);
}

TEST_F(NvmeRebuildTest, ARebuildThatFailedIsRepeated) {
  store_.Open();
  const TestObject object = PutNew(1);
  for (uint64_t seed = 2; seed < 6; ++seed) PutNew(seed, 6 * kMiB);
  store_.Close();
  fs::remove_all(manifest());
  const auto faults = std::make_shared<FileFaults>();
  faults->read = [](const std::string& name, uint64_t, uint64_t) {
    return name.starts_with("seg-") ? UnavailableError("EIO") : OkStatus();
  };
  EXPECT_EQ(OpenOn(faults).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(fs::exists(manifest() / "CURRENT")) << "a manifest that was begun";
  store_.Open();
  EXPECT_EQ(Rebuilt(), 5);
  store_.ExpectHas(object);
  store_.Reopen();
  EXPECT_EQ(Rebuilt(), 0);
}

// The records are written, the generations are not: as after a crash in between.
TEST_F(NvmeRebuildTest, AManifestThatWasNotFinishedIsMadeAgain) {
  store_.Open();
  const TestObject object = PutNew(1);
  store_.Close();
  fs::remove_all(manifest());
  fs::create_directory(manifest());
  {
    const auto disk = MakeSystemDisk(store_.path().string(), IoEngineKind::kAuto);
    auto begun = Manifest::Open(manifest().string(), kMiB, disk->RocksFileSystem()).value();
    const RecordChange wrong = {.key = EncodeRecordKey(object.id), .place = "half of it"};
    ASSERT_TRUE(begun->Apply({&wrong, 1}, RecordWrite::kSynced).ok());
    ASSERT_FALSE(begun->HasGenerations().value());
    ASSERT_TRUE(begun->Close().ok());
  }
  store_.Open();
  EXPECT_EQ(Rebuilt(), 1);
  store_.ExpectHas(object);
}

TEST_F(NvmeRebuildTest, AManifestFromBeforeThereWereIdentitiesOpensAsItIs) {
  store_.Open();
  const TestObject object = PutNew(1);
  store_.Close();
  {
    const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
        {"default", {}}, {"places", {}}, {"contents", {}}, {"roots", {}}};
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* db = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open({}, manifest().string(), families, &handles, &db).ok());
    ASSERT_TRUE(db->Delete({}, "identity").ok());
    for (rocksdb::ColumnFamilyHandle* handle : handles)
      EXPECT_TRUE(db->DestroyColumnFamilyHandle(handle).ok());
    delete db;
  }
  fs::remove(store_.path() / kErasedLogName);
  store_.Open();
  EXPECT_EQ(Rebuilt(), 0);
  store_.ExpectHas(object);
  EXPECT_TRUE(fs::exists(store_.path() / kErasedLogName));
  // It has one now: a manifest without would be made again, and adopt the object.
  LoseManifestAndOpen();
  EXPECT_EQ(Rebuilt(), 1);
}

TEST_F(NvmeRebuildTest, OneSectorThatCannotBeReadLosesOneObject) {
  store_.Open();
  const TestObject unreadable = PutNew(1);
  const TestObject whole = PutNew(2);
  store_.Close();
  fs::remove_all(manifest());
  const auto faults = std::make_shared<FileFaults>();
  faults->read = [](const std::string& name, uint64_t offset, uint64_t length) {
    return name == "seg-000000" && offset == 0 && length > 0 ? UnavailableError("EIO") : OkStatus();
  };
  ASSERT_TRUE(OpenOn(faults).ok());
  EXPECT_EQ(Rebuilt(), 1);
  store_.ExpectHas(whole);
  ExpectMiss(unreadable);
}

TEST_F(NvmeRebuildTest, ASegmentThatIsLostTooLosesOnlyItsOwn) {
  store_.Open();
  std::vector<TestObject> objects;
  for (uint64_t seed = 1; seed <= 4; ++seed) objects.push_back(PutNew(seed, 12 * kMiB));  // one in each
  constexpr uint64_t kLongRun = 12 * kMiB + kTierPageBytes;
  store_.Close();
  fs::remove(store_.segment(1));
  fs::resize_file(store_.segment(2), 5 * kMiB);
  const fs::path damaged = store_.root() / "damaged";
  fs::copy(store_.path(), damaged, fs::copy_options::recursive);
  for (const bool manifest_too : {false, true}) {
    SCOPED_TRACE(manifest_too);
    fs::remove_all(store_.path());
    fs::copy(damaged, store_.path(), fs::copy_options::recursive);
    if (manifest_too) fs::remove_all(manifest());
    store_.Open();
    EXPECT_EQ(Rebuilt(), manifest_too ? 2 : 0);
    store_.ExpectHas(objects[0]);
    ExpectMiss(objects[1]);
    ExpectMiss(objects[2]);
    store_.ExpectHas(objects[3]);
    EXPECT_EQ(store_.backend().used_bytes(), 2 * kLongRun);
    store_.Close();
    CheckAccounting(2 * kLongRun);
  }
}

}  // namespace
}  // namespace terrace
