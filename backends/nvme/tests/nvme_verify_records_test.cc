// VerifyNvmeDirectory on what the manifest holds beside places: contents, quarantine, identity; and on the
// log of erased objects.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "backends/nvme/erased_log.h"
#include "backends/nvme/opened_records.h"
#include "backends/nvme/superblock.h"
#include "backends/nvme/tests/nvme_verify_fixture.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NvmeVerifyRecordsTest : public NvmeVerifyTest {
 protected:
  std::string ContentOf(size_t i) const { return EncodeRecordContent(*objects_[i].meta.content); }

  void Quarantine(const std::vector<Extent>& extents) {
    const std::unique_ptr<Manifest> manifest = OpenManifest();
    ASSERT_TRUE(manifest->PutQuarantine(extents).ok());
    ASSERT_TRUE(manifest->Close().ok());
  }

  Superblock ReadSuperblock() {
    std::ifstream in(store_.path() / "superblock", std::ios::binary);
    return DecodeSuperblock(std::string(std::istreambuf_iterator<char>(in), {})).value();
  }
  void WriteSuperblock(const Superblock& superblock) {
    std::ofstream(store_.path() / "superblock", std::ios::binary) << EncodeSuperblock(superblock);
  }

  // Told, not mended, and no object is touched.
  void ExpectStays(NvmeFindingKind kind, const std::string& reason) {
    for (const bool repair : {false, true}) {
      const NvmeVerifyReport report = Verify(repair);
      EXPECT_EQ(report.count(kind).count, 1u);
      ASSERT_EQ(report.findings.size(), 1u);
      EXPECT_THAT(report.findings[0].reason, HasSubstr(reason));
      EXPECT_FALSE(report.IsClean());
      EXPECT_EQ(report.dropped_records, 0u);
    }
  }
};

TEST_F(NvmeVerifyRecordsTest, ABrokenContentCostsNothingElse) {
  Make(3);
  Plant("contents", KeyOf(0), ContentOf(0).substr(1));
  ExpectOnly(NvmeFindingKind::kContentRecord, 1, {}, 1);
  EXPECT_THAT(WithContent(), ElementsAre(1, 2));
}

TEST_F(NvmeVerifyRecordsTest, AContentThatIsNotAsLongAsItsPlaceSays) {
  Make(3);
  ObjectRecord record = Records().at(objects_[1].id);
  ASSERT_TRUE(record.content_bytes);
  *record.content_bytes += 4;
  Plant("places", KeyOf(1), EncodePlace(record));
  ExpectOnly(NvmeFindingKind::kContentRecord, 1, {}, 1);
  EXPECT_THAT(WithContent(), ElementsAre(0, 2));
}

TEST_F(NvmeVerifyRecordsTest, AContentThatIsGone) {
  Make(2);
  Plant("contents", KeyOf(1), std::nullopt);
  EXPECT_THAT(Verify().findings.at(0).reason, HasSubstr("0 bytes"));
  ExpectOnly(NvmeFindingKind::kContentRecord, 1, {}, 1);
  store_.Close();
  EXPECT_EQ(Records().at(objects_[1].id).content_bytes, 0u) << "its place names it still";
}

TEST_F(NvmeVerifyRecordsTest, AContentWithoutAPlace) {
  Make(3);
  const TestObject other = MakeNvmeObject(50, kFrame);
  Plant("contents", EncodeRecordKey(other.id), EncodeRecordContent(*other.meta.content));
  ExpectOnly(NvmeFindingKind::kContentRecord, 1, {}, 1);
}

TEST_F(NvmeVerifyRecordsTest, TheContentOfAnotherObject) {
  Make(3);
  Plant("contents", KeyOf(1), ContentOf(2));
  ExpectOnly(NvmeFindingKind::kIdentity, 1, {}, 1);
  EXPECT_THAT(WithContent(), ElementsAre(0, 2));
}

