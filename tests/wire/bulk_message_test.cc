// The fixed messages of bulk sockets and of the shm handshake.
#include "lib/wire/bulk_message.h"

#include <gmock/gmock.h>

#include <cstring>

#include "lib/wire/shm_message.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kPage = 4096;

template <size_t N, typename T>
std::array<std::byte, N> With(std::array<std::byte, N> bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
  return bytes;
}

template <typename T>
void ExpectRefused(const Result<T>& decoded, const char* why) {
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(decoded.status().message(), HasSubstr(why));
}

// Every length but the right one.
template <size_t N, typename Decode>
void ExpectExactLength(const std::array<std::byte, N>& bytes, const Decode& decode) {
  std::vector<std::byte> longer(bytes.begin(), bytes.end());
  longer.push_back(std::byte{0});
  for (size_t n = 0; n <= N + 1; ++n) {
    if (n != N) ExpectRefused(decode(Bytes(longer).first(n)), "wrong length");
  }
}

template <size_t N>
std::array<std::byte, N> Counting(uint8_t first) {
  std::array<std::byte, N> bytes;
  for (std::byte& byte : bytes) byte = std::byte{first++};
  return bytes;
}

TEST(BulkMessageTest, HelloAsDrawn) {
  const BulkHello hello{
      .version = 7, .connection = 0x01020304, .session = Counting<16>(0x20), .token = Counting<32>(0x60)};
  const auto bytes = EncodeBulkHello(hello);
  EXPECT_EQ(std::memcmp(bytes.data(), "TERRBLK1\7\0\0\0\4\3\2\1\x20\x21", 18), 0);
  EXPECT_EQ(bytes[63], std::byte{0x7f});
  const Result<BulkHello> decoded = DecodeBulkHello(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->version, hello.version);
  EXPECT_EQ(decoded->connection, hello.connection);
  EXPECT_EQ(decoded->session, hello.session);
  EXPECT_EQ(decoded->token, hello.token);
  ExpectRefused(DecodeBulkHello(With(bytes, 7, '2')), "magic");
  ExpectExactLength(bytes, DecodeBulkHello);
}

TEST(BulkMessageTest, WelcomeAsDrawn) {
  const auto bytes =
      EncodeBulkWelcome({.version = 3, .code = BulkCode::kDraining, .max_message_bytes = 3 * kPage});
  EXPECT_EQ(std::memcmp(bytes.data(), "TERRBLK1\3\0\0\0\3\0\0\0\0\x30\0\0\0\0\0\0", 24), 0);
  const Result<BulkWelcome> decoded = DecodeBulkWelcome(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->version, 3u);
  EXPECT_EQ(decoded->code, BulkCode::kDraining);
  EXPECT_EQ(decoded->max_message_bytes, 3 * kPage);
  ExpectRefused(DecodeBulkWelcome(With(bytes, 0, 'X')), "magic");
  ExpectRefused(DecodeBulkWelcome(With(bytes, 12, uint32_t{5})), "unknown code");
  for (const uint64_t wrong : {uint64_t{0}, kPage - 1, kPage + 1, kMaxBulkMessageBytes + kPage, UINT64_MAX}) {
    ExpectRefused(DecodeBulkWelcome(With(bytes, 16, wrong)), "max_message_bytes");
  }
  ExpectExactLength(bytes, DecodeBulkWelcome);
}

