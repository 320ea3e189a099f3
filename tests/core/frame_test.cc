// Frame, tier page, record: golden bytes, and every flipped bit is seen.
#include "lib/wire/frame.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "lib/codec/piece_codec.h"
#include "lib/wire/object_record.h"
#include "lib/wire/sealed_layout.h"
#include "lib/wire/tier_page.h"
#include "terrace/token_hasher.h"

namespace terrace {
namespace {

std::string GoldenPath(const std::string& name) {
  return std::string(TERRACE_SOURCE_DIR "/tests/golden/") + name;
}

// The file's bytes. TERRACE_WRITE_GOLDEN=1 makes files that are missing; existing ones are never rewritten.
std::string Golden(const std::string& name, const std::string& made_now) {
  std::ifstream in(GoldenPath(name), std::ios::binary);
  if (!in && std::getenv("TERRACE_WRITE_GOLDEN") != nullptr) {
    std::ofstream(GoldenPath(name), std::ios::binary) << made_now;
    return made_now;
  }
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string AsString(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
Bytes AsBytes(const std::string& text) { return std::as_bytes(std::span(text)); }

struct Sample {
  FrameHeader header;
  std::vector<std::byte> frame;
};

Sample MakeSample(uint64_t payload_bytes, const std::vector<uint64_t>& layers) {
  Sample sample;
  FrameHeader& header = sample.header;
  header.root = TokenHasher::KeyOf({}, {{1}, {}});
  header.parent = TokenHasher::KeyOf({}, {{2}, {}});
  header.first_token = 512;
  header.content.tokens = {5, 6, 7, 0xffffffff};
  header.content.items = {{1, {std::byte{0xaa}, std::byte{0xbb}}}};
  header.key = TokenHasher::KeyOf(header.parent, header.content);
  header.part = {1, 3};
  header.payload_bytes = header.stored_bytes = payload_bytes;
  header.pieces = PlanPieces(payload_bytes, layers);
  header.header_bytes = *HeaderBytes(header);
  sample.frame.resize(header.header_bytes + RoundUp(payload_bytes, kFrameAlignment));
  const MutableBytes payload = MutableBytes(sample.frame).subspan(header.header_bytes, payload_bytes);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 31 + (i >> 8));
  SealRawPieces(payload, header.pieces);
  EXPECT_TRUE(WriteFrameHeader(header, sample.frame).ok());
  return sample;
}

TEST(FrameTest, GoldenFrameOpensAndIsWrittenTheSame) {
  const Sample sample = MakeSample(3000, {1000, 2000});
  const std::string golden = Golden("frame_v1.bin", AsString(sample.frame));
  ASSERT_EQ(golden, AsString(sample.frame));
  Result<FrameHeader> parsed = ParseFrameHeader(AsBytes(golden));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->key, sample.header.key);
  EXPECT_EQ(parsed->content, sample.header.content);
  EXPECT_EQ(parsed->part, sample.header.part);
  EXPECT_EQ(parsed->first_token, 512u);
  EXPECT_EQ(parsed->pieces, sample.header.pieces);
  EXPECT_EQ(parsed->payload_bytes, 3000u);
}

TEST(FrameTest, EveryFlippedBitOfTheUsedHeaderIsSeen) {
  const Sample sample = MakeSample(3000, {1000, 2000});
  size_t used = 0;
  for (size_t i = 0; i < sample.header.header_bytes; ++i) {
    if (sample.frame[i] != std::byte{0}) used = i + 1;
  }
  ASSERT_GT(used, kFramePrefixBytes);
  for (size_t bit = 0; bit < used * 8; ++bit) {
    std::vector<std::byte> broken = sample.frame;
    broken[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_EQ(ParseFrameHeader(broken).status().code(), StatusCode::kDataLoss) << "bit " << bit;
  }
}

TEST(FrameTest, EveryShorterHeaderIsRefused) {
  const Sample sample = MakeSample(100, {});
  for (size_t n = 0; n < sample.header.header_bytes; n += 61) {
    EXPECT_FALSE(ParseFrameHeader(Bytes(sample.frame).first(n)).ok()) << n;
  }
}

TEST(FrameTest, PiecesNeverCrossALayer) {
  const std::vector<Piece> pieces = PlanPieces(5 << 20, {(1 << 20) + 5, 2 << 20, (2 << 20) - 5});
  std::set<uint64_t> ends;
  uint64_t at = 0;
  for (const Piece& piece : pieces) {
    EXPECT_EQ(piece.raw_offset, at);
    EXPECT_LE(piece.raw_bytes, kPieceBytes);
    at += piece.raw_bytes;
    ends.insert(at);
  }
  EXPECT_EQ(at, 5u << 20);
  EXPECT_TRUE(ends.contains((1 << 20) + 5));
  EXPECT_TRUE(ends.contains((3 << 20) + 5));
}

TEST(FrameTest, HugeContentDoesNotFitAHeader) {
  FrameHeader header;
  header.content.tokens.resize(4096);
  for (uint64_t p = 0; p < 4096; ++p) header.content.items.push_back({p, std::vector<std::byte>(64)});
  ASSERT_TRUE(HeaderBytes(header).ok());
  header.pieces.resize(30000);
  EXPECT_EQ(HeaderBytes(header).status().code(), StatusCode::kInvalidArgument);
}

TEST(PieceVerifierTest, AnyOrderOfArrivalAndEveryFlippedByte) {
  const Sample sample = MakeSample((2 << 20) + 777, {});
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    PieceVerifier verifier(sample.frame);
    std::vector<uint64_t> starts;
    constexpr uint64_t kStep = 256 * 1024;
    for (uint64_t at = 0; at < sample.frame.size(); at += kStep) starts.push_back(at);
    std::shuffle(starts.begin(), starts.end(), random);
    for (const uint64_t at : starts)
      verifier.MarkPresent(at, std::min<uint64_t>(kStep, sample.frame.size() - at));
    const Result<FrameHeader> header = verifier.Finish(sample.frame.size());
    ASSERT_TRUE(header.ok()) << header.status().ToString();
    EXPECT_EQ(header->key, sample.header.key);
  }
  for (int round = 0; round < 50; ++round) {
    std::vector<std::byte> broken = sample.frame;
    const size_t at = sample.header.header_bytes + random() % sample.header.payload_bytes;
    broken[at] ^= std::byte{1};
    PieceVerifier verifier(broken);
    EXPECT_EQ(verifier.Finish(broken.size()).status().code(), StatusCode::kDataLoss) << at;
  }
  PieceVerifier shorter(sample.frame);
  EXPECT_FALSE(shorter.Finish(sample.frame.size() - 4096).ok());
}

// The fields of the golden pages.
struct PageSample {
  Sample sample = MakeSample(100, {});
  Bytes header_area = Bytes(sample.frame).first(sample.header.header_bytes);
  DirectorySecret secret{};
  TierPage fields;
  PageSample() {
    secret[5] = std::byte{9};
    fields.directory[0] = std::byte{1};
    fields.generation = 42;
    fields.frame_bytes = sample.frame.size();
    fields.expiry_ns = 7;
    fields.priority = -3;
    fields.extents = {{2, 8192, kTierPageBytes}, {0, uint64_t{3} << 20, sample.frame.size()}};
  }
  std::vector<std::byte> Write() const {
    std::vector<std::byte> page(kTierPageBytes);
    WriteTierPage(fields, header_area, secret, page);
    return page;
  }
  Result<TierPage> Parse(Bytes page) const { return ParseTierPage(page, header_area, secret); }
};

TEST(TierPageTest, GoldenAndKeyed) {
  const PageSample sample;
  const std::vector<std::byte> page = sample.Write();
  ASSERT_EQ(Golden("tier_page_v2.bin", AsString(page)), AsString(page));
  Result<TierPage> parsed = sample.Parse(page);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->directory, sample.fields.directory);
  EXPECT_EQ(parsed->generation, 42u);
  EXPECT_EQ(parsed->frame_bytes, sample.fields.frame_bytes);
  EXPECT_EQ(parsed->expiry_ns, 7);
  EXPECT_EQ(parsed->priority, -3);
  EXPECT_FALSE(parsed->sealed);
  EXPECT_EQ(parsed->extents, sample.fields.extents);
  for (size_t bit = 0; bit < kTierPageBytes * 8; ++bit) {
    std::vector<std::byte> broken = page;
    broken[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    ASSERT_FALSE(sample.Parse(broken).ok()) << "bit " << bit;
  }
  DirectorySecret other = sample.secret;
  other[0] = std::byte{1};
  EXPECT_FALSE(ParseTierPage(page, sample.header_area, other).ok()) << "a page of another directory";
  const Sample second = MakeSample(200, {});
  EXPECT_FALSE(
      ParseTierPage(page, Bytes(second.frame).first(second.header.header_bytes), sample.secret).ok());
  EXPECT_FALSE(sample.Parse(Bytes(page).first(kTierPageBytes - 1)).ok());
}

TEST(TierPageTest, ASealedRunHasKeyAndName) {
  PageSample sample;
  sample.fields.sealed = true;
  sample.fields.key_id = 5;
  sample.fields.salt[3] = std::byte{4};
  sample.fields.id = {sample.sample.header.key, {1, 0x0203}};
  sample.fields.extents[1].length += SealedTagAreaBytes(sample.fields.frame_bytes);
  const std::vector<std::byte> page = sample.Write();
  ASSERT_EQ(Golden("tier_page_sealed_v2.bin", AsString(page)), AsString(page));
  const Result<TierPage> parsed = sample.Parse(page);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_TRUE(parsed->sealed);
  EXPECT_EQ(parsed->key_id, 5u);
  EXPECT_EQ(parsed->salt, sample.fields.salt);
  EXPECT_EQ(parsed->id, sample.fields.id);
  EXPECT_EQ(parsed->extents, sample.fields.extents);
  for (size_t bit = 0; bit < kTierPageBytes * 8; ++bit) {
    std::vector<std::byte> broken = page;
    broken[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    ASSERT_FALSE(sample.Parse(broken).ok()) << "bit " << bit;
  }
  // As many extents as leave room for the object's name.
  for (const size_t n : {kMaxSealedPageExtents, kMaxSealedPageExtents + 1}) {
    sample.fields.frame_bytes = (n - 2) * 4096;
    sample.fields.extents.clear();
    for (uint32_t i = 0; i < n; ++i) sample.fields.extents.push_back({i, i * 8192ull, 4096});
    const Result<TierPage> many = sample.Parse(sample.Write());
    ASSERT_TRUE(many.ok()) << many.status().ToString();
    EXPECT_EQ(many->extents.size(), n == kMaxSealedPageExtents ? n : 0);
    EXPECT_EQ(many->id, sample.fields.id);
  }
  // Impossible under a right code.
  sample.fields.key_id = 0;
  EXPECT_EQ(sample.Parse(sample.Write()).status().code(), StatusCode::kDataLoss);
}

TEST(TierPageTest, Version1IsReadAndItsExtentsAreNotKnown) {
  const PageSample sample;
  const std::string golden = Golden("tier_page_v1.bin", "");
  const Result<TierPage> parsed = sample.Parse(AsBytes(golden));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->generation, 42u);
  EXPECT_EQ(parsed->frame_bytes, sample.fields.frame_bytes);
  EXPECT_EQ(parsed->expiry_ns, 7);
  EXPECT_EQ(parsed->priority, -3);
  EXPECT_FALSE(parsed->sealed);
  EXPECT_TRUE(parsed->extents.empty());
  for (size_t bit = 0; bit < 80 * 8; ++bit) {
    std::string broken = golden;
    broken[bit / 8] = static_cast<char>(broken[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(sample.Parse(AsBytes(broken)).ok()) << "bit " << bit;
  }
}

TEST(TierPageTest, AsManyExtentsAsFitAndNoneBeyond) {
  PageSample sample;
  const auto extents_of = [](size_t n) {
    std::vector<Extent> extents;
    for (uint32_t i = 0; i < n; ++i) extents.push_back({i, i * 8192ull, 4096});
    return extents;
  };
  sample.fields.frame_bytes = (kMaxPageExtents - 1) * 4096;
  sample.fields.extents = extents_of(kMaxPageExtents);
  EXPECT_EQ(sample.Parse(sample.Write())->extents, sample.fields.extents);
  sample.fields.frame_bytes += 4096;
  sample.fields.extents = extents_of(kMaxPageExtents + 1);
  Result<TierPage> parsed = sample.Parse(sample.Write());
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->extents.empty());
  // An odd offset, and an offset beyond 32 bits of units.
  for (const uint64_t offset : {uint64_t{100}, uint64_t{1} << 44}) {
    sample.fields.extents = {{0, offset, kTierPageBytes + sample.fields.frame_bytes}};
    parsed = sample.Parse(sample.Write());
    ASSERT_TRUE(parsed.ok());
    EXPECT_TRUE(parsed->extents.empty()) << offset;
  }
}

// Impossible values under a right code, which only a faulty writer could make.
TEST(TierPageTest, ExtentsThatAreNotTheFrameAreRefused) {
  PageSample sample;
  const uint64_t run = kTierPageBytes + sample.fields.frame_bytes;
  for (const uint64_t length : {run - 4096, run + 4096}) {
    sample.fields.extents = {{0, 0, length}};
    EXPECT_EQ(sample.Parse(sample.Write()).status().code(), StatusCode::kDataLoss) << length;
  }
}

TEST(TierPageTest, APeekIsBoundedAndAsksForNoCode) {
  PageSample sample;
  const std::vector<std::byte> page = sample.Write();
  const auto put = [&](size_t offset, auto value) {
    std::vector<std::byte> changed = page;
    std::memcpy(changed.data() + offset, &value, sizeof(value));
    return PeekTierPage(changed);
  };
  Result<PeekedTierPage> peeked = put(64, uint64_t{0});
  ASSERT_TRUE(peeked.ok()) << peeked.status().ToString();
  EXPECT_EQ(peeked->header_bytes, sample.header_area.size());
  EXPECT_EQ(peeked->fields.generation, 42u);
  EXPECT_EQ(peeked->fields.frame_bytes, sample.fields.frame_bytes);
  EXPECT_EQ(peeked->fields.extents, sample.fields.extents);
  EXPECT_FALSE(PeekTierPage(Bytes(page).first(4000)).ok());
  EXPECT_FALSE(put(0, 'X').ok());
  EXPECT_FALSE(put(8, uint32_t{3}).ok()) << "version";
  for (const uint32_t header_bytes :
       {0u, 100u, 2u << 20, static_cast<uint32_t>(sample.sample.frame.size()) + 4096}) {
    EXPECT_FALSE(put(12, header_bytes).ok()) << header_bytes;
  }
  for (const uint64_t frame_bytes : {uint64_t{0}, uint64_t{100}, ~uint64_t{0}, uint64_t{1} << 41}) {
    EXPECT_FALSE(put(40, frame_bytes).ok()) << frame_bytes;
  }
  EXPECT_FALSE(put(60, uint32_t{2}).ok()) << "flags";
  for (const uint32_t n : {0u, 1u, 3u, 333u, 0xfffffffeu}) EXPECT_FALSE(put(80, n).ok()) << n << " extents";
  EXPECT_TRUE(put(80, 0xffffffffu).ok());
  EXPECT_FALSE(put(104 + 8, uint32_t{0}).ok()) << "an extent without length";
}

TEST(ObjectRecordTest, GoldenAndEveryFlippedBitIsSeen) {
  const Sample sample = MakeSample(100, {});
  ObjectRecord record;
  record.meta.root = sample.header.root;
  record.meta.parent = sample.header.parent;
  record.meta.first_token = 512;
  record.meta.frame_bytes = 12288;
  record.meta.payload_bytes = 100;
  record.meta.priority = -1;
  record.meta.generation = 77;
  record.meta.expiry = WallTime(std::chrono::seconds(1000));
  record.header_bytes = 4096;
  record.extents = {{0, 4096, 8192}, {3, 1 << 20, 8192}};
  const std::string place = EncodePlace(record);
  ASSERT_EQ(Golden("place_record_v1.bin", place), place);
  Result<ObjectRecord> parsed = DecodePlace(place);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->extents, record.extents);
  EXPECT_EQ(parsed->meta.parent, record.meta.parent);
  EXPECT_EQ(parsed->meta.generation, 77u);
  EXPECT_EQ(parsed->meta.expiry, record.meta.expiry);
  ObjectRecord sealed_record = record;
  sealed_record.key_id = 9;
  sealed_record.extents[1].length += SealedTagAreaBytes(record.meta.frame_bytes);
  const std::string sealed_place = EncodePlace(sealed_record);
  ASSERT_EQ(Golden("place_record_v2.bin", sealed_place), sealed_place);
  parsed = DecodePlace(sealed_place);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->key_id, 9u);
  EXPECT_EQ(parsed->extents, sealed_record.extents);
  EXPECT_EQ(parsed->meta.generation, 77u);
  const std::string content = EncodeRecordContent(sample.header.content);
  ASSERT_EQ(Golden("content_record_v1.bin", content), content);
  EXPECT_EQ(*DecodeRecordContent(content), sample.header.content);
  const ObjectId id{sample.header.key, {1, 0x0203}};
  EXPECT_EQ(*DecodeRecordKey(EncodeRecordKey(id)), id);
  KvSpec spec;
  spec.model_id = "m";
  const RootRecord root = *ComputeRoot(spec, {}, "salt");
  const std::string root_value = EncodeRootRecord(root);
  ASSERT_EQ(Golden("root_record_v1.bin", root_value), root_value);
  EXPECT_EQ(*DecodeRootRecord(root.root, root_value), root);
  for (const std::string& value : {place, sealed_place, content, root_value}) {
    for (size_t bit = 0; bit < value.size() * 8; ++bit) {
      std::string broken = value;
      broken[bit / 8] ^= static_cast<char>(1 << (bit % 8));
      EXPECT_FALSE(DecodePlace(broken).ok() || DecodeRecordContent(broken).ok() ||
                   DecodeRootRecord(root.root, broken).ok());
    }
    for (size_t n = 0; n < value.size(); ++n) EXPECT_FALSE(DecodePlace(value.substr(0, n)).ok());
  }
}

}  // namespace
}  // namespace terrace
