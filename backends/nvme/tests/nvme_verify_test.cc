// VerifyNvmeDirectory: each thing that can be wrong, planted once and alone. Whoever plants uses the formats
// and RocksDB's files as the tier leaves them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>

#include "backends/nvme/disk.h"
#include "backends/nvme/tests/nvme_verify_fixture.h"
#include "backends/nvme/verify.h"
#include "terrace/kv_spec.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

// Names, sizes and bytes of everything but the lock's text.
std::map<std::string, std::string> Snapshot(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    const std::string name = fs::relative(entry.path(), directory).string();
    if (!entry.is_regular_file()) {
      files[name] = "directory";
    } else if (name != "lock") {
      std::ifstream in(entry.path(), std::ios::binary);
      files[name] = std::string(std::istreambuf_iterator<char>(in), {});
    }
  }
  return files;
}

TEST_F(NvmeVerifyTest, AWholeTierIsCleanAndNoFileChanges) {
  Make(9, 5 * kMiB);  // several segments, several parts per object, runs across segments
  NvmeVerifyOptions options = Options();
  options.capacity_bytes = 128 * kMiB;
  const std::map<std::string, std::string> before = Snapshot(store_.path());
  std::vector<NvmeVerifyProgress> seen;
  const Result<NvmeVerifyReport> report =
      VerifyNvmeDirectory(options, [&](const NvmeVerifyProgress& progress) { seen.push_back(progress); });
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_TRUE(Snapshot(store_.path()) == before) << "a file was changed, made or removed";
  EXPECT_TRUE(report->IsClean());
  EXPECT_TRUE(report->findings.empty());
  EXPECT_EQ(report->records, 9u);
  EXPECT_EQ(report->objects_checked, 9u);
  EXPECT_EQ(report->bytes_read, 9 * (5 * kMiB + 4096));
  EXPECT_EQ(report->live_bytes, report->bytes_read);
  EXPECT_EQ(report->segments, 3u);
  EXPECT_EQ(report->segment_bytes, 48 * kMiB);
  EXPECT_GT(report->manifest_bytes, 0u);
  ASSERT_GT(seen.size(), 18u);
  EXPECT_EQ(seen.front().bytes_read, 0u);
  EXPECT_EQ(seen.back().bytes_read, seen.back().bytes_total);
  EXPECT_EQ(seen.back().objects_checked, 9u);
}

TEST_F(NvmeVerifyTest, AnEmptyTierIsClean) {
  Make(0);
  EXPECT_TRUE(Verify().IsClean());
  EXPECT_TRUE(Verify(true).IsClean());
}

TEST_F(NvmeVerifyTest, AnUncleanEndIsNoDamage) {
  Make(3);
  fs::remove(store_.path() / "lock");
  EXPECT_TRUE(Verify().IsClean());
  // Its text stays from a holder that was killed; nobody has it.
  std::ofstream(store_.path() / "lock") << "pid 1\nprocess gone\n";
  EXPECT_TRUE(Verify().IsClean());
}

TEST_F(NvmeVerifyTest, AFlippedPayloadByte) {
  Make(4, 3 * kMiB);
  FlipBit(2 * (3 * kMiB + kTierPageBytes) + kTierPageBytes + 2 * kMiB);
  ExpectOnly(NvmeFindingKind::kPayload, 1, {2}, 1);
}

TEST_F(NvmeVerifyTest, TheLastByteOfAPayloadOfSeveralParts) {
  Make(1, 9 * kMiB);
  const uint64_t payload_end = kTierPageBytes + 9 * kMiB;
  FlipBit(payload_end - 1);
  ExpectOnly(NvmeFindingKind::kPayload, 1, {0}, 1);
}

TEST_F(NvmeVerifyTest, AFlippedByteOfTheFrameHeader) {
  Make(3);
  FlipBit(kRun + kTierPageBytes + 180);
  ExpectOnly(NvmeFindingKind::kFrameHeader, 1, {1}, 1);
}

TEST_F(NvmeVerifyTest, AFlippedByteOfTheTierPage) {
  Make(3);
  FlipBit(2 * kRun + 33);
  ExpectOnly(NvmeFindingKind::kTierPage, 1, {2}, 1);
}

TEST_F(NvmeVerifyTest, AWipedTierPage) {
  Make(3);
  Write(0, kRun, std::string(kTierPageBytes, '\0'));
  EXPECT_THAT(Verify().findings.at(0).reason, HasSubstr("wiped"));
  ExpectOnly(NvmeFindingKind::kTierPage, 1, {1}, 1);
}

