#include "lib/codec/piece_codec.h"

#include <algorithm>
#include <string>

namespace terrace {

void SealRawPieces(Bytes payload, std::vector<Piece>& pieces) {
  for (Piece& piece : pieces)
    piece.hash = HashBytes(payload.subspan(piece.stored_offset, piece.stored_bytes));
}

void PieceVerifier::MarkPresent(uint64_t offset, uint64_t n) {
  if (offset > bytes_.size() || n > bytes_.size() - offset) return;  // Finish will say what is missing
  islands_.emplace_back(offset, offset + n);
  std::sort(islands_.begin(), islands_.end());
  size_t used = 0;
  while (used < islands_.size() && islands_[used].first <= contiguous_) {
    contiguous_ = std::max(contiguous_, islands_[used].second);
    ++used;
  }
  islands_.erase(islands_.begin(), islands_.begin() + static_cast<ptrdiff_t>(used));
  // Those that touch become one: there are as many as gaps, however small the parts are.
  size_t last = 0;
  for (size_t i = 1; i < islands_.size(); ++i) {
    if (islands_[i].first <= islands_[last].second) {
      islands_[last].second = std::max(islands_[last].second, islands_[i].second);
    } else {
      islands_[++last] = islands_[i];
    }
  }
  if (!islands_.empty()) islands_.resize(last + 1);
  VerifyReady();
}

uint64_t PieceVerifier::PlaceOf(uint64_t payload_offset) const {
  return header_->header_bytes + payload_offset - (window_ ? window_->first_page() : 0);
}

void PieceVerifier::ParseHeader() {
  header_parsed_ = true;
  header_ = ParseFrameHeader(bytes_.first(std::min<uint64_t>(contiguous_, bytes_.size())));
  if (!header_.ok()) return;
  end_piece_ = header_->pieces.size();
  if (!window_) return;
  if (header_->header_bytes != window_->header_bytes || header_->stored_bytes < window_->end) {
    header_ = DataLossError("frame: header or payload of another length");
    return;
  }
  const std::vector<Piece>& pieces = header_->pieces;
  const auto piece_at = [&](uint64_t offset) {
    const auto found =
        std::lower_bound(pieces.begin(), pieces.end(), offset,
                         [](const Piece& piece, uint64_t at) { return piece.stored_offset < at; });
    const uint64_t begins = found == pieces.end() ? header_->stored_bytes : found->stored_offset;
    if (begins != offset) piece_status_ = DataLossError("frame: a piece crosses a layer");
    return static_cast<size_t>(found - pieces.begin());
  };
  next_piece_ = piece_at(window_->begin);
  end_piece_ = piece_at(window_->end);
  verified_end_ = window_->begin;
}

void PieceVerifier::VerifyReady() {
  if (!header_parsed_) {
    if (contiguous_ < kFramePrefixBytes) return;
    const Result<uint32_t> header_bytes = PeekHeaderBytes(bytes_);
    if (header_bytes.ok() && contiguous_ < *header_bytes) return;
    ParseHeader();
  }
  if (!header_.ok() || !piece_status_.ok()) return;
  for (; next_piece_ < end_piece_; ++next_piece_) {
    const Piece& piece = header_->pieces[next_piece_];
    const uint64_t begin = PlaceOf(piece.stored_offset);
    if (begin + piece.stored_bytes > contiguous_) return;
    if (HashBytes(bytes_.subspan(begin, piece.stored_bytes)) != piece.hash) {
      piece_status_ =
          DataLossError("piece " + std::to_string(next_piece_) + " of the frame: checksum is wrong");
      return;
    }
    verified_end_ = piece.stored_offset + piece.stored_bytes;
  }
}

Status PieceVerifier::status() const {
  if (header_parsed_ && !header_.ok()) return header_.status();
  return piece_status_;
}

Result<FrameHeader> PieceVerifier::Finish(uint64_t frame_bytes) {
  const uint64_t landed = window_ ? window_->size_bytes() : frame_bytes;
  if (landed > bytes_.size()) return DataLossError("frame: longer than its buffer");
  MarkPresent(0, landed);
  if (!header_.ok()) return header_.status();
  if (!piece_status_.ok()) return piece_status_;
  if (header_->frame_bytes != frame_bytes) return DataLossError("frame: length differs from its header");
  if (next_piece_ != end_piece_) return DataLossError("frame: cut off");
  return std::move(header_);
}

}  // namespace terrace
