#include "lib/wire/frame.h"

#include <xxhash.h>

#include <algorithm>
#include <string>

#include "lib/wire/byte_codec.h"
#include "terrace/token_hasher.h"

namespace terrace {
namespace {

constexpr std::string_view kMagic = "TERRACE1";
constexpr size_t kHashBytes = 16;
constexpr size_t kPieceEntryBytes = 40;

Status Bad(std::string what) { return DataLossError("frame header: " + what); }

// Everything after the 64-byte prefix but the hash.
void WriteBody(const FrameHeader& header, ByteWriter& out) {
  out.WriteDigest(header.root);
  out.WriteDigest(header.parent);
  out.WriteDigest(header.key);
  out.Write<uint32_t>(header.key_id);
  out.WriteBytes(Bytes(header.nonce));
  WriteContent(header.content, out);
  out.Write<uint32_t>(static_cast<uint32_t>(header.pieces.size()));
  for (const Piece& piece : header.pieces) {
    out.Write<uint64_t>(piece.raw_offset);
    out.Write<uint32_t>(piece.raw_bytes);
    out.Write<uint32_t>(piece.stored_bytes);
    out.Write<uint64_t>(piece.stored_offset);
    out.Write<uint64_t>(piece.hash.low);
    out.Write<uint64_t>(piece.hash.high);
  }
}

size_t BodyBytes(const FrameHeader& header) {
  size_t bytes = 3 * 32 + 4 + 12 + 4 + header.content.tokens.size() * sizeof(Token) + 4;
  for (const Item& item : header.content.items) bytes += 8 + item.bytes.size();
  return bytes + 4 + header.pieces.size() * kPieceEntryBytes + kHashBytes;
}

struct Prefix {
  uint32_t header_bytes = 0;
  uint64_t frame_bytes = 0;
  uint32_t body_bytes = 0;
};

Result<Prefix> ReadPrefix(ByteReader& in, FrameHeader& header) {
  Prefix prefix;
  if (in.ReadBytes(kMagic.size()) != kMagic) return Bad("magic is wrong");
  if (const auto version = in.Read<uint32_t>(); version != kFrameVersion) {
    return Bad("version " + std::to_string(version) + ", this build reads " + std::to_string(kFrameVersion));
  }
  prefix.header_bytes = in.Read<uint32_t>();
  prefix.frame_bytes = in.Read<uint64_t>();
  header.payload_bytes = in.Read<uint64_t>();
  header.stored_bytes = in.Read<uint64_t>();
  prefix.body_bytes = in.Read<uint32_t>();
  header.part.group = in.Read<uint16_t>();
  header.part.shard = in.Read<uint16_t>();
  header.codec = static_cast<Codec>(in.Read<uint8_t>());
  header.cipher = in.Read<uint8_t>();
  header.flags = in.Read<uint16_t>();
  header.division = in.Read<uint32_t>();
  header.first_token = in.Read<uint64_t>();
  if (!in.ok()) return Bad("shorter than its prefix");
  const uint32_t bytes = prefix.header_bytes;
  if (bytes == 0 || bytes % kFrameAlignment != 0 || bytes > kMaxHeaderBytes) {
    return Bad("length " + std::to_string(bytes) + " is not a multiple of 4096 up to 1 MiB");
  }
  if (prefix.body_bytes < kHashBytes || prefix.body_bytes > bytes - kFramePrefixBytes)
    return Bad("body length");
  if (header.stored_bytes > UINT64_MAX - kMaxHeaderBytes - kFrameAlignment ||
      prefix.frame_bytes != bytes + RoundUp(header.stored_bytes, kFrameAlignment)) {
    return Bad("frame length does not fit its parts");
  }
  if (header.flags != 0) return Bad("unknown flags are set");
  return prefix;
}

Status CheckPieces(const FrameHeader& header) {
  const bool is_plain = header.codec == Codec::kRaw && header.cipher == 0;
  uint64_t raw = 0;
  uint64_t stored = 0;
  for (const Piece& piece : header.pieces) {
    if (piece.raw_offset != raw || piece.stored_offset != stored || piece.raw_bytes == 0) {
      return Bad("pieces leave a gap or overlap");
    }
    if (is_plain && piece.stored_bytes != piece.raw_bytes) return Bad("a raw piece of another stored length");
    raw += piece.raw_bytes;
    stored += piece.stored_bytes;
  }
  if (raw != header.payload_bytes || stored != header.stored_bytes)
    return Bad("pieces do not cover the payload");
  return OkStatus();
}

}  // namespace

Hash128 HashBytes(Bytes bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

std::vector<Piece> PlanPieces(uint64_t payload_bytes, const std::vector<uint64_t>& layer_bytes) {
  std::vector<Piece> pieces;
  uint64_t offset = 0;
  const auto add = [&](uint64_t bytes) {
    const uint64_t end = offset + bytes;
    while (offset < end) {
      const auto n = static_cast<uint32_t>(std::min<uint64_t>(kPieceBytes, end - offset));
      pieces.push_back({.raw_offset = offset, .raw_bytes = n, .stored_bytes = n, .stored_offset = offset});
      offset += n;
    }
  };
  for (const uint64_t bytes : layer_bytes) add(bytes);
  if (offset < payload_bytes) add(payload_bytes - offset);
  return pieces;
}

Result<uint32_t> HeaderBytes(const FrameHeader& header) {
  const uint64_t bytes = RoundUp(kFramePrefixBytes + BodyBytes(header), kFrameAlignment);
  if (bytes > kMaxHeaderBytes) {
    return InvalidArgumentError("a frame header of " + std::to_string(bytes) + " bytes is above 1 MiB");
  }
  return static_cast<uint32_t>(bytes);
}

Status WriteFrameHeader(FrameHeader& header, MutableBytes frame) {
  Result<uint32_t> header_bytes = HeaderBytes(header);
  if (!header_bytes.ok()) return header_bytes.status();
  header.header_bytes = *header_bytes;
  header.frame_bytes = header.header_bytes + RoundUp(header.stored_bytes, kFrameAlignment);
  if (frame.size() < header.header_bytes) return InvalidArgumentError("no room for the frame header");
  ByteWriter out;
  out.WriteBytes(kMagic);
  out.Write<uint32_t>(kFrameVersion);
  out.Write<uint32_t>(header.header_bytes);
  out.Write<uint64_t>(header.frame_bytes);
  out.Write<uint64_t>(header.payload_bytes);
  out.Write<uint64_t>(header.stored_bytes);
  out.Write<uint32_t>(static_cast<uint32_t>(BodyBytes(header)));
  out.Write<uint16_t>(header.part.group);
  out.Write<uint16_t>(header.part.shard);
  out.Write<uint8_t>(static_cast<uint8_t>(header.codec));
  out.Write<uint8_t>(header.cipher);
  out.Write<uint16_t>(header.flags);
  out.Write<uint32_t>(header.division);
  out.Write<uint64_t>(header.first_token);
  WriteBody(header, out);
  const Hash128 hash = HashBytes(std::as_bytes(std::span(out.str())));
  out.Write<uint64_t>(hash.low);
  out.Write<uint64_t>(hash.high);
  std::memcpy(frame.data(), out.str().data(), out.size());
  std::memset(frame.data() + out.size(), 0, header.header_bytes - out.size());
  return OkStatus();
}

Result<uint32_t> PeekHeaderBytes(Bytes frame_prefix) {
  ByteReader in(frame_prefix.first(std::min(frame_prefix.size(), kFramePrefixBytes)));
  FrameHeader header;
  Result<Prefix> prefix = ReadPrefix(in, header);
  if (!prefix.ok()) return prefix.status();
  return prefix->header_bytes;
}

Result<FrameHeader> ParseFrameHeader(Bytes frame) {
  FrameHeader header;
  ByteReader in(frame.first(std::min(frame.size(), kMaxHeaderBytes)));
  Result<Prefix> prefix = ReadPrefix(in, header);
  if (!prefix.ok()) return prefix.status();
  if (frame.size() < prefix->header_bytes) return Bad("cut off");
  header.header_bytes = prefix->header_bytes;
  header.frame_bytes = prefix->frame_bytes;

  const size_t hashed = kFramePrefixBytes + prefix->body_bytes - kHashBytes;
  ByteReader tail(frame.subspan(hashed, kHashBytes));
  Hash128 expected;
  expected.low = tail.Read<uint64_t>();
  expected.high = tail.Read<uint64_t>();
  if (HashBytes(frame.first(hashed)) != expected) return Bad("checksum is wrong");

  ByteReader body(frame.subspan(kFramePrefixBytes, prefix->body_bytes - kHashBytes));
  header.root = body.ReadDigest();
  header.parent = body.ReadDigest();
  header.key = body.ReadDigest();
  header.key_id = body.Read<uint32_t>();
  const std::string_view nonce = body.ReadBytes(header.nonce.size());
  if (body.ok()) std::memcpy(header.nonce.data(), nonce.data(), nonce.size());
  header.content = ReadContent(body);
  const auto n_pieces = body.Read<uint32_t>();
  if (!body.ok() || body.remaining() != size_t{n_pieces} * kPieceEntryBytes) return Bad("body is malformed");
  header.pieces.reserve(n_pieces);
  for (uint32_t i = 0; i < n_pieces; ++i) {
    Piece piece;
    piece.raw_offset = body.Read<uint64_t>();
    piece.raw_bytes = body.Read<uint32_t>();
    piece.stored_bytes = body.Read<uint32_t>();
    piece.stored_offset = body.Read<uint64_t>();
    piece.hash.low = body.Read<uint64_t>();
    piece.hash.high = body.Read<uint64_t>();
    header.pieces.push_back(piece);
  }
  if (Status status = CheckPieces(header); !status.ok()) return status;
  if (TokenHasher::KeyOf(header.parent, header.content) != header.key)
    return Bad("key is not that of its tokens");
  return header;
}

}  // namespace terrace
