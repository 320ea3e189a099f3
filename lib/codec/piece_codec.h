// PieceCodec: how a payload becomes the stored bytes of a frame and back, piece by piece, with a checksum per
// piece. The raw codec moves nothing: the payload was written in place.
//
// Threads: no state; safe everywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lib/wire/frame.h"
#include "terrace/bytes.h"
#include "terrace/status.h"

namespace terrace {

// Hashes each piece of `payload` (stored bytes of the raw codec) into its table entry.
void SealRawPieces(Bytes payload, std::vector<Piece>& pieces);

// Part of a frame as a read of a layer range puts it into a buffer: the whole header area, and right behind
// it the pages of the frame that hold payload bytes [begin, end).
//
//   | header, header_bytes | page with payload byte `begin` | ... | page with payload byte `end` - 1 |
struct FrameWindow {
  uint32_t header_bytes = 0;
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t first_page() const { return begin / kFrameAlignment * kFrameAlignment; }  // of the payload
  uint64_t size_bytes() const { return header_bytes + RoundUp(end, kFrameAlignment) - first_page(); }
  // Where payload byte `begin` lies in the buffer.
  uint64_t payload_at() const { return header_bytes + begin - first_page(); }
};

// Checks pieces against their hashes as bytes arrive, in any order, while they are in cache. Made for one
// frame, or one window of it; calls must not overlap.
class PieceVerifier {
 public:
  // `frame` is where the frame's bytes land. Nothing is read before MarkPresent says that it is there.
  explicit PieceVerifier(Bytes frame) : bytes_(frame) {}
  // The same for a window: offsets below are those of the buffer, `bytes`. A window that begins or ends
  // inside a piece is kDataLoss: pieces never cross a layer.
  PieceVerifier(Bytes bytes, const FrameWindow& window) : bytes_(bytes), window_(window) {}

  // Bytes [offset, offset + n) are in place.
  void MarkPresent(uint64_t offset, uint64_t n);
  // Everything is in place: verifies what MarkPresent did not. The header, or kDataLoss with the reason.
  // `frame_bytes` is the length of the whole frame, of a window too.
  Result<FrameHeader> Finish(uint64_t frame_bytes);

  // What was found wrong so far.
  Status status() const;
  // Null before it is there and right.
  const FrameHeader* header() const { return header_.ok() ? &header_.value() : nullptr; }
  // Payload bytes before this one are there and right (from the window's begin on).
  uint64_t verified_end() const { return verified_end_; }
  // Bytes before this one are in place, without a gap.
  uint64_t present_end() const { return contiguous_; }
  size_t num_islands() const { return islands_.size(); }  // beyond a gap

 private:
  void VerifyReady();
  void ParseHeader();
  // Of the payload's byte, in bytes_.
  uint64_t PlaceOf(uint64_t payload_offset) const;

  Bytes bytes_;
  std::optional<FrameWindow> window_;
  uint64_t contiguous_ = 0;                             // bytes present from the beginning without a gap
  std::vector<std::pair<uint64_t, uint64_t>> islands_;  // present beyond a gap, [begin, end)
  bool header_parsed_ = false;
  Result<FrameHeader> header_ = DataLossError("frame: nothing arrived");
  size_t next_piece_ = 0;
  size_t end_piece_ = 0;
  uint64_t verified_end_ = 0;
  Status piece_status_;
};

}  // namespace terrace