TEST_F(NvmeVerifyTest, SwappedPages) {
  Make(3);
  const std::string first = Read(0, 0, kTierPageBytes);
  Write(0, 0, Read(0, kRun, kTierPageBytes));
  Write(0, kRun, first);
  ExpectOnly(NvmeFindingKind::kTierPage, 2, {0, 1}, 2);
}

TEST_F(NvmeVerifyTest, SwappedRuns) {
  Make(3);
  const std::string first = Read(0, 0, kRun);
  Write(0, 0, Read(0, kRun, kRun));
  Write(0, kRun, first);
  EXPECT_THAT(Verify().findings.at(0).reason, HasSubstr("generation"));
  ExpectOnly(NvmeFindingKind::kTierPage, 2, {0, 1}, 2);
}

TEST_F(NvmeVerifyTest, AnOlderSaveOfTheObject) {
  Make(1);
  const std::string old_run = Read(0, 0, kRun);
  store_.Open();
  ASSERT_TRUE(store_.Erase(objects_[0].id, EraseMode::kEvict).ok());
  ASSERT_TRUE(store_.Put(objects_[0]).ok());
  store_.Close();
  Write(0, 0, old_run);
  ExpectOnly(NvmeFindingKind::kTierPage, 1, {0}, 1);
}

TEST_F(NvmeVerifyTest, ARecordOfAnotherDirectory) {
  NvmeTestStore other;
  other.Open();
  const TestObject foreign = MakeNvmeObject(77, kFrame);
  ASSERT_TRUE(other.Put(foreign).ok());
  other.Close();
  Make(2);
  ObjectRecord record = Records().begin()->second;
  record.meta = foreign.meta;
  record.meta.content = nullptr;
  record.content_bytes = 0;
  record.meta.generation = 1'000'000;
  record.extents = {{0, 8 * kMiB, kRun}};
  Plant("places", EncodeRecordKey(foreign.id), EncodePlace(record));
  std::ifstream in(other.segment(0), std::ios::binary);
  std::string run(kRun, '\0');
  ASSERT_TRUE(in.read(run.data(), static_cast<std::streamsize>(run.size())));
  Write(0, 8 * kMiB, run);
  ExpectOnly(NvmeFindingKind::kTierPage, 1, {}, 1);
}

TEST_F(NvmeVerifyTest, APlaceRecordWithAWrongByte) {
  Make(3);
  std::string place = EncodePlace(Records().at(objects_[1].id));
  place[50] = static_cast<char>(place[50] ^ 4);
  Plant("places", KeyOf(1), place);
  ExpectOnly(NvmeFindingKind::kPlaceRecord, 1, {1}, 1);
}

TEST_F(NvmeVerifyTest, APlaceRecordWhoseLengthsDoNotFit) {
  Make(3);
  ObjectRecord record = Records().at(objects_[1].id);
  record.header_bytes = kFrame + kFrameAlignment;
  Plant("places", KeyOf(1), EncodePlace(record));
  ExpectOnly(NvmeFindingKind::kPlaceRecord, 1, {1}, 1);
}

TEST_F(NvmeVerifyTest, ARecordUnderAKeyThatNamesNothing) {
  Make(2);
  Plant("places", "no record key", EncodePlace(Records().at(objects_[0].id)));
  ExpectOnly(NvmeFindingKind::kRecordKey, 1, {}, 1);
}

TEST_F(NvmeVerifyTest, ARecordUnderAnotherObjectsKey) {
  Make(2);
  ObjectRecord moved = Records().at(objects_[1].id);
  moved.content_bytes = 0;
  const TestObject other = MakeNvmeObject(50, kFrame);
  Plant("places", EncodeRecordKey(other.id), EncodePlace(moved));
  const NvmeVerifyReport report = Verify();
  // The two have the same generation and the same place: which one holds it is not told.
  EXPECT_EQ(report.count(NvmeFindingKind::kPlaceOverlap).count, 1u);
  EXPECT_LE(report.count(NvmeFindingKind::kFrameHeader).count, 1u);
  EXPECT_LT(report.live_bytes, 3 * kRun);
}

