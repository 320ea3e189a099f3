// ParseFrameHeader on any bytes.
#include "lib/wire/byte_codec.h"
#include "lib/wire/frame.h"
#include "terrace/kv_spec.h"
#include "terrace/token_hasher.h"
#include "tests/fuzz/fuzz_target.h"

namespace terrace::fuzz {
namespace {

constexpr size_t kBodyBytesAt = 40;
constexpr size_t kParentAt = kFramePrefixBytes + 32;
constexpr size_t kKeyAt = kFramePrefixBytes + 64;
constexpr size_t kContentAt = kFramePrefixBytes + 112;
constexpr size_t kHashBytes = 16;

uint32_t BodyBytesOf(Bytes frame) {
  uint32_t bytes;
  std::memcpy(&bytes, frame.data() + kBodyBytesAt, sizeof(bytes));
  return bytes;
}

// All but the lengths of the areas, which have more than one right value.
bool SameFields(const FrameHeader& a, const FrameHeader& b) {
  return a.root == b.root && a.parent == b.parent && a.key == b.key && a.first_token == b.first_token &&
         a.content == b.content && a.part == b.part && a.codec == b.codec && a.cipher == b.cipher &&
         a.key_id == b.key_id && a.nonce == b.nonce && a.flags == b.flags && a.division == b.division &&
         a.payload_bytes == b.payload_bytes && a.stored_bytes == b.stored_bytes && a.pieces == b.pieces;
}

void CheckPieces(const FrameHeader& header) {
  uint64_t raw = 0;
  uint64_t stored = 0;
  for (const Piece& piece : header.pieces) {
    FUZZ_CHECK(piece.raw_offset == raw && piece.stored_offset == stored && piece.raw_bytes > 0);
    raw += piece.raw_bytes;
    stored += piece.stored_bytes;
  }
  FUZZ_CHECK(raw == header.payload_bytes && stored == header.stored_bytes);
  FUZZ_CHECK(stored <= header.frame_bytes - header.header_bytes);
}

void CheckDecoded(Bytes frame, const FrameHeader& header) {
  FUZZ_CHECK(header.header_bytes <= frame.size() && header.header_bytes <= kMaxHeaderBytes);
  FUZZ_CHECK(header.header_bytes < header.frame_bytes || header.stored_bytes == 0);
  const Result<uint32_t> peeked = PeekHeaderBytes(frame.first(kFramePrefixBytes));
  FUZZ_CHECK(peeked.ok() && *peeked == header.header_bytes);
  FUZZ_CHECK(header.content.tokens.size() <= kMaxTokensPerChunk);
  FUZZ_CHECK(TokenHasher::KeyOf(header.parent, header.content) == header.key);
  CheckPieces(header);
  FrameHeader again = header;
  const Result<uint32_t> needed = HeaderBytes(again);
  FUZZ_CHECK(needed.ok() && *needed <= header.header_bytes);
  std::vector<std::byte> encoded(*needed);
  FUZZ_CHECK(WriteFrameHeader(again, encoded).ok());
  if (again.header_bytes == header.header_bytes) {
    const size_t used = kFramePrefixBytes + BodyBytesOf(frame);
    FUZZ_CHECK(std::memcmp(encoded.data(), frame.data(), used) == 0);
  }
  const Result<FrameHeader> decoded = ParseFrameHeader(encoded);
  FUZZ_CHECK(decoded.ok() && SameFields(*decoded, header));
}

// The key made that of its tokens, the hash that of the area.
void Reseal(MutableBytes frame) {
  if (frame.size() < kContentAt) return;
  ByteReader in{Bytes(frame.subspan(kContentAt))};
  const ChunkContent content = ReadContent(in);
  if (in.ok()) {
    ChunkKey parent;
    std::memcpy(parent.bytes.data(), frame.data() + kParentAt, parent.bytes.size());
    const ChunkKey key = TokenHasher::KeyOf(parent, content);
    std::memcpy(frame.data() + kKeyAt, key.bytes.data(), key.bytes.size());
  }
  const uint64_t body_bytes = BodyBytesOf(frame);
  if (body_bytes < kHashBytes || kFramePrefixBytes + body_bytes > frame.size()) return;
  const size_t hashed = kFramePrefixBytes + body_bytes - kHashBytes;
  const Hash128 hash = HashBytes(frame.first(hashed));
  std::memcpy(frame.data() + hashed, &hash.low, 8);
  std::memcpy(frame.data() + hashed + 8, &hash.high, 8);
}

FrameHeader HeaderFrom(FuzzInput& input) {
  FrameHeader header;
  input.Fill(header.root.bytes);
  input.Fill(header.parent.bytes);
  header.first_token = input.Take<uint64_t>();
  header.content.tokens.resize(input.TakeIn(0, kMaxTokensPerChunk));
  input.Fill(std::as_writable_bytes(
      std::span(header.content.tokens).first(std::min<size_t>(header.content.tokens.size(), 8))));
  uint64_t position = input.Take<uint8_t>();
  for (size_t n = input.TakeIn(0, 4); n > 0 && position < header.content.tokens.size(); --n) {
    Item item{position, std::vector<std::byte>(input.TakeIn(1, kMaxItemBytes))};
    input.Fill(item.bytes);
    header.content.items.push_back(std::move(item));
    position += input.TakeIn(1, 300);
  }
  header.key = TokenHasher::KeyOf(header.parent, header.content);
  header.part = {input.Take<uint16_t>(), input.Take<uint16_t>()};
  header.key_id = input.Take<uint32_t>();
  input.Fill(header.nonce);
  header.division = input.Take<uint32_t>();
  header.payload_bytes = header.stored_bytes = input.TakeIn(0, uint64_t{64} << 20);
  header.pieces = PlanPieces(header.payload_bytes, {input.TakeIn(0, header.payload_bytes)});
  for (Piece& piece : header.pieces) piece.hash = {input.Take<uint64_t>(), input.Take<uint64_t>()};
  return header;
}

void CheckChoices(FuzzInput input) {
  FrameHeader header = HeaderFrom(input);
  std::vector<std::byte> area(HeaderBytes(header).value());
  FUZZ_CHECK(WriteFrameHeader(header, area).ok());
  const Result<FrameHeader> decoded = ParseFrameHeader(ExactCopy(Bytes(area)).bytes());
  FUZZ_CHECK(decoded.ok() && SameFields(*decoded, header));
  FUZZ_CHECK(decoded->header_bytes == header.header_bytes && decoded->frame_bytes == header.frame_bytes);
  CheckDecoded(area, *decoded);
  FUZZ_CHECK(!ParseFrameHeader(ExactCopy(Bytes(area).first(area.size() - 1)).bytes()).ok());
  const size_t hashed = kFramePrefixBytes + BodyBytesOf(area) - kHashBytes;
  if (!ChangeOneRun(input, hashed, area)) return;
  FUZZ_CHECK(!ParseFrameHeader(ExactCopy(Bytes(area)).bytes()).ok());
}

}  // namespace

TERRACE_FUZZ_TARGET(FuzzFrameHeader) {
  FuzzInput input(data, size);
  const auto mode = static_cast<Mode>(input.Take<uint8_t>() % kNumModes);
  if (mode == kFromChoices) {
    CheckChoices(input);
    return 0;
  }
  const ExactCopy frame(input.rest());
  if (mode == kResealed) Reseal(frame.bytes());
  const Result<uint32_t> peeked = PeekHeaderBytes(frame.bytes());
  const Result<FrameHeader> header = ParseFrameHeader(frame.bytes());
  if (!header.ok()) return 0;
  FUZZ_CHECK(peeked.ok());
  CheckDecoded(frame.bytes(), *header);
  return 0;
}

}  // namespace terrace::fuzz
