#include "lib/wire/bulk_message.h"

#include <string>
#include <string_view>

#include "lib/wire/byte_codec.h"

namespace terrace {
namespace {

constexpr std::string_view kMagic = "TERRBLK1";
constexpr std::string_view kDataMagic = "DATA";
constexpr std::string_view kAbortMagic = "ABRT";
constexpr uint64_t kUnit = kFrameAlignment;

bool IsKnown(uint32_t code) { return code <= static_cast<uint32_t>(BulkCode::kGivenUp); }

bool IsMessageLength(uint64_t length) {
  return length >= kUnit && length <= kMaxBulkMessageBytes && length % kUnit == 0;
}

Status Malformed(std::string_view what, std::string_view why) {
  return DataLossError(std::string(what) + ": " + std::string(why));
}

Result<BulkMessage> DecodeData(ByteReader& in) {
  BulkMessage message;
  const auto flags = in.Read<uint32_t>();
  message.transfer = in.Read<uint64_t>();
  message.offset = in.Read<uint64_t>();
  message.length = in.Read<uint64_t>();
  if (flags != 0) return Malformed("bulk message", "unknown flags are set");
  if (!IsMessageLength(message.length)) return Malformed("bulk message", "length is not allowed");
  if (message.offset % kUnit != 0 || message.offset > UINT64_MAX - message.length) {
    return Malformed("bulk message", "offset is not allowed");
  }
  return message;
}

Result<BulkMessage> DecodeAbort(ByteReader& in) {
  BulkMessage message{.kind = BulkKind::kAbort};
  const auto code = in.Read<uint32_t>();
  message.transfer = in.Read<uint64_t>();
  const auto offset = in.Read<uint64_t>();
  const auto length = in.Read<uint64_t>();
  if (!IsKnown(code) || code == 0) return Malformed("bulk abort", "unknown code");
  if (offset != 0 || length != 0) return Malformed("bulk abort", "unknown fields are set");
  message.code = static_cast<BulkCode>(code);
  return message;
}

}  // namespace

std::array<std::byte, kBulkHelloBytes> EncodeBulkHello(const BulkHello& hello) {
  ByteWriter out;
  out.WriteBytes(kMagic);
  out.Write<uint32_t>(hello.version);
  out.Write<uint32_t>(hello.connection);
  out.WriteBytes(Bytes(hello.session));
  out.WriteBytes(Bytes(hello.token));
  return out.TakeArray<kBulkHelloBytes>();
}

Result<BulkHello> DecodeBulkHello(Bytes bytes) {
  if (bytes.size() != kBulkHelloBytes) return Malformed("bulk hello", "wrong length");
  ByteReader in(bytes);
  if (in.ReadBytes(kMagic.size()) != kMagic) return Malformed("bulk hello", "wrong magic");
  BulkHello hello;
  hello.version = in.Read<uint32_t>();
  hello.connection = in.Read<uint32_t>();
  hello.session = in.ReadArray<sizeof(hello.session)>();
  hello.token = in.ReadArray<sizeof(hello.token)>();
  return hello;
}

std::array<std::byte, kBulkWelcomeBytes> EncodeBulkWelcome(const BulkWelcome& welcome) {
  ByteWriter out;
  out.WriteBytes(kMagic);
  out.Write<uint32_t>(welcome.version);
  out.Write<uint32_t>(static_cast<uint32_t>(welcome.code));
  out.Write<uint64_t>(welcome.max_message_bytes);
  return out.TakeArray<kBulkWelcomeBytes>();
}

Result<BulkWelcome> DecodeBulkWelcome(Bytes bytes) {
  if (bytes.size() != kBulkWelcomeBytes) return Malformed("bulk welcome", "wrong length");
  ByteReader in(bytes);
  if (in.ReadBytes(kMagic.size()) != kMagic) return Malformed("bulk welcome", "wrong magic");
  BulkWelcome welcome;
  welcome.version = in.Read<uint32_t>();
  const auto code = in.Read<uint32_t>();
  welcome.max_message_bytes = in.Read<uint64_t>();
  if (!IsKnown(code)) return Malformed("bulk welcome", "unknown code");
  if (!IsMessageLength(welcome.max_message_bytes)) {
    return Malformed("bulk welcome", "max_message_bytes is not allowed");
  }
  welcome.code = static_cast<BulkCode>(code);
  return welcome;
}

std::array<std::byte, kBulkMessageBytes> EncodeBulkMessage(const BulkMessage& message) {
  const bool is_data = message.kind == BulkKind::kData;
  ByteWriter out;
  out.WriteBytes(is_data ? kDataMagic : kAbortMagic);
  out.Write<uint32_t>(is_data ? 0 : static_cast<uint32_t>(message.code));
  out.Write<uint64_t>(message.transfer);
  out.Write<uint64_t>(is_data ? message.offset : 0);
  out.Write<uint64_t>(is_data ? message.length : 0);
  return out.TakeArray<kBulkMessageBytes>();
}

Result<BulkMessage> DecodeBulkMessage(Bytes bytes) {
  if (bytes.size() != kBulkMessageBytes) return Malformed("bulk message", "wrong length");
  ByteReader in(bytes);
  const std::string_view magic = in.ReadBytes(kDataMagic.size());
  if (magic == kDataMagic) return DecodeData(in);
  if (magic == kAbortMagic) return DecodeAbort(in);
  return Malformed("bulk message", "wrong magic");
}

}  // namespace terrace
