#include "lib/codec/piece_codec.h"

#include <algorithm>
#include <string>

namespace terrace {

void SealRawPieces(Bytes payload, std::vector<Piece>& pieces) {
  for (Piece& piece : pieces)
    piece.hash = HashBytes(payload.subspan(piece.stored_offset, piece.stored_bytes));
}

void PieceVerifier::MarkPresent(uint64_t offset, uint64_t n) {
  if (offset > frame_.size() || n > frame_.size() - offset) return;  // Finish will say what is missing
  islands_.emplace_back(offset, offset + n);
  std::sort(islands_.begin(), islands_.end());
  size_t used = 0;
  while (used < islands_.size() && islands_[used].first <= contiguous_) {
    contiguous_ = std::max(contiguous_, islands_[used].second);
    ++used;
  }
  islands_.erase(islands_.begin(), islands_.begin() + static_cast<ptrdiff_t>(used));
  VerifyReady();
}

void PieceVerifier::VerifyReady() {
  if (!header_parsed_) {
    if (contiguous_ < kFramePrefixBytes) return;
    Result<uint32_t> header_bytes = PeekHeaderBytes(frame_);
    if (header_bytes.ok() && contiguous_ < *header_bytes) return;
    header_parsed_ = true;
    if (!header_bytes.ok()) {
      header_ = header_bytes.status();
    } else {
      header_ = ParseFrameHeader(frame_.first(std::min<uint64_t>(contiguous_, frame_.size())));
    }
  }
  if (!header_.ok() || !piece_status_.ok()) return;
  const FrameHeader& header = header_.value();
  for (; next_piece_ < header.pieces.size(); ++next_piece_) {
    const Piece& piece = header.pieces[next_piece_];
    const uint64_t begin = header.header_bytes + piece.stored_offset;
    if (begin + piece.stored_bytes > contiguous_) return;
    if (HashBytes(frame_.subspan(begin, piece.stored_bytes)) != piece.hash) {
      piece_status_ =
          DataLossError("piece " + std::to_string(next_piece_) + " of the frame: checksum is wrong");
      return;
    }
  }
}

Result<FrameHeader> PieceVerifier::Finish(uint64_t frame_bytes) {
  if (frame_bytes > frame_.size()) return DataLossError("frame: longer than its buffer");
  MarkPresent(0, frame_bytes);
  if (!header_.ok()) return header_.status();
  if (!piece_status_.ok()) return piece_status_;
  if (header_->frame_bytes != frame_bytes) return DataLossError("frame: length differs from its header");
  if (next_piece_ != header_->pieces.size()) return DataLossError("frame: cut off");
  return std::move(header_);
}

}  // namespace terrace
