// The run of a sealed (encrypted) object on disk, in place of tier page and frame; all of it multiples of
// 4,096 bytes. How it is sealed stands in backends/nvme/sealed_run.h.
//
//   0                 4,096        4,096 + tag area
//   | tier page, plain | tag area   | ciphertext of the frame, as long as the frame |
//                      | 16 B per piece, in order; zeros up to a multiple of 4,096 B |
//
// A piece is 64 KiB of the frame, the last one the rest of it.
#pragma once

#include <cstdint>

#include "terrace/bytes.h"

namespace terrace {

inline constexpr uint64_t kSealedPieceBytes = uint64_t{64} << 10;
inline constexpr uint64_t kSealedTagBytes = 16;

constexpr uint64_t SealedPieces(uint64_t frame_bytes) {
  return frame_bytes / kSealedPieceBytes + (frame_bytes % kSealedPieceBytes != 0 ? 1 : 0);
}
constexpr uint64_t SealedTagAreaBytes(uint64_t frame_bytes) {
  const uint64_t tags = SealedPieces(frame_bytes) * kSealedTagBytes;
  return (tags + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
}
// Where the frame's (cipher)text begins in the run.
constexpr uint64_t FrameOffsetInRun(uint64_t frame_bytes, bool sealed) {
  return kTierPageBytes + (sealed ? SealedTagAreaBytes(frame_bytes) : 0);
}
constexpr uint64_t RunBytes(uint64_t frame_bytes, bool sealed) {
  return FrameOffsetInRun(frame_bytes, sealed) + frame_bytes;
}
// The other way: a 4,096 byte page of tags stands for 16 MiB of frame.
constexpr uint64_t FrameBytesInRun(uint64_t run_bytes, bool sealed) {
  const uint64_t rest = run_bytes - kTierPageBytes;
  if (!sealed) return rest;
  const uint64_t tagged_bytes = kFrameAlignment / kSealedTagBytes * kSealedPieceBytes;
  const uint64_t tag_pages = (rest + tagged_bytes + kFrameAlignment - 1) / (tagged_bytes + kFrameAlignment);
  return rest - tag_pages * kFrameAlignment;
}

}  // namespace terrace
