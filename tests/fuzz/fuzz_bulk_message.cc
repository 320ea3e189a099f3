// The decoders of the bulk sockets' and the shm handshake's messages on any bytes: what one takes, its
// encoder gives back byte for byte, and the values keep what bulk_message.h promises.
#include "lib/wire/bulk_message.h"
#include "lib/wire/shm_message.h"
#include "tests/fuzz/fuzz_target.h"

namespace terrace::fuzz {
namespace {

enum Message : uint8_t { kBulkHello, kBulkWelcome, kBulkData, kShmHello, kShmWelcome, kNumMessages };

template <typename Decode, typename Encode>
auto Checked(Bytes bytes, const Decode& decode, const Encode& encode) {
  const auto decoded = decode(bytes);
  if (decoded.ok()) {
    const auto encoded = encode(*decoded);
    FUZZ_CHECK(encoded.size() == bytes.size());
    FUZZ_CHECK(std::equal(encoded.begin(), encoded.end(), bytes.begin()));
  } else {
    FUZZ_CHECK(decoded.status().code() == StatusCode::kDataLoss);
  }
  return decoded;
}

bool IsLength(uint64_t length) {
  return length >= kFrameAlignment && length <= kMaxBulkMessageBytes && length % kFrameAlignment == 0;
}

void CheckMessage(Bytes bytes) {
  const auto message = Checked(bytes, DecodeBulkMessage, EncodeBulkMessage);
  if (!message.ok() || message->kind != BulkKind::kData) return;
  FUZZ_CHECK(IsLength(message->length));
  FUZZ_CHECK(message->offset % kFrameAlignment == 0);
  FUZZ_CHECK(message->offset + message->length > message->offset);
}

void CheckWelcome(Bytes bytes) {
  const auto welcome = Checked(bytes, DecodeBulkWelcome, EncodeBulkWelcome);
  if (welcome.ok()) FUZZ_CHECK(IsLength(welcome->max_message_bytes));
}

void Check(Message which, Bytes bytes) {
  switch (which) {
    case kBulkHello:
      Checked(bytes, DecodeBulkHello, EncodeBulkHello).status().IgnoreError();  // either is right
      return;
    case kBulkWelcome:
      return CheckWelcome(bytes);
    case kShmHello:
      Checked(bytes, DecodeShmHello, EncodeShmHello).status().IgnoreError();  // either is right
      return;
    case kShmWelcome:
      Checked(bytes, DecodeShmWelcome, EncodeShmWelcome).status().IgnoreError();  // either is right
      return;
    default:
      return CheckMessage(bytes);
  }
}

void CheckChoices(FuzzInput input) {
  BulkMessage message{.transfer = input.Take<uint64_t>()};
  message.length = input.TakeIn(1, kMaxBulkMessageBytes / kFrameAlignment) * kFrameAlignment;
  message.offset =
      input.TakeIn(0, UINT64_MAX / kFrameAlignment - message.length / kFrameAlignment) * kFrameAlignment;
  const ExactCopy bytes(EncodeBulkMessage(message));
  const auto decoded = DecodeBulkMessage(bytes.bytes());
  FUZZ_CHECK(decoded.ok() && decoded->transfer == message.transfer && decoded->offset == message.offset &&
             decoded->length == message.length);
  FUZZ_CHECK(!DecodeBulkMessage(Bytes(bytes.bytes()).first(kBulkMessageBytes - 1)).ok());
  // Nothing of the first eight bytes may be another.
  if (ChangeOneRun(input, 8, bytes.bytes())) FUZZ_CHECK(!DecodeBulkMessage(bytes.bytes()).ok());
}

}  // namespace

TERRACE_FUZZ_TARGET(FuzzBulkMessage) {
  FuzzInput input(data, size);
  if (input.Take<uint8_t>() % kNumModes == kFromChoices) {
    CheckChoices(input);
    return 0;
  }
  const auto which = static_cast<Message>(input.Take<uint8_t>() % kNumMessages);
  const ExactCopy bytes(input.rest());
  Check(which, bytes.bytes());
  return 0;
}

}  // namespace terrace::fuzz