TEST_F(NvmeVerifyTest, OfOverlappingPlacesTheHighestGenerationIsRight) {
  Make(4);
  const auto records = Records();
  ObjectRecord claim = records.at(objects_[1].id);
  claim.extents = {{0, 3 * kRun, 4096}, {0, kRun + 4096, kRun - 4096}};  // its own place, and a page of 3's
  Plant("places", KeyOf(1), EncodePlace(claim));
  ExpectOnly(NvmeFindingKind::kPlaceOverlap, 1, {1}, 1);
}

TEST_F(NvmeVerifyTest, APlaceThatOverlapsItself) {
  Make(2);
  ObjectRecord claim = Records().at(objects_[0].id);
  claim.extents = {{0, 0, 4096}, {0, 0, kRun - 4096}};
  Plant("places", KeyOf(0), EncodePlace(claim));
  ExpectOnly(NvmeFindingKind::kPlaceOverlap, 1, {0}, 1);
}

TEST_F(NvmeVerifyTest, PlacesOutsideTheSegments) {
  Make(4);
  ObjectRecord record = Records().at(objects_[0].id);
  record.extents = {{0, 16 * kMiB - 4096, kRun}};
  Plant("places", KeyOf(0), EncodePlace(record));
  record = Records().at(objects_[1].id);
  record.extents = {{9, 0, kRun}};
  Plant("places", KeyOf(1), EncodePlace(record));
  record = Records().at(objects_[2].id);
  record.extents = {{0, 1 * kMiB + 512, kRun}};
  Plant("places", KeyOf(2), EncodePlace(record));
  ExpectOnly(NvmeFindingKind::kPlaceBounds, 3, {0, 1, 2}, 3);
}

TEST_F(NvmeVerifyTest, ATruncatedSegment) {
  Make(10);
  fs::resize_file(store_.segment(0), 6 * kRun + 8192 + 17);
  ExpectOnly(NvmeFindingKind::kPlaceBounds, 4, {6, 7, 8, 9}, 4);
}

TEST_F(NvmeVerifyTest, AMissingSegment) {
  Make(7, 5 * kMiB);
  std::vector<size_t> lost;
  const auto records = Records();
  for (size_t i = 0; i < objects_.size(); ++i) {
    const std::vector<Extent>& extents = records.at(objects_[i].id).extents;
    if (std::any_of(extents.begin(), extents.end(), [](const Extent& e) { return e.segment == 0; })) {
      lost.push_back(i);
    }
  }
  ASSERT_GE(lost.size(), 3u);
  fs::remove(store_.segment(0));
  ExpectOnly(NvmeFindingKind::kPlaceBounds, lost.size(), lost, lost.size());
}

TEST_F(NvmeVerifyTest, ObjectsOfManyExtents) {
  store_.Open(40 * kMiB);
  std::vector<TestObject> small;
  Status put;
  for (uint64_t seed = 100; put.ok(); ++seed) {
    small.push_back(MakeNvmeObject(seed, kMiB));
    put = store_.Put(small.back());
  }
  small.pop_back();
  for (size_t i = 0; i < small.size(); i += 2) {
    ASSERT_TRUE(store_.Erase(small[i].id, EraseMode::kEvict).ok());
  }
  objects_.push_back(MakeNvmeObject(1, 9 * kMiB));
  ASSERT_TRUE(store_.Put(objects_[0]).ok());
  store_.Close();
  const std::vector<Extent> extents = Records().at(objects_[0].id).extents;
  ASSERT_GT(extents.size(), 4u);
  ASSERT_TRUE(Verify().IsClean());
  std::string byte = Read(static_cast<int>(extents.back().segment), extents.back().offset, 1);
  byte[0] = static_cast<char>(~byte[0]);
  Write(static_cast<int>(extents.back().segment), extents.back().offset, byte);
  ExpectOnly(NvmeFindingKind::kPayload, 1, {0}, 1);
}

TEST_F(NvmeVerifyTest, ARecordThatContradictsItsFrame) {
  Make(2);
  ObjectRecord record = Records().at(objects_[1].id);
  record.meta.first_token += 256;
  Plant("places", KeyOf(1), EncodePlace(record));
  EXPECT_THAT(Verify().findings.at(0).reason, HasSubstr("first token"));
  ExpectOnly(NvmeFindingKind::kFrameHeader, 1, {1}, 1);
}

