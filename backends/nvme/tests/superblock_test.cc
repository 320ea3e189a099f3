// The superblock's bytes: those written now and those of version 1, and what is refused.
#include "backends/nvme/superblock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "lib/wire/frame.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

constexpr size_t kHashedBytes = 280;

std::string HexOf(std::string_view bytes) {
  std::string hex;
  for (const unsigned char byte : bytes) {
    std::array<char, 3> two{};
    std::snprintf(two.data(), two.size(), "%02x", byte);
    hex += two.data();
  }
  return hex;
}

Superblock MakeSuperblock(size_t num_keys) {
  Superblock superblock;
  for (size_t i = 0; i < superblock.directory.size(); ++i) superblock.directory[i] = std::byte(i + 1);
  for (size_t i = 0; i < superblock.secret.size(); ++i) superblock.secret[i] = std::byte(0x80 + i);
  superblock.segment_bytes = uint64_t{1} << 30;
  superblock.rebuild_floor = 0x1122334455667788;
  for (size_t i = 0; i < num_keys; ++i) {
    KeyCheck key{.id = static_cast<uint32_t>(3 + 2 * i)};
    key.check.fill(std::byte(0xc0 + i));
    superblock.keys.push_back(key);
  }
  return superblock;
}

void ExpectSame(const Superblock& a, const Superblock& b) {
  EXPECT_EQ(a.directory, b.directory);
  EXPECT_EQ(a.secret, b.secret);
  EXPECT_EQ(a.segment_bytes, b.segment_bytes);
  EXPECT_EQ(a.rebuild_floor, b.rebuild_floor);
  EXPECT_EQ(a.keys, b.keys);
}

// Bytes [0, hashed_bytes) with a right checksum behind them, whatever they say.
std::string Sealed(std::string bytes, size_t hashed_bytes = kHashedBytes) {
  const Hash128 hash = HashBytes(std::as_bytes(std::span(bytes)).first(hashed_bytes));
  std::memcpy(bytes.data() + hashed_bytes, &hash.low, sizeof(hash.low));
  std::memcpy(bytes.data() + hashed_bytes + 8, &hash.high, sizeof(hash.high));
  return bytes;
}

TEST(SuperblockTest, BytesAreFrozen) {
  const std::string bytes = EncodeSuperblock(MakeSuperblock(2));
  ASSERT_EQ(bytes.size(), 4096u);
  EXPECT_EQ(HexOf(std::string_view(bytes).substr(0, 136)),
            "5445525244495231"
            "02000000"
            "00000000"
            "0102030405060708090a0b0c0d0e0f10"
            "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f"
            "0000004000000000"
            "8877665544332211"
            "02000000"
            "00000000"
            "0300000000000000c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0"
            "0500000000000000c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1");
  EXPECT_EQ(bytes.substr(136, kHashedBytes - 136), std::string(kHashedBytes - 136, '\0'));
  EXPECT_EQ(HexOf(std::string_view(bytes).substr(kHashedBytes, 16)), "3c8a5002681c44c3cbd2e3f4d068cc52");
  EXPECT_EQ(bytes.substr(296), std::string(4096 - 296, '\0'));
}

TEST(SuperblockTest, WhatIsWrittenIsRead) {
  for (const size_t num_keys : {0, 1, 8}) {
    const Superblock superblock = MakeSuperblock(num_keys);
    const Result<Superblock> read = DecodeSuperblock(EncodeSuperblock(superblock));
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    ExpectSame(*read, superblock);
  }
}

// Written by hand, as version 1 was: its checksum stands where the floor is now.
std::string VersionOne() {
  std::string bytes = EncodeSuperblock(MakeSuperblock(0));
  bytes[8] = 1;
  std::memset(bytes.data() + 72, 0, bytes.size() - 72);
  return Sealed(bytes, 72);
}

TEST(SuperblockTest, VersionOneIsRead) {
  const std::string bytes = VersionOne();
  EXPECT_EQ(HexOf(std::string_view(bytes).substr(64, 24)),
            "0000004000000000"
            "ffcb38ab59121cb6d20ae5ea8263360e")
      << "as programs of that version wrote it";
  const Result<Superblock> read = DecodeSuperblock(bytes);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  Superblock wanted = MakeSuperblock(0);
  wanted.rebuild_floor = 0;
  ExpectSame(*read, wanted);
}

TEST(SuperblockTest, AnyFlippedBitIsSeen) {
  for (std::string bytes : {EncodeSuperblock(MakeSuperblock(8)), VersionOne()}) {
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
      ASSERT_EQ(DecodeSuperblock(bytes).status().code(), StatusCode::kDataLoss) << "bit " << bit;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    }
  }
}

TEST(SuperblockTest, AnotherLengthIsRefused) {
  const std::string bytes = EncodeSuperblock(MakeSuperblock(1));
  for (const size_t length : {0, 7, 11, 60, 295, 296, 4095}) {
    EXPECT_EQ(DecodeSuperblock(bytes.substr(0, length)).status().code(), StatusCode::kDataLoss) << length;
  }
  EXPECT_EQ(DecodeSuperblock(bytes + '\0').status().code(), StatusCode::kDataLoss);
}

// The checksum is right in each: the field itself is refused.
TEST(SuperblockTest, FieldsThatNoWriterMakesAreRefused) {
  struct Case {
    size_t offset;
    char value;
    const char* text;
  };
  const std::string good = EncodeSuperblock(MakeSuperblock(2));
  ASSERT_TRUE(DecodeSuperblock(Sealed(good)).ok());
  const Case cases[] = {
      {0, 'X', "magic"},
      {8, 0, "version 0"},
      {8, 3, "version 3"},
      {12, 1, "reserved"},
      {80, 9, "9 keys"},
      {80, 1, "unused key"},
      {80, 3, "do not rise"},
      {84, 1, "reserved"},
      {88, 5, "do not rise"},
      {88, 0, "do not rise"},
      {92, 1, "reserved"},
      {88 + 24 + 4, 1, "reserved"},
      {88 + 2 * 24, 1, "unused key"},
      {88 + 7 * 24 + 23, 1, "unused key"},
  };
  for (const Case& wrong : cases) {
    std::string bytes = good;
    bytes[wrong.offset] = wrong.value;
    const Status status = DecodeSuperblock(Sealed(bytes)).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << wrong.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.text));
  }
}

TEST(SuperblockTest, NoTwoAreTheSame) {
  const Superblock a = NewSuperblock(1 << 24).value();
  const Superblock b = NewSuperblock(1 << 24).value();
  EXPECT_NE(a.directory, b.directory);
  EXPECT_NE(a.secret, b.secret);
  EXPECT_NE(NewSecret().value(), NewSecret().value());
}

}  // namespace
}  // namespace terrace