TEST_F(NvmeVerifyRecordsTest, ABrokenContentOfABrokenFrame) {
  Make(3);
  Plant("contents", KeyOf(1), "no content");
  FlipBit(kRun + kTierPageBytes + 40000);
  ExpectOnly(NvmeFindingKind::kPayload, 1, {1}, 1);
}

TEST_F(NvmeVerifyRecordsTest, QuarantinedBytesAreCounted) {
  Make(3);
  // Two that meet, one that ends beyond its segment, two of segments that are not there, one in part of a
  // unit.
  Quarantine({{0, 5 * kMiB, 2 * kMiB},
              {0, 6 * kMiB, 3 * kMiB},
              {0, 16 * kMiB - 8192, kMiB},
              {0, 16 * kMiB, 4096},
              {700, 0, 4096},
              {0, 10 * kMiB + 100, 4096}});
  const NvmeVerifyReport report = Verify();
  EXPECT_TRUE(report.IsClean());
  EXPECT_EQ(report.segment_bytes, 16 * kMiB);
  EXPECT_EQ(report.quarantined_bytes, 4 * kMiB + 8192 + 8192);
  EXPECT_EQ(report.live_bytes, 3 * kRun);
  store_.Open();
  EXPECT_EQ(store_.Metric("terrace_nvme_quarantined_bytes"), static_cast<int64_t>(report.quarantined_bytes));
  EXPECT_EQ(store_.backend().used_bytes(), report.live_bytes);
}

TEST_F(NvmeVerifyRecordsTest, ARecordInQuarantine) {
  Make(4);
  Quarantine({{0, 2 * kRun + 8192, 4096}, {0, 4 * kRun, 4096}});
  ExpectOnly(NvmeFindingKind::kQuarantine, 1, {2}, 1);
  store_.Close();
  const NvmeVerifyReport report = Verify();
  EXPECT_EQ(report.live_bytes, 3 * kRun);
  EXPECT_EQ(report.quarantined_bytes, 8192u);
}

TEST_F(NvmeVerifyRecordsTest, AMalformedEntryOfTheQuarantine) {
  Make(2);
  const std::string key = "quarantine/" + std::string(12, '\0');
  Plant("default", key, "short");
  ExpectStays(NvmeFindingKind::kManifest, "quarantine");
  Plant("default", key, std::string(8, '\0'));
  ExpectStays(NvmeFindingKind::kManifest, "quarantine");
  Plant("default", "quarantine/" + std::string(12, '\x7f'), std::string(8, '\xff'));
  Plant("default", key, std::nullopt);
  ExpectStays(NvmeFindingKind::kManifest, "quarantine");
}

TEST_F(NvmeVerifyRecordsTest, ARecordOfAnErasedObject) {
  Make(3);
  const std::string place = EncodePlace(Records().at(objects_[1].id));
  const std::string page = Read(0, kRun, kTierPageBytes);
  store_.Open();
  ASSERT_TRUE(store_.Erase(objects_[1].id, EraseMode::kErase).ok());
  store_.Close();
  ASSERT_TRUE(Verify().IsClean());
  Plant("places", KeyOf(1), place);
  Plant("contents", KeyOf(1), ContentOf(1));
  Write(0, kRun, page);
  ExpectOnly(NvmeFindingKind::kErased, 1, {1}, 1);
}

TEST_F(NvmeVerifyRecordsTest, AnObjectThatCameAfterItsErase) {
  Make(3);
  store_.Open();
  ASSERT_TRUE(store_.Erase(objects_[1].id, EraseMode::kErase).ok());
  ASSERT_TRUE(store_.Put(objects_[1]).ok());
  store_.Close();
  const NvmeVerifyReport report = Verify();
  EXPECT_TRUE(report.IsClean());
  EXPECT_EQ(report.objects_checked, 3u);
}