TEST_F(NvmeVerifyTest, ABrokenRootIsDroppedAloneAndObjectsStay) {
  store_.Open();
  KvSpec spec;
  spec.model_id = "m";
  const RootRecord root = *ComputeRoot(spec, {}, "salt");
  ASSERT_TRUE(store_.backend().PutRoot(root).ok());
  store_.Close();
  Make(2);
  Plant("roots", std::string(32, 'r'), "no root record");
  Plant("roots", "short", EncodeRootRecord(root));
  ExpectOnly(NvmeFindingKind::kRootRecord, 2, {}, 2);
  EXPECT_EQ(store_.backend().ScanRoots().value(), std::vector<RootRecord>{root});
}

TEST_F(NvmeVerifyTest, ForeignFilesAreToldAndStay) {
  Make(2);
  std::ofstream(store_.path() / "notes.txt") << "not ours";
  fs::create_directory(store_.path() / "seg-12");
  fs::create_symlink("/etc/hostname", store_.path() / "seg-000007");
  const NvmeVerifyReport report = Verify(true);
  EXPECT_EQ(report.count(NvmeFindingKind::kForeignFile).count, 3u);
  EXPECT_TRUE(report.IsClean()) << "they harm nothing";
  EXPECT_EQ(report.objects_checked, 2u);
  EXPECT_TRUE(fs::exists(store_.path() / "notes.txt"));
  EXPECT_TRUE(fs::is_symlink(store_.path() / "seg-000007"));
}

TEST_F(NvmeVerifyTest, MoreBytesThanTheCapacity) {
  Make(2);
  NvmeVerifyOptions options = Options();
  options.capacity_bytes = 16 * kMiB;
  const Result<NvmeVerifyReport> report = VerifyNvmeDirectory(options);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->count(NvmeFindingKind::kCapacity).count, 1u);
  EXPECT_EQ(report->count(NvmeFindingKind::kCapacity).bytes, report->manifest_bytes);
  EXPECT_FALSE(report->IsClean());
}

TEST_F(NvmeVerifyTest, AManifestThatIsGoneOrBroken) {
  Make(2);
  const fs::path manifest = store_.path() / "manifest";
  fs::rename(manifest, store_.root() / "kept");
  NvmeVerifyReport report = Verify(true);
  EXPECT_EQ(report.count(NvmeFindingKind::kManifest).count, 1u);
  EXPECT_EQ(report.live_bytes, 0u);
  EXPECT_FALSE(fs::exists(manifest)) << "repair made one";
  fs::rename(store_.root() / "kept", manifest);
  EXPECT_TRUE(Verify().IsClean());
  std::ofstream(manifest / "CURRENT") << "MANIFEST-999999\n";
  report = Verify(true);
  EXPECT_EQ(report.count(NvmeFindingKind::kManifest).count, 1u);
  EXPECT_FALSE(report.IsClean());
}

TEST_F(NvmeVerifyTest, OnlyTheFirstFindingsAreListedAndAllAreCounted) {
  Make(5);
  for (size_t i = 0; i < 5; ++i) FlipBit(i * kRun + kTierPageBytes + 40000);
  NvmeVerifyOptions options = Options();
  options.max_findings = 2;
  const Result<NvmeVerifyReport> report = VerifyNvmeDirectory(options);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->findings.size(), 2u);
  EXPECT_EQ(report->count(NvmeFindingKind::kPayload).count, 5u);
  EXPECT_EQ(report->count(NvmeFindingKind::kPayload).bytes, 5 * kRun);
  EXPECT_EQ(report->findings[0].name, objects_[0].id.key.ToHex() + "/0/0");
}

TEST_F(NvmeVerifyTest, WhatIsNoTierIsRefusedAndStaysUntouched) {
  const auto code = [](const fs::path& path, bool repair = true) {
    return VerifyNvmeDirectory({.directory = path.string(), .repair = repair}).status().code();
  };
  EXPECT_EQ(code(""), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(store_.path()), StatusCode::kNotFound);
  EXPECT_FALSE(fs::exists(store_.path())) << "verify made it";
  fs::create_directory(store_.path());
  EXPECT_EQ(code(store_.path()), StatusCode::kNotFound);
  std::ofstream(store_.path() / "file") << "x";
  EXPECT_EQ(code(store_.path()), StatusCode::kNotFound);
  EXPECT_EQ(Snapshot(store_.path()), (std::map<std::string, std::string>{{"file", "x"}}));
  fs::create_directory_symlink(store_.path(), store_.root() / "link");
  EXPECT_EQ(code(store_.root() / "link"), StatusCode::kDataLoss);
  std::ofstream(store_.path() / "superblock") << "short";
  EXPECT_EQ(code(store_.path()), StatusCode::kDataLoss);
  EXPECT_FALSE(fs::exists(store_.path() / "lock"));
}

