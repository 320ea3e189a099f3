#include "backends/nvme/sealed_feed.h"

#include <algorithm>
#include <string>

#include "lib/base/check.h"

namespace terrace {
namespace {

// Appends what `to` lacks of `size`; gives the rest.
Bytes TakeUpTo(uint64_t size, Bytes bytes, std::vector<std::byte>& to) {
  const uint64_t n = std::min<uint64_t>(size - to.size(), bytes.size());
  to.insert(to.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
  return bytes.subspan(n);
}

}  // namespace

SealedFeed::SealedFeed(const DirectoryId& directory, const KeyRing& keys, FrameChecker& checker)
    : directory_(directory), keys_(keys), checker_(checker) {}

void SealedFeed::Begin(const ObjectId& id, const ObjectRecord& record) {
  run_ = {directory_, id, record.meta.generation, record.meta.frame_bytes};
  head_bytes_ = FrameOffsetInRun(run_.frame_bytes, true);
  header_bytes_ = record.header_bytes;
  opener_.reset();
  head_.clear();
  piece_.clear();
  front_.clear();
  next_piece_ = 0;
}

void SealedFeed::Feed(Bytes bytes) {
  while (!bytes.empty() && !checker_.is_wrong()) {
    if (head_.size() < head_bytes_) {
      bytes = TakeUpTo(head_bytes_, bytes, head_);
      if (head_.size() == head_bytes_) OpenRun();
      continue;
    }
    TERRACE_CHECK(next_piece_ < SealedPieces(run_.frame_bytes)) << "bytes behind the run";
    const uint64_t length = SealedPieceLength(run_.frame_bytes, next_piece_);
    bytes = TakeUpTo(length, bytes, piece_);
    if (piece_.size() == length) OpenPiece();
  }
}

void SealedFeed::OpenRun() {
  const Bytes page = Bytes(head_).first(kTierPageBytes);
  const std::optional<TierPage> fields = checker_.CheckPage(page);
  if (!fields) return;
  const CipherKey* key = keys_.Find(fields->key_id);
  TERRACE_CHECK(key != nullptr) << fields->key_id;
  opener_.emplace(DeriveRunKey(*key, fields->salt, run_), run_);
  front_.assign(page.begin(), page.end());
}

void SealedFeed::OpenPiece() {
  const Status opened = opener_->Open(next_piece_, piece_, Bytes(head_).subspan(kTierPageBytes));
  if (!opened.ok()) {
    const bool has_header = next_piece_ * kSealedPieceBytes < header_bytes_;
    checker_.Fail(has_header ? NvmeFindingKind::kFrameHeader : NvmeFindingKind::kPayload,
                  std::string(opened.message()));
    return;
  }
  ++next_piece_;
  const uint64_t front_bytes = kTierPageBytes + header_bytes_;
  Bytes plain(piece_);
  if (front_.size() < front_bytes) {
    plain = TakeUpTo(front_bytes, plain, front_);
    if (front_.size() == front_bytes) checker_.Feed(front_);
  }
  if (front_.size() == front_bytes) checker_.Feed(plain);
  piece_.clear();
}

}  // namespace terrace