TEST(BulkMessageTest, DataAsDrawn) {
  const auto bytes =
      EncodeBulkMessage({.transfer = 0x0102030405060708, .offset = 5 * kPage, .length = 2 * kPage});
  EXPECT_EQ(
      std::memcmp(bytes.data(), "DATA\0\0\0\0\x8\7\6\5\4\3\2\1\0\x50\0\0\0\0\0\0\0\x20\0\0\0\0\0\0", 32), 0);
  const Result<BulkMessage> decoded = DecodeBulkMessage(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->kind, BulkKind::kData);
  EXPECT_EQ(decoded->transfer, 0x0102030405060708u);
  EXPECT_EQ(decoded->offset, 5 * kPage);
  EXPECT_EQ(decoded->length, 2 * kPage);
  ExpectRefused(DecodeBulkMessage(With(bytes, 0, 'X')), "magic");
  ExpectRefused(DecodeBulkMessage(With(bytes, 4, uint32_t{1})), "flags");
  for (const uint64_t wrong : {uint64_t{0}, kPage - 1, kPage + 1, kMaxBulkMessageBytes + kPage, UINT64_MAX}) {
    ExpectRefused(DecodeBulkMessage(With(bytes, 24, wrong)), "length");
  }
  for (const uint64_t wrong : {uint64_t{1}, UINT64_MAX - kPage + 1}) {
    ExpectRefused(DecodeBulkMessage(With(bytes, 16, wrong)), "offset");
  }
  for (const uint64_t right : {kPage, kMaxBulkMessageBytes}) {
    EXPECT_TRUE(DecodeBulkMessage(With(bytes, 24, right)).ok());
  }
  ExpectExactLength(bytes, DecodeBulkMessage);
}

TEST(BulkMessageTest, AbortAsDrawn) {
  const auto bytes = EncodeBulkMessage({.kind = BulkKind::kAbort,
                                        .transfer = 9,
                                        .offset = kPage,
                                        .length = kPage,
                                        .code = BulkCode::kGivenUp});
  EXPECT_EQ(std::memcmp(bytes.data(), "ABRT\4\0\0\0\x9\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 32),
            0);
  const Result<BulkMessage> decoded = DecodeBulkMessage(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->kind, BulkKind::kAbort);
  EXPECT_EQ(decoded->transfer, 9u);
  EXPECT_EQ(decoded->code, BulkCode::kGivenUp);
  for (const uint32_t wrong : {0u, 5u, UINT32_MAX}) {
    ExpectRefused(DecodeBulkMessage(With(bytes, 4, wrong)), "unknown code");
  }
  for (const size_t field : {16u, 24u}) {
    ExpectRefused(DecodeBulkMessage(With(bytes, field, uint64_t{1})), "unknown fields");
  }
}

TEST(ShmMessageTest, HelloAsDrawn) {
  const ShmHello hello{.version = 2, .session = Counting<16>(0x20), .token = Counting<32>(0x60)};
  const auto bytes = EncodeShmHello(hello);
  EXPECT_EQ(std::memcmp(bytes.data(), "TERRSHM1\2\0\0\0\0\0\0\0\x20\x21", 18), 0);
  EXPECT_EQ(bytes[63], std::byte{0x7f});
  const Result<ShmHello> decoded = DecodeShmHello(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->version, 2u);
  EXPECT_EQ(decoded->session, hello.session);
  EXPECT_EQ(decoded->token, hello.token);
  ExpectRefused(DecodeShmHello(With(bytes, 7, '2')), "magic");
  ExpectRefused(DecodeShmHello(With(bytes, 12, uint32_t{1})), "unknown fields");
  ExpectExactLength(bytes, DecodeShmHello);
}

TEST(ShmMessageTest, WelcomeAsDrawn) {
  const auto bytes = EncodeShmWelcome(
      {.code = BulkCode::kRefused, .pool_bytes = 0x100, .generations_bytes = 0x200, .staging_bytes = 0x300});
  EXPECT_EQ(std::memcmp(bytes.data(),
                        "TERRSHM1\1\0\0\0\1\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0", 40),
            0);
  const Result<ShmWelcome> decoded = DecodeShmWelcome(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->version, 1u);
  EXPECT_EQ(decoded->code, BulkCode::kRefused);
  EXPECT_EQ(decoded->pool_bytes, 0x100u);
  EXPECT_EQ(decoded->generations_bytes, 0x200u);
  EXPECT_EQ(decoded->staging_bytes, 0x300u);
  ExpectRefused(DecodeShmWelcome(With(bytes, 0, 'X')), "magic");
  ExpectRefused(DecodeShmWelcome(With(bytes, 12, uint32_t{5})), "unknown code");
  ExpectExactLength(bytes, DecodeShmWelcome);
}

}  // namespace
}  // namespace terrace