TEST_F(NvmeVerifyTest, ANewerVersionIsRefused) {
  Make(1);
  std::fstream superblock(store_.path() / "superblock", std::ios::in | std::ios::out | std::ios::binary);
  superblock.seekp(8).put(99);
  superblock.close();
  const Status status = VerifyNvmeDirectory(Options(true)).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("99"));
}

TEST_F(NvmeVerifyTest, AHeldDirectoryNamesItsHolder) {
  store_.Open();
  const Status status = VerifyNvmeDirectory(Options(true)).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("(" + std::to_string(getpid()) + ")"));
}

TEST_F(NvmeVerifyTest, TheTierIsHeldWhileItIsVerified) {
  Make(2);
  Status meanwhile;
  const Result<NvmeVerifyReport> report = VerifyNvmeDirectory(
      Options(), [&](const NvmeVerifyProgress&) { meanwhile = store_.TryOpen(store_.options()); });
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(meanwhile.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(store_.TryOpen(store_.options()).ok()) << "it is let go afterwards";
}

TEST_F(NvmeVerifyTest, WhatTheDeviceDoesNotGiveIsUnreadable) {
  Make(3);
  auto faults = std::make_shared<EngineFaults>();
  faults->change = [](IoCompletion& completion) {
    if (completion.request->offset == kRun) completion.result = -EIO;
  };
  const std::unique_ptr<Disk> disk =
      MakeSystemDisk(store_.path().string(), IoEngineKind::kAuto, MakeFaultyEngine(faults));
  const Result<NvmeVerifyReport> report = VerifyDisk(*disk, Options(), {});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->count(NvmeFindingKind::kUnreadable).count, 1u);
  EXPECT_EQ(report->findings.size(), 1u);
  EXPECT_EQ(report->findings[0].name, objects_[1].id.key.ToHex() + "/0/0");
}

// For tests of the program: leaves a closed tier of four objects of kFrame at TERRACE_NVME_TEST_DIRECTORY,
// with the record damaged that TERRACE_NVME_TEST_DAMAGE names; or, for "encrypted", under a key of 32 times
// 0x11.
TEST_F(NvmeVerifyTest, DISABLED_MakesADirectory) {
  const char* directory = std::getenv("TERRACE_NVME_TEST_DIRECTORY");
  ASSERT_NE(directory, nullptr);
  const char* set = std::getenv("TERRACE_NVME_TEST_DAMAGE");
  const std::string damage = set == nullptr ? "" : set;
  if (damage == "encrypted") {
    store_.keys = {{.id = 1}};
    store_.keys[0].bytes.fill(std::byte{0x11});
  }
  Make(4);
  ObjectRecord record = Records().at(objects_[1].id);
  if (damage == "place_record") Plant("places", KeyOf(1), "no place");
  if (damage == "record_key") Plant("places", "no record key", EncodePlace(record));
  if (damage == "content_record") Plant("contents", KeyOf(1), "no content");
  if (damage == "identity") Plant("contents", KeyOf(1), EncodeRecordContent(*objects_[2].meta.content));
  if (damage == "quarantine") {
    const std::unique_ptr<Manifest> manifest = OpenManifest();
    ASSERT_TRUE(manifest->PutQuarantine(std::vector<Extent>{{0, kRun + 8192, 4096}}).ok());
    ASSERT_TRUE(manifest->Close().ok());
  }
  if (damage == "erased") {
    const std::string content = EncodeRecordContent(*objects_[1].meta.content);
    store_.Open();
    ASSERT_TRUE(store_.Erase(objects_[1].id, EraseMode::kErase).ok());
    store_.Close();
    Plant("contents", KeyOf(1), content);
    Plant("places", KeyOf(1), EncodePlace(record));
  }
  if (damage == "root_record") Plant("roots", std::string(32, 'r'), "no root");
  if (damage == "place_bounds") record.extents = {{9, 0, kRun}};
  if (damage == "place_overlap") record.extents = {{0, 3 * kRun, 4096}, {0, kRun + 4096, kRun - 4096}};
  if (damage.starts_with("place_") && damage != "place_record")
    Plant("places", KeyOf(1), EncodePlace(record));
  fs::copy(store_.path(), directory, fs::copy_options::recursive);
  fs::permissions(directory, fs::perms::owner_all);
}

}  // namespace
}  // namespace terrace
