#include "lib/wire/part_message.h"

#include <gmock/gmock.h>

#include "proto/terrace/v1/cache.pb.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMax = 1 << 20;

Bytes AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string Joined(const std::vector<Bytes>& pieces) {
  std::string all;
  for (const Bytes& piece : pieces) all.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  return all;
}

Result<PartMessage> DecodeWhole(PartKind kind, std::string_view wire, uint64_t max = kMax) {
  const Bytes slice = AsBytes(wire);
  return DecodePart(kind, {&slice, 1}, max);
}

void ExpectRefused(PartKind kind, std::string_view wire, const char* why) {
  const Result<PartMessage> decoded = DecodeWhole(kind, wire);
  ASSERT_FALSE(decoded.ok()) << why;
  EXPECT_EQ(decoded.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(decoded.status().message(), HasSubstr(why));
}

struct Sample {
  std::string session_id;
  uint64_t transfer;
  uint64_t offset;
  std::string data;
};

std::vector<Sample> Samples() {
  return {{"", 0, 0, ""},
          {"", 1, 0, "x"},
          {std::string(16, '\xff'), UINT64_MAX, UINT64_MAX, std::string(300, 'd')},
          {std::string(16, 's'), 7, 127, std::string(127, 'e')},
          {"", uint64_t{1} << 40, 128, std::string(128, 'f')},
          {std::string(16, 's'), 0, 4096, std::string(20000, 'g')}};
}

template <typename Message>
std::string Serialised(const Sample& sample, bool with_session) {
  Message message;
  if constexpr (std::is_same_v<Message, v1::PutPart>) {
    if (with_session) message.set_session_id(sample.session_id);
  }
  message.set_transfer(sample.transfer);
  message.set_offset(sample.offset);
  message.set_data(sample.data);
  return message.SerializeAsString();
}

std::string SerialisedAs(PartKind kind, const Sample& sample) {
  return kind == PartKind::kGet ? Serialised<v1::GetPart>(sample, false)
                                : Serialised<v1::PutPart>(sample, true);
}

class PartMessageTest : public ::testing::TestWithParam<PartKind> {};

TEST_P(PartMessageTest, PrefixAndPayloadAreWhatProtobufSerialises) {
  for (const Sample& sample : Samples()) {
    const PartMessage part{.session_id = sample.session_id,
                           .transfer = sample.transfer,
                           .offset = sample.offset,
                           .data_bytes = sample.data.size()};
    EXPECT_EQ(EncodePartPrefix(GetParam(), part) + sample.data, SerialisedAs(GetParam(), sample));
  }
}

TEST_P(PartMessageTest, CutAnywhereItReadsTheSame) {
  for (const Sample& sample : Samples()) {
    const std::string wire = SerialisedAs(GetParam(), sample);
    // Cut once at every byte, with an empty slice between, and into single bytes.
    std::vector<std::vector<Bytes>> cuts;
    for (size_t at = 0; at <= std::min<size_t>(wire.size(), 400); ++at) {
      cuts.push_back({AsBytes(wire).first(at), Bytes(), AsBytes(wire).subspan(at)});
    }
    cuts.emplace_back();
    for (size_t at = 0; at < wire.size(); ++at) cuts.back().push_back(AsBytes(wire).subspan(at, 1));
    for (const auto& slices : cuts) {
      const Result<PartMessage> part = DecodePart(GetParam(), slices, kMax);
      ASSERT_TRUE(part.ok()) << part.status().ToString();
      EXPECT_EQ(part->session_id, GetParam() == PartKind::kPut ? sample.session_id : "");
      EXPECT_EQ(part->transfer, sample.transfer);
      EXPECT_EQ(part->offset, sample.offset);
      EXPECT_FALSE(part->has_results);
      EXPECT_EQ(part->data_bytes, sample.data.size());
      ASSERT_EQ(Joined(part->data), sample.data);
      for (const Bytes& piece : part->data) {
        const auto* first = reinterpret_cast<const char*>(piece.data());
        EXPECT_TRUE(first >= wire.data() && first + piece.size() <= wire.data() + wire.size()) << "a copy";
      }
    }
  }
}

TEST_P(PartMessageTest, EveryTruncationIsRefusedOrShorter) {
  const std::string wire = SerialisedAs(GetParam(), {std::string(16, 's'), 7, 300, std::string(200, 'd')});
  const size_t prefix = wire.size() - 200;
  for (size_t n = 0; n < wire.size(); ++n) {
    const Result<PartMessage> part = DecodeWhole(GetParam(), std::string_view(wire).substr(0, n));
    // A message may end between two fields; that is what protobuf says too.
    v1::PutPart put;
    v1::GetPart get;
    const std::string cut = wire.substr(0, n);
    const bool parses = GetParam() == PartKind::kGet ? get.ParseFromString(cut) : put.ParseFromString(cut);
    EXPECT_EQ(part.ok(), parses) << n;
    EXPECT_FALSE(part.ok() && n >= prefix) << n;
  }
}

TEST_P(PartMessageTest, UnknownFieldsArePassedOver) {
  const std::string known = SerialisedAs(GetParam(), {"", 9, 4096, "payload"});
  const std::string unknown(
      "\xa0\x01\x96\x01"  // 20: varint
      "\xa9\x01"
      "12345678"  // 21: fixed64
      "\xb2\x01\x03"
      "abc"  // 22: bytes
      "\xbd\x01"
      "1234");  // 23: fixed32
  const std::string wire = unknown + known;  // part->data lies in it
  const Result<PartMessage> part = DecodeWhole(GetParam(), wire);
  ASSERT_TRUE(part.ok()) << part.status().ToString();
  EXPECT_EQ(part->transfer, 9u);
  EXPECT_EQ(part->offset, 4096u);
  EXPECT_EQ(Joined(part->data), "payload");
}

TEST_P(PartMessageTest, WhatIsNotProtobufIsRefused) {
  using namespace std::string_literals;
  ExpectRefused(GetParam(), "\0"s, "not a field");
  ExpectRefused(GetParam(), "\x04\x01"s, "not a field");                // field 0
  ExpectRefused(GetParam(), "\x80\x80\x80\x80\x10\0"s, "not a field");  // a field beyond 32 bits
  ExpectRefused(GetParam(), "\xa3\x01\xa4\x01"s, "unknown wire type");  // a group
  ExpectRefused(GetParam(), "\xa7\x01"s, "unknown wire type");
  ExpectRefused(GetParam(), "\xa0\x01"s + std::string(10, '\xff') + "\1", "too long");
  ExpectRefused(GetParam(), "\xa0\x01"s + std::string(9, '\xff') + "\2", "too long");
  ExpectRefused(GetParam(),
                "\xa9\x01"
                "1234567"s,
                "cut off");
  ExpectRefused(GetParam(),
                "\xb2\x01\x05"
                "abcd"s,
                "cut off");
  ExpectRefused(GetParam(), "\xb2\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"s, "cut off");
  ExpectRefused(GetParam(),
                "\xbd\x01"
                "123"s,
                "cut off");
}

TEST_P(PartMessageTest, FieldsOfAnotherTypeAreRefused) {
  using namespace std::string_literals;
  const bool get = GetParam() == PartKind::kGet;
  ExpectRefused(GetParam(), get ? "\x08\x01"s : "\x10\x01"s, "transfer is of another type");
  ExpectRefused(GetParam(), get ? "\x12\x01x"s : "\x1a\x01x"s, "offset is of another type");
  ExpectRefused(GetParam(), "\x78\x01"s, "data is of another type");
  if (get) ExpectRefused(GetParam(), "\x18\x01"s, "results is of another type");
  if (!get) ExpectRefused(GetParam(), "\x08\x01"s, "session_id is of another type");
}

TEST_P(PartMessageTest, DataStandsLastAndWithinTheLimit) {
  using namespace std::string_literals;
  const std::string wire = SerialisedAs(GetParam(), {"", 9, 0, std::string(100, 'd')});
  EXPECT_TRUE(DecodeWhole(GetParam(), wire, 100).ok());
  EXPECT_THAT(DecodeWhole(GetParam(), wire, 99).status().message(), HasSubstr("more data"));
  EXPECT_EQ(DecodeWhole(GetParam(), wire, 99).status().code(), StatusCode::kDataLoss);
  ExpectRefused(GetParam(), wire + "\xa0\x01\x01"s, "not last");
  ExpectRefused(GetParam(),
                "\x7a\x02"
                "ab\x7a\x02"
                "cd"s,
                "not last");
  ExpectRefused(GetParam(),
                "\x7a\x03"
                "ab"s,
                "data is cut off");
  ExpectRefused(GetParam(),
                "\x7a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
                "ab"s,
                "data is cut off");
}

INSTANTIATE_TEST_SUITE_P(Kinds, PartMessageTest, ::testing::Values(PartKind::kGet, PartKind::kPut),
                         [](const auto& instance) {
                           return instance.param == PartKind::kGet ? "Get" : "Put";
                         });

TEST(PartMessageAloneTest, ResultsAreSeenAndLeftToProtobuf) {
  v1::GetPart part;
  part.add_results()->set_frame_bytes(5);
  part.add_results()->mutable_result()->set_code(v1::RESULT_CODE_NOT_FOUND);
  const Result<PartMessage> decoded = DecodeWhole(PartKind::kGet, part.SerializeAsString());
  ASSERT_TRUE(decoded.ok());
  EXPECT_TRUE(decoded->has_results);
  EXPECT_EQ(decoded->data_bytes, 0u);
  part.set_data("x");
  ExpectRefused(PartKind::kGet, part.SerializeAsString(), "data beside results");
}

TEST(PartMessageAloneTest, ASessionIdHasALimit) {
  v1::PutPart part;
  part.set_session_id(std::string(64, 's'));
  EXPECT_TRUE(DecodeWhole(PartKind::kPut, part.SerializeAsString()).ok());
  part.set_session_id(std::string(65, 's'));
  ExpectRefused(PartKind::kPut, part.SerializeAsString(), "session_id is too long");
}

}  // namespace
}  // namespace terrace
