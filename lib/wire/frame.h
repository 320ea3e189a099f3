// Frame: an object as memory, disk and wire hold it: header area, then the encoded payload.
//
// Header area, little-endian, frozen as version 1; header_bytes is a multiple of 4,096, at most 1 MiB:
//
//   offset  size
//   0       8     magic "TERRACE1"
//   8       4     u32 version = 1
//   12      4     u32 header_bytes       length of this area; bounded before any allocation
//   16      8     u64 frame_bytes        header_bytes + stored payload, padded to 4,096
//   24      8     u64 payload_bytes      decoded payload
//   32      8     u64 stored_bytes       encoded payload without padding
//   40      4     u32 body_bytes         used bytes of this area after offset 64
//   44      2     u16 group
//   46      2     u16 shard
//   48      1     u8  codec              0 = raw
//   49      1     u8  cipher             0 = none
//   50      2     u16 flags              0
//   52      4     u32 division           KvSpec::DivisionTag
//   56      8     u64 first_token
//   64            body:
//           32    root
//           32    parent
//           32    key
//           4     u32 key_id             encryption key, 0 without
//           12    nonce                  zero without encryption
//           ...   content                u32 n_tokens | u32[] | u32 n_items | { u32 pos | u32 len | bytes }[]
//           4     u32 n_pieces
//           n x   { u64 raw_offset | u32 raw_bytes | u32 stored_bytes | u64 stored_offset | u64 hash_low |
//           u64 hash_high } 16    XXH3-128 of bytes [0, 64 + body_bytes - 16) of this area: low, high
//   then zeros up to header_bytes
//
// Offsets of pieces count from the payload's first byte (at header_bytes of the frame); the hash of a piece
// is XXH3-128 of its stored bytes. Pieces cover the payload without gap, in order; they are 1 MiB and never
// cross a layer of a canonical payload.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/rounding.h"
#include "terrace/bytes.h"
#include "terrace/kv_spec.h"
#include "terrace/object_meta.h"
#include "terrace/status.h"

namespace terrace {

inline constexpr uint32_t kFrameVersion = 1;
inline constexpr size_t kFramePrefixBytes = 64;
inline constexpr size_t kMaxHeaderBytes = size_t{1} << 20;
inline constexpr uint32_t kPieceBytes = uint32_t{1} << 20;

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};
Hash128 HashBytes(Bytes bytes);  // XXH3-128, seed 0

struct Piece {
  uint64_t raw_offset = 0;
  uint32_t raw_bytes = 0;
  uint32_t stored_bytes = 0;
  uint64_t stored_offset = 0;
  Hash128 hash;
  friend bool operator==(const Piece&, const Piece&) = default;
};

struct FrameHeader {
  ChunkKey root;
  ChunkKey parent;
  ChunkKey key;
  uint64_t first_token = 0;
  ChunkContent content;
  ObjectPart part;
  Codec codec = Codec::kRaw;
  uint8_t cipher = 0;
  uint32_t key_id = 0;
  std::array<std::byte, 12> nonce{};
  uint16_t flags = 0;
  uint32_t division = 0;
  uint64_t payload_bytes = 0;
  uint64_t stored_bytes = 0;
  std::vector<Piece> pieces;
  // Set by ParseFrameHeader and FrameLayout.
  uint32_t header_bytes = 0;
  uint64_t frame_bytes = 0;
};

// Piece boundaries of a raw payload: 1 MiB, never across a multiple of layer boundaries given by
// `layer_bytes` (bytes of each layer in the payload, in order; empty = opaque). Hashes are zero.
std::vector<Piece> PlanPieces(uint64_t payload_bytes, const std::vector<uint64_t>& layer_bytes);

// The header area that `header` needs, a multiple of 4,096. kInvalidArgument above 1 MiB.
Result<uint32_t> HeaderBytes(const FrameHeader& header);

// Writes the header area (header.header_bytes and frame_bytes are set from the content) to the beginning of
// `frame`.
Status WriteFrameHeader(FrameHeader& header, MutableBytes frame);

// The length of the header area from the first 64 bytes; kDataLoss if magic, version or bounds are wrong.
Result<uint32_t> PeekHeaderBytes(Bytes frame_prefix);

// Parses and verifies: magic, version, bounds, hash, key against parent and content, pieces against lengths.
// Anything wrong is kDataLoss with a reason. `frame` holds at least the header area.
Result<FrameHeader> ParseFrameHeader(Bytes frame);

}  // namespace terrace
