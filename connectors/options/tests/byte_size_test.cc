#include "connectors/options/byte_size.h"

#include <gtest/gtest.h>

namespace terrace::options {
namespace {

uint64_t Parsed(std::string_view text) {
  Result<uint64_t> bytes = ParseByteSize(text);
  EXPECT_TRUE(bytes.ok()) << text << ": " << bytes.status().ToString();
  return bytes.ok() ? *bytes : UINT64_MAX;
}

std::string Refusal(std::string_view text) {
  Result<uint64_t> bytes = ParseByteSize(text);
  EXPECT_FALSE(bytes.ok()) << "\"" << text << "\" was taken for " << (bytes.ok() ? *bytes : 0);
  if (bytes.ok()) return "";
  EXPECT_EQ(bytes.status().code(), StatusCode::kInvalidArgument);
  return std::string(bytes.status().message());
}

TEST(ByteSizeTest, PlainBytes) {
  EXPECT_EQ(Parsed("0"), 0u);
  EXPECT_EQ(Parsed("1"), 1u);
  EXPECT_EQ(Parsed("1000000"), 1'000'000u);
  EXPECT_EQ(Parsed("17B"), 17u);
  EXPECT_EQ(Parsed("007"), 7u);
}

TEST(ByteSizeTest, BinaryAndDecimalUnits) {
  EXPECT_EQ(Parsed("512MiB"), uint64_t{512} << 20);
  EXPECT_EQ(Parsed("4GiB"), uint64_t{4} << 30);
  EXPECT_EQ(Parsed("3KiB"), 3072u);
  EXPECT_EQ(Parsed("2TiB"), uint64_t{2} << 40);
  EXPECT_EQ(Parsed("3KB"), 3000u);
  EXPECT_EQ(Parsed("5MB"), 5'000'000u);
  EXPECT_EQ(Parsed("7GB"), 7'000'000'000u);
  EXPECT_EQ(Parsed("1TB"), 1'000'000'000'000u);
  EXPECT_EQ(Parsed("4gib"), uint64_t{4} << 30);
}

TEST(ByteSizeTest, Fractions) {
  EXPECT_EQ(Parsed("1.5GiB"), uint64_t{3} << 29);
  EXPECT_EQ(Parsed("0.25KiB"), 256u);
  EXPECT_EQ(Parsed("0.3KiB"), 307u);
  EXPECT_EQ(Parsed("2.000000001GB"), 2'000'000'001u);
  EXPECT_EQ(Refusal("1.5"), "a fraction of a byte");
  EXPECT_EQ(Refusal("1.5B"), "a fraction of a byte");
  EXPECT_EQ(Refusal("1.GiB"), "no digit after the point");
  EXPECT_EQ(Refusal("1.0000000000GiB"), "too many digits after the point");
  EXPECT_EQ(Refusal(".5GiB"), "does not begin with a digit");
}

TEST(ByteSizeTest, OverflowIsRefusedNotWrapped) {
  EXPECT_EQ(Parsed("9223372036854775807"), uint64_t{INT64_MAX});
  EXPECT_EQ(Refusal("9223372036854775808"), "too large");
  EXPECT_EQ(Refusal("18446744073709551617"), "too large");  // 2^64 + 1 would wrap to 1
  EXPECT_EQ(Refusal("99999999999999999999999999999999999999999999"), "too large");
  EXPECT_EQ(Parsed("8388607TiB"), uint64_t{8388607} << 40);
  EXPECT_EQ(Refusal("8388608TiB"), "too large");
  EXPECT_EQ(Refusal("16777217TiB"), "too large");  // 2^64 + 2^40 would wrap
}

TEST(ByteSizeTest, JunkIsRefused) {
  EXPECT_EQ(Refusal(""), "does not begin with a digit");
  EXPECT_EQ(Refusal("-1"), "does not begin with a digit");
  EXPECT_EQ(Refusal("+1"), "does not begin with a digit");
  EXPECT_EQ(Refusal(" 1"), "does not begin with a digit");
  EXPECT_EQ(Refusal("MiB"), "does not begin with a digit");
  EXPECT_EQ(Refusal("4G"), "unknown unit \"G\"");
  EXPECT_EQ(Refusal("4 GiB"), "unknown unit \" GiB\"");
  EXPECT_EQ(Refusal("4GiBs"), "unknown unit \"GiBs\"");
  EXPECT_EQ(Refusal("0x10"), "unknown unit \"x10\"");
  EXPECT_EQ(Refusal("1e9"), "unknown unit \"e9\"");
  EXPECT_EQ(Refusal("1.5.5GiB"), "unknown unit \".5GiB\"");
}

TEST(ByteSizeTest, Formats) {
  EXPECT_EQ(FormatByteSize(0), "0 B");
  EXPECT_EQ(FormatByteSize(1023), "1023 B");
  EXPECT_EQ(FormatByteSize(1536), "1.5 KiB");
  EXPECT_EQ(FormatByteSize(uint64_t{4} << 30), "4.0 GiB");
}

}  // namespace
}  // namespace terrace::options
