// Frames and records whose checksums are right and whose contents are not: written by someone who knows the
// format.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>

#include "lib/codec/piece_codec.h"
#include "lib/wire/frame.h"
#include "lib/wire/object_record.h"
#include "terrace/token_hasher.h"

namespace terrace {
namespace {

std::vector<std::byte> FrameOf(std::vector<Piece> pieces, uint64_t payload_bytes) {
  FrameHeader header;
  header.content.tokens = {1, 2, 3};
  header.key = TokenHasher::KeyOf(header.parent, header.content);
  header.payload_bytes = header.stored_bytes = payload_bytes;
  header.pieces = std::move(pieces);
  std::vector<std::byte> frame(*HeaderBytes(header) + RoundUp(payload_bytes, kFrameAlignment));
  EXPECT_TRUE(WriteFrameHeader(header, frame).ok());
  return frame;
}

TEST(HostileFormatTest, RawPiecesAreStoredInTheirOwnLength) {
  EXPECT_TRUE(ParseFrameHeader(FrameOf({{0, 10, 10, 0, {}}, {10, 5, 5, 10, {}}}, 15)).ok());
  // The sums are right, the pieces are not.
  EXPECT_FALSE(ParseFrameHeader(FrameOf({{0, 10, 5, 0, {}}, {10, 5, 10, 5, {}}}, 15)).ok());
  EXPECT_FALSE(ParseFrameHeader(FrameOf({{0, 10, 15, 0, {}}, {10, 5, 0, 15, {}}}, 15)).ok());
  EXPECT_FALSE(ParseFrameHeader(FrameOf({{0, 15, 15, 0, {}}, {15, 0, 0, 15, {}}}, 15)).ok())
      << "an empty piece";
  EXPECT_FALSE(ParseFrameHeader(FrameOf({{0, 15, 15, 1, {}}}, 15)).ok());
}

TEST(HostileFormatTest, ASealedRunIsLongerByItsTags) {
  ObjectRecord record;
  record.meta.frame_bytes = 8192;
  record.key_id = 1;
  record.extents = {{0, 0, 4096 + 4096 + 8192}};
  ASSERT_TRUE(DecodePlace(EncodePlace(record)).ok());
  record.extents = {{0, 0, 4096 + 8192}};
  EXPECT_FALSE(DecodePlace(EncodePlace(record)).ok());
  record.key_id = 0;
  ASSERT_TRUE(DecodePlace(EncodePlace(record)).ok());
  record.extents = {{0, 0, 4096 + 4096 + 8192}};
  EXPECT_FALSE(DecodePlace(EncodePlace(record)).ok());
}

TEST(HostileFormatTest, ExtentsWhoseSumOverflowsAreRefused) {
  ObjectRecord record;
  record.meta.frame_bytes = 8192;
  record.extents = {{0, 0, 12288}};
  ASSERT_TRUE(DecodePlace(EncodePlace(record)).ok());
  record.extents = {{0, 0, uint64_t{1} << 63}, {0, 0, uint64_t{1} << 63}, {0, 0, 12288}};
  EXPECT_FALSE(DecodePlace(EncodePlace(record)).ok());
  record.extents = {{0, 0, 8192}, {0, 0, 8192}};
  EXPECT_FALSE(DecodePlace(EncodePlace(record)).ok());
  record.extents = {{0, 0, 8192}};
  EXPECT_FALSE(DecodePlace(EncodePlace(record)).ok());
  // A frame length that wraps to nothing with the tier page in front.
  record.meta.frame_bytes = UINT64_MAX - 4095;
  record.extents = {};
  EXPECT_FALSE(DecodePlace(EncodePlace(record)).ok());
  record.meta.frame_bytes = 8192 + 1;
  record.extents = {{0, 0, 12288 + 1}};
  EXPECT_FALSE(DecodePlace(EncodePlace(record)).ok());
}

TEST(HostileFormatTest, APlaceHasOneForm) {
  ObjectRecord record;
  record.meta.frame_bytes = 8192;
  record.extents = {{7, 0, 8192}, {7, 1 << 20, 4096}};
  std::string place = EncodePlace(record);
  ASSERT_TRUE(DecodePlace(place).ok());
  // The reserved word behind the last extent's segment; then the sum made right.
  place[place.size() - 8 - 20] = 1;
  const uint64_t sum = XXH3_64bits(place.data(), place.size() - 8);
  std::memcpy(place.data() + place.size() - 8, &sum, 8);
  EXPECT_FALSE(DecodePlace(place).ok());
}

}  // namespace
}  // namespace terrace
