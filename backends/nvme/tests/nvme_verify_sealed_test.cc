// VerifyNvmeDirectory on an encrypted directory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/nvme/disk.h"
#include "backends/nvme/manifest_reader.h"
#include "backends/nvme/tests/nvme_verify_fixture.h"
#include "lib/wire/sealed_layout.h"
#include "terrace/kv_spec.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSealedFrame = 192 * kKiB;  // three pieces
constexpr uint64_t kHead = FrameOffsetInRun(kSealedFrame, true);
constexpr uint64_t kSealedRun = RunBytes(kSealedFrame, true);

EncryptionKey Key(uint32_t id, int fill) {
  EncryptionKey key{.id = id};
  key.bytes.fill(static_cast<std::byte>(fill));
  return key;
}

class NvmeVerifySealedTest : public NvmeVerifyTest {
 protected:
  NvmeVerifySealedTest() { store_.keys = {Key(1, 0x11)}; }

  StatusCode VerifyCode(std::vector<EncryptionKey> keys) {
    NvmeVerifyOptions options = Options();
    options.keys = std::move(keys);
    return VerifyNvmeDirectory(options).status().code();
  }
  std::string StoredContent(size_t i) {
    const std::unique_ptr<Disk> disk = MakeSystemDisk(store_.path().string(), IoEngineKind::kAuto);
    EXPECT_TRUE(disk->OpenDirectory().ok());
    const auto manifest = ManifestReader::Open(*disk).value();
    return manifest->Get(RecordFamily::kContents, KeyOf(i)).value().value();
  }
};

TEST_F(NvmeVerifySealedTest, AWholeTierIsClean) {
  store_.Open();
  uint64_t expected = 0;
  // One piece, odd ones, parts of several, tags on more than one page.
  for (const uint64_t frame_bytes :
       {8 * kKiB, 64 * kKiB, 68 * kKiB, 4 * kMiB, 5 * kMiB + 4 * kKiB, 17 * kMiB + 8 * kKiB}) {
    objects_.push_back(MakeNvmeObject(objects_.size() + 1, frame_bytes));
    ASSERT_TRUE(store_.Put(objects_.back()).ok());
    expected += RunBytes(frame_bytes, true);
  }
  KvSpec spec;
  spec.model_id = "m";
  ASSERT_TRUE(store_.backend().PutRoot(*ComputeRoot(spec, {}, "salt")).ok());
  store_.Close();
  const NvmeVerifyReport report = Verify();
  EXPECT_TRUE(report.IsClean()) << report.findings.at(0).reason;
  EXPECT_EQ(report.objects_checked, 6u);
  EXPECT_EQ(report.roots, 1u);
  EXPECT_EQ(report.bytes_read, expected);
  EXPECT_EQ(report.live_bytes, expected);
}

TEST_F(NvmeVerifySealedTest, ObjectsOfTwoKeys) {
  Make(2, kSealedFrame);
  store_.keys.push_back(Key(2, 0x22));
  store_.Open();
  objects_.push_back(MakeNvmeObject(3, kSealedFrame));
  ASSERT_TRUE(store_.Put(objects_[2]).ok());
  store_.Close();
  const NvmeVerifyReport report = Verify();
  EXPECT_TRUE(report.IsClean());
  EXPECT_EQ(report.objects_checked, 3u);
  EXPECT_EQ(VerifyCode({Key(1, 0x11)}), StatusCode::kPermissionDenied);
  EXPECT_EQ(VerifyCode({Key(2, 0x22)}), StatusCode::kPermissionDenied);
}

TEST_F(NvmeVerifySealedTest, WithoutItsKeysNothingIsJudged) {
  Make(1, kSealedFrame);
  fs::remove(store_.path() / "lock");
  EXPECT_EQ(VerifyCode({}), StatusCode::kPermissionDenied);
  EXPECT_EQ(VerifyCode({Key(1, 0x12)}), StatusCode::kPermissionDenied);
  EXPECT_EQ(VerifyCode({Key(0, 0x11)}), StatusCode::kInvalidArgument);
  EXPECT_FALSE(fs::exists(store_.path() / "lock")) << "the directory was touched";
  EXPECT_EQ(VerifyCode({Key(1, 0x11)}), StatusCode::kOk);
}

TEST_F(NvmeVerifySealedTest, KeysForADirectoryThatIsNotEncrypted) {
  store_.keys.clear();
  Make(1);
  EXPECT_EQ(VerifyCode({Key(1, 0x11)}), StatusCode::kInvalidArgument);
}

struct Flip {
  const char* what;
  uint64_t offset;  // in the run
  NvmeFindingKind kind;
};

class NvmeVerifySealedFlipTest : public NvmeVerifySealedTest, public ::testing::WithParamInterface<Flip> {};

TEST_P(NvmeVerifySealedFlipTest, IsFound) {
  Make(3, kSealedFrame);
  FlipBit(kSealedRun + GetParam().offset);
  ExpectOnly(GetParam().kind, 1, {1}, 1);
}

