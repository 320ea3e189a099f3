// PieceCodec: how a payload becomes the stored bytes of a frame and back, piece by piece, with a checksum per
// piece. The raw codec moves nothing: the payload was written in place.
//
// Threads: no state; safe everywhere.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/wire/frame.h"
#include "terrace/bytes.h"
#include "terrace/status.h"

namespace terrace {

// Hashes each piece of `payload` (stored bytes of the raw codec) into its table entry.
void SealRawPieces(Bytes payload, std::vector<Piece>& pieces);

// Checks pieces against their hashes as bytes arrive, in any order, while they are in cache. Made for one
// frame; calls must not overlap.
class PieceVerifier {
 public:
  // `frame` is where the frame's bytes land. Nothing is read before MarkPresent says that it is there.
  explicit PieceVerifier(Bytes frame) : frame_(frame) {}

  // Bytes [offset, offset + n) of the frame are in place.
  void MarkPresent(uint64_t offset, uint64_t n);
  // Everything is in place: verifies what MarkPresent did not. The header, or kDataLoss with the reason.
  Result<FrameHeader> Finish(uint64_t frame_bytes);

 private:
  void VerifyReady();

  Bytes frame_;
  uint64_t contiguous_ = 0;                             // bytes present from the beginning without a gap
  std::vector<std::pair<uint64_t, uint64_t>> islands_;  // present beyond a gap, [begin, end)
  bool header_parsed_ = false;
  Result<FrameHeader> header_ = DataLossError("frame: nothing arrived");
  size_t next_piece_ = 0;
  Status piece_status_;
};

}  // namespace terrace