TEST_F(NvmeVerifyRecordsTest, AMissingErasedLog) {
  Make(2);
  fs::remove(store_.path() / kErasedLogName);
  ExpectStays(NvmeFindingKind::kErasedLog, "erased");
  EXPECT_FALSE(fs::exists(store_.path() / kErasedLogName)) << "verify made one";
  store_.Open();
  store_.Close();
  EXPECT_TRUE(Verify().IsClean());
}

TEST_F(NvmeVerifyRecordsTest, BrokenEntriesOfTheErasedLog) {
  Make(3);
  store_.Open();
  ASSERT_TRUE(store_.Erase(objects_[0].id, EraseMode::kErase).ok());
  ASSERT_TRUE(store_.Erase(objects_[1].id, EraseMode::kErase).ok());
  store_.Close();
  const fs::path log = store_.path() / kErasedLogName;
  ASSERT_EQ(fs::file_size(log), 2 * kErasedEntryBytes);
  // What a crash leaves at the end.
  std::ofstream(log, std::ios::binary | std::ios::app) << std::string(70, 'x');
  EXPECT_TRUE(Verify(true).IsClean());
  EXPECT_EQ(fs::file_size(log), 2 * kErasedEntryBytes + 70) << "it was cut off";
  std::fstream(log, std::ios::in | std::ios::out | std::ios::binary).put('x');
  ExpectStays(NvmeFindingKind::kErasedLog, "1 broken");
}

TEST_F(NvmeVerifyRecordsTest, AManifestOlderThanTheSuperblock) {
  Make(2);
  const Superblock right = ReadSuperblock();
  Superblock superblock = right;
  superblock.rebuild_floor = uint64_t{1} << 50;
  WriteSuperblock(superblock);
  ExpectStays(NvmeFindingKind::kManifest, "older than the superblock");
  EXPECT_EQ(Verify().live_bytes, 0u);
  superblock = right;
  superblock.secret[3] ^= std::byte{1};
  WriteSuperblock(superblock);
  ExpectStays(NvmeFindingKind::kManifest, "older than the superblock");
  superblock = right;
  superblock.directory[0] ^= std::byte{1};
  WriteSuperblock(superblock);
  ExpectStays(NvmeFindingKind::kManifest, "another directory");
  WriteSuperblock(right);
  EXPECT_TRUE(Verify().IsClean());
  Plant("default", "identity", "short");
  ExpectStays(NvmeFindingKind::kManifest, "identity");
}

// The floor is for a rebuild: what a whole manifest has of before stays.
TEST_F(NvmeVerifyRecordsTest, ObjectsBelowTheRebuildFloorAreRight) {
  Make(2);
  Superblock superblock = ReadSuperblock();
  superblock.rebuild_floor = uint64_t{1} << 50;
  WriteSuperblock(superblock);
  const std::unique_ptr<Manifest> manifest = OpenManifest();
  ASSERT_TRUE(manifest->SetIdentity(IdentityOf(superblock)).ok());
  ASSERT_TRUE(manifest->Close().ok());
  const NvmeVerifyReport report = Verify();
  EXPECT_TRUE(report.IsClean());
  EXPECT_EQ(report.objects_checked, 2u);
}

TEST_F(NvmeVerifyRecordsTest, AManifestThatWasNotFinished) {
  Make(2);
  Plant("default", "identity", std::nullopt);
  const NvmeVerifyReport report = Verify();
  EXPECT_TRUE(report.IsClean()) << "it is older than there were identities";
  EXPECT_EQ(report.objects_checked, 2u);
  Plant("default", "next_generation", std::nullopt);
  ExpectStays(NvmeFindingKind::kManifest, "not finished");
  fs::remove(store_.segment(0));
  Plant("places", KeyOf(0), std::nullopt);
  Plant("contents", KeyOf(0), std::nullopt);
  Plant("places", KeyOf(1), std::nullopt);
  Plant("contents", KeyOf(1), std::nullopt);
  EXPECT_TRUE(Verify().IsClean()) << "the tier died while it was made";
}

}  // namespace
}  // namespace terrace