INSTANTIATE_TEST_SUITE_P(EachPart, NvmeVerifySealedFlipTest,
                         ::testing::Values(Flip{"Magic", 1, NvmeFindingKind::kTierPage},
                                           Flip{"Generation", 33, NvmeFindingKind::kTierPage},
                                           Flip{"Expiry", 50, NvmeFindingKind::kTierPage},
                                           Flip{"Code", 70, NvmeFindingKind::kTierPage},
                                           Flip{"KeyId", 84, NvmeFindingKind::kTierPage},
                                           Flip{"ObjectId", 4070, NvmeFindingKind::kTierPage},
                                           Flip{"Unused", 2000, NvmeFindingKind::kTierPage},
                                           // Told from a broken piece by nobody.
                                           Flip{"Salt", 90, NvmeFindingKind::kFrameHeader},
                                           Flip{"TagOfTheHeader", 4096, NvmeFindingKind::kFrameHeader},
                                           Flip{"TagOfTheLastPiece", 4096 + 2 * 16 + 15,
                                                NvmeFindingKind::kPayload},
                                           Flip{"Header", kHead + 100, NvmeFindingKind::kFrameHeader},
                                           Flip{"Payload", kHead + 70000, NvmeFindingKind::kPayload},
                                           Flip{"LastByte", kSealedRun - 1, NvmeFindingKind::kPayload}),
                         [](const auto& flip) { return flip.param.what; });

TEST_F(NvmeVerifySealedTest, AWipedTierPage) {
  Make(2, kSealedFrame);
  Write(0, kSealedRun, std::string(kTierPageBytes, '\0'));
  EXPECT_THAT(Verify().findings.at(0).reason, HasSubstr("wiped"));
  ExpectOnly(NvmeFindingKind::kTierPage, 1, {1}, 1);
}

TEST_F(NvmeVerifySealedTest, SwappedRuns) {
  Make(3, kSealedFrame);
  const std::string first = Read(0, 0, kSealedRun);
  Write(0, 0, Read(0, kSealedRun, kSealedRun));
  Write(0, kSealedRun, first);
  EXPECT_THAT(Verify().findings.at(0).reason, HasSubstr("another object"));
  ExpectOnly(NvmeFindingKind::kTierPage, 2, {0, 1}, 2);
}

TEST_F(NvmeVerifySealedTest, SwappedPieces) {
  Make(2, kSealedFrame);
  const std::string second = Read(0, kHead + kSealedPieceBytes, kSealedPieceBytes);
  Write(0, kHead + kSealedPieceBytes, Read(0, kHead + 2 * kSealedPieceBytes, kSealedPieceBytes));
  Write(0, kHead + 2 * kSealedPieceBytes, second);
  EXPECT_THAT(Verify().findings.at(0).reason, HasSubstr("piece 1"));
  ExpectOnly(NvmeFindingKind::kPayload, 1, {0}, 1);
}

TEST_F(NvmeVerifySealedTest, AnOlderSaveOfTheObject) {
  Make(1, kSealedFrame);
  const std::string old_run = Read(0, 0, kSealedRun);
  store_.Open();
  ASSERT_TRUE(store_.Erase(objects_[0].id, EraseMode::kEvict).ok());
  ASSERT_TRUE(store_.Put(objects_[0]).ok());
  store_.Close();
  Write(0, 0, old_run);
  EXPECT_THAT(Verify().findings.at(0).reason, HasSubstr("generation"));
  ExpectOnly(NvmeFindingKind::kTierPage, 1, {0}, 1);
}

TEST_F(NvmeVerifySealedTest, ContentsThatDoNotOpen) {
  Make(4, kSealedFrame);
  std::string content = StoredContent(0);
  content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 1);
  Plant("contents", KeyOf(0), content);
  Plant("contents", KeyOf(1), StoredContent(2));  // of another record
  ExpectOnly(NvmeFindingKind::kContentRecord, 2, {}, 2);
  EXPECT_THAT(WithContent(), ElementsAre(2, 3));
}

TEST_F(NvmeVerifySealedTest, APlainContent) {
  Make(2, kSealedFrame);
  Plant("contents", KeyOf(1), EncodeRecordContent(*objects_[1].meta.content));
  ExpectOnly(NvmeFindingKind::kContentRecord, 1, {}, 1);
}

TEST_F(NvmeVerifySealedTest, ARootThatDoesNotOpen) {
  store_.Open();
  KvSpec spec;
  spec.model_id = "m";
  const RootRecord root = *ComputeRoot(spec, {}, "salt");
  ASSERT_TRUE(store_.backend().PutRoot(root).ok());
  store_.Close();
  Plant("roots", std::string(32, 'r'), EncodeRootRecord(root));
  ExpectOnly(NvmeFindingKind::kRootRecord, 1, {}, 1);
  EXPECT_EQ(store_.backend().ScanRoots().value(), std::vector<RootRecord>{root});
}

TEST_F(NvmeVerifySealedTest, PlacesOfOtherKeys) {
  Make(3, kSealedFrame);
  ObjectRecord record = Records().at(objects_[0].id);
  record.key_id = 9;
  Plant("places", KeyOf(0), EncodePlace(record));
  record = Records().at(objects_[1].id);
  record.key_id = 0;
  ASSERT_EQ(record.extents.size(), 1u);
  record.extents[0].length = RunBytes(kSealedFrame, false);
  Plant("places", KeyOf(1), EncodePlace(record));
  ExpectOnly(NvmeFindingKind::kPlaceRecord, 2, {0, 1}, 2);
}

TEST_F(NvmeVerifySealedTest, ASealedPlaceInAPlainDirectory) {
  store_.keys.clear();
  Make(2);
  ObjectRecord record = Records().at(objects_[1].id);
  record.key_id = 1;
  record.extents[0].length = RunBytes(kFrame, true);
  Plant("places", KeyOf(1), EncodePlace(record));
  ExpectOnly(NvmeFindingKind::kPlaceRecord, 1, {1}, 1);
}

}  // namespace
}  // namespace terrace
