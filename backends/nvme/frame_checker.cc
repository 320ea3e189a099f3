#include "backends/nvme/frame_checker.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "lib/base/check.h"

namespace terrace {

struct FrameChecker::PieceHash {
  PieceHash() : state(XXH3_createState()) { TERRACE_CHECK(state != nullptr) << "out of memory"; }
  ~PieceHash() { XXH3_freeState(state); }
  PieceHash(const PieceHash&) = delete;
  PieceHash& operator=(const PieceHash&) = delete;
  XXH3_state_t* state;
};

FrameChecker::FrameChecker(const Superblock& superblock)
    : superblock_(superblock), hash_(std::make_unique<PieceHash>()) {}

FrameChecker::~FrameChecker() = default;

void FrameChecker::Begin(const ObjectId& id, ObjectRecord record) {
  id_ = id;
  record_ = std::move(record);
  has_header_ = false;
  piece_ = 0;
  piece_done_ = 0;
  fault_.reset();
  XXH3_128bits_reset(hash_->state);
}

void FrameChecker::Feed(Bytes bytes) {
  if (fault_) return;
  if (!has_header_) {
    TERRACE_CHECK(bytes.size() >= kTierPageBytes + record_.header_bytes) << bytes.size();
    const Bytes header_area = bytes.subspan(kTierPageBytes, record_.header_bytes);
    const Bytes page = bytes.first(kTierPageBytes);
    if (CheckPage(page)) CheckCode(page, header_area);
    if (!fault_) CheckHeader(header_area);
    has_header_ = true;
    bytes = bytes.subspan(kTierPageBytes + record_.header_bytes);
  }
  if (!fault_) FeedPayload(bytes);
}

std::optional<FrameFault> FrameChecker::Finish() {
  if (!fault_ && (!has_header_ || piece_ < header_.pieces.size())) {
    Fail(NvmeFindingKind::kPayload, "the frame ends before its payload");
  }
  return std::move(fault_);
}

std::optional<TierPage> FrameChecker::CheckPage(Bytes page) {
  const auto wrong = [&](const std::string& what) {
    Fail(NvmeFindingKind::kTierPage, what);
    return std::nullopt;
  };
  if (std::all_of(page.begin(), page.end(), [](std::byte byte) { return byte == std::byte{0}; })) {
    return wrong("tier page: wiped, or never written");
  }
  Result<PeekedTierPage> peeked = PeekTierPage(page);
  if (!peeked.ok()) return wrong(std::string(peeked.status().message()));
  TierPage& fields = peeked->fields;
  const ObjectMeta& meta = record_.meta;
  if (fields.directory != superblock_.directory) return wrong("tier page: of another directory");
  if (fields.sealed != (record_.key_id != 0) || fields.key_id != record_.key_id) {
    return wrong("tier page: key id " + std::to_string(fields.key_id) + ", the record has " +
                 std::to_string(record_.key_id));
  }
  if (fields.sealed && fields.id != id_) return wrong("tier page: of another object");
  if (fields.generation != meta.generation) {
    return wrong("tier page: generation " + std::to_string(fields.generation) + ", the record has " +
                 std::to_string(meta.generation));
  }
  if (fields.frame_bytes != meta.frame_bytes) {
    return wrong("tier page: frame of " + std::to_string(fields.frame_bytes) + " bytes, the record has " +
                 std::to_string(meta.frame_bytes));
  }
  if (!fields.extents.empty() && fields.extents != record_.extents) {
    return wrong("tier page: its extents are not the record's");
  }
  return std::move(fields);
}

void FrameChecker::CheckCode(Bytes page, Bytes header_area) {
  const Status right = ParseTierPage(page, header_area, superblock_.secret).status();
  if (right.ok()) return;
  // A code covers page and header: say which of the two it is, where the header can tell.
  const Result<FrameHeader> header = ParseFrameHeader(header_area);
  if (!header.ok()) return Fail(NvmeFindingKind::kFrameHeader, std::string(header.status().message()));
  Fail(NvmeFindingKind::kTierPage, std::string(right.message()));
}

void FrameChecker::CheckHeader(Bytes header_area) {
  Result<FrameHeader> header = ParseFrameHeader(header_area);
  if (!header.ok()) return Fail(NvmeFindingKind::kFrameHeader, std::string(header.status().message()));
  header_ = std::move(*header);
  const std::string difference = Difference();
  if (!difference.empty()) {
    Fail(NvmeFindingKind::kFrameHeader, "frame header: " + difference + " is not the record's");
  }
}

std::string FrameChecker::Difference() const {
  const ObjectMeta& meta = record_.meta;
  // Its key is that of parent, tokens and items: these need no look of their own.
  if (header_.key != id_.key) return "key";
  if (header_.part != id_.part) return "group or shard";
  if (header_.root != meta.root) return "root";
  if (header_.parent != meta.parent) return "parent";
  if (header_.first_token != meta.first_token) return "first token";
  if (header_.header_bytes != record_.header_bytes) return "length";
  if (header_.frame_bytes != meta.frame_bytes) return "frame length";
  if (header_.payload_bytes != meta.payload_bytes) return "payload length";
  if (header_.codec != meta.codec) return "codec";
  if (header_.flags != meta.flags) return "flags";
  if (header_.division != meta.division) return "division";
  return {};
}

void FrameChecker::FeedPayload(Bytes bytes) {
  while (!bytes.empty() && piece_ < header_.pieces.size() && !fault_) {
    const uint64_t left = header_.pieces[piece_].stored_bytes - piece_done_;
    const size_t n = std::min<uint64_t>(left, bytes.size());
    XXH3_128bits_update(hash_->state, bytes.data(), n);
    piece_done_ += n;
    bytes = bytes.subspan(n);
    if (n == left) EndPiece();
  }
}

void FrameChecker::EndPiece() {
  const XXH128_hash_t hash = XXH3_128bits_digest(hash_->state);
  const Piece& piece = header_.pieces[piece_];
  if (Hash128{hash.low64, hash.high64} != piece.hash) {
    return Fail(NvmeFindingKind::kPayload, "payload: the hash of piece " + std::to_string(piece_) + " (" +
                                               std::to_string(piece.stored_bytes) + " bytes at " +
                                               std::to_string(piece.stored_offset) + ") is wrong");
  }
  ++piece_;
  piece_done_ = 0;
  XXH3_128bits_reset(hash_->state);
}

void FrameChecker::Fail(NvmeFindingKind kind, std::string reason) { fault_ = {kind, std::move(reason)}; }

}  // namespace terrace
