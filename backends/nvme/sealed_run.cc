#include "backends/nvme/sealed_run.h"

#include <algorithm>
#include <cstring>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "lib/wire/byte_codec.h"
#include "lib/wire/frame.h"
#include "lib/wire/object_record.h"

namespace terrace {
namespace {

constexpr std::string_view kKeyLabel{"terrace-object-1\0", 17};

GcmNonce NonceOf(uint64_t piece) {
  GcmNonce nonce{};
  std::memcpy(nonce.data(), &piece, sizeof(piece));
  return nonce;
}

std::string Associated(const RunIdentity& run, uint64_t piece) {
  ByteWriter out;
  out.WriteBytes(EncodeRecordKey(run.id));
  out.Write<uint64_t>(run.generation);
  out.Write<uint64_t>(run.frame_bytes);
  out.Write<uint64_t>(piece);
  return out.Take();
}

Bytes AsBytes(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace

CipherKey DeriveRunKey(const CipherKey& key, const ObjectSalt& salt, const RunIdentity& run) {
  ByteWriter info;
  info.WriteBytes(kKeyLabel);
  info.WriteBytes(Bytes(run.directory));
  info.Write<uint64_t>(run.generation);
  info.WriteBytes(EncodeRecordKey(run.id));
  return DeriveKey(key, salt, AsBytes(info.str()));
}

Result<ObjectSalt> NewSalt() {
  ObjectSalt salt;
  TERRACE_RETURN_IF_ERROR(FillRandom(salt));
  return salt;
}

uint64_t SealedPieceLength(uint64_t frame_bytes, uint64_t piece) {
  return std::min(kSealedPieceBytes, frame_bytes - piece * kSealedPieceBytes);
}

RunSealer::RunSealer(const CipherKey& run_key, const RunIdentity& run, MutableBytes tag_area)
    : key_(run_key), run_(run), tags_(tag_area) {
  TERRACE_CHECK(tags_.size() == SealedTagAreaBytes(run.frame_bytes));
}

void RunSealer::Seal(Bytes plain, std::byte* out) {
  TERRACE_CHECK(plain.size() <= run_.frame_bytes - done_bytes_);
  if (!stream_) stream_.emplace(GcmStream::Direction::kSeal, key_);
  while (!plain.empty()) {
    const uint64_t piece = done_bytes_ / kSealedPieceBytes;
    const uint64_t in_piece = done_bytes_ % kSealedPieceBytes;
    const uint64_t length = SealedPieceLength(run_.frame_bytes, piece);
    if (in_piece == 0) stream_->Begin(NonceOf(piece), AsBytes(Associated(run_, piece)));
    const uint64_t n = std::min<uint64_t>(plain.size(), length - in_piece);
    stream_->Update(plain.first(n), out);
    if (in_piece + n == length) {
      const GcmTag tag = stream_->FinishSeal();
      std::memcpy(tags_.data() + piece * kSealedTagBytes, tag.data(), tag.size());
    }
    done_bytes_ += n;
    plain = plain.subspan(n);
    out += n;
  }
  if (done()) stream_.reset();
}

RunOpener::RunOpener(const CipherKey& run_key, const RunIdentity& run)
    : stream_(GcmStream::Direction::kOpen, run_key), run_(run) {}

Status RunOpener::Open(uint64_t piece, MutableBytes bytes, Bytes tag_area) {
  TERRACE_CHECK(tag_area.size() >= (piece + 1) * kSealedTagBytes &&
                bytes.size() == SealedPieceLength(run_.frame_bytes, piece));
  GcmTag tag;
  std::memcpy(tag.data(), tag_area.data() + piece * kSealedTagBytes, tag.size());
  stream_.Begin(NonceOf(piece), AsBytes(Associated(run_, piece)));
  stream_.Update(bytes, bytes.data());
  if (!stream_.FinishOpen(tag)) {
    return DataLossError("sealed frame: piece " + std::to_string(piece) + " does not open");
  }
  return OkStatus();
}

Result<std::vector<std::byte>> OpenHeaderArea(const PeekedTierPage& page, const KeyRing& keys,
                                              const RunReader& read) {
  const TierPage& fields = page.fields;
  const CipherKey* key = keys.Find(fields.key_id);
  const bool is_bounded = page.header_bytes <= fields.frame_bytes && page.header_bytes <= kMaxHeaderBytes;
  if (!fields.sealed || key == nullptr || !is_bounded) {
    return DataLossError("tier page: key id " + std::to_string(fields.key_id));
  }
  const RunIdentity run{fields.directory, fields.id, fields.generation, fields.frame_bytes};
  const uint64_t num_pieces = SealedPieces(page.header_bytes);
  std::vector<std::byte> tags(kFrameAlignment);
  TERRACE_CHECK(num_pieces * kSealedTagBytes <= tags.size());
  std::vector<std::byte> header(std::min(num_pieces * kSealedPieceBytes, run.frame_bytes));
  const uint64_t frame_offset = FrameOffsetInRun(run.frame_bytes, true);
  if (!read(kTierPageBytes, tags) || !read(frame_offset, header)) {
    return DataLossError("sealed frame: its header cannot be read");
  }
  RunOpener opener(DeriveRunKey(*key, fields.salt, run), run);
  for (uint64_t piece = 0; piece < num_pieces; ++piece) {
    const MutableBytes bytes =
        MutableBytes(header).subspan(piece * kSealedPieceBytes, SealedPieceLength(run.frame_bytes, piece));
    TERRACE_RETURN_IF_ERROR(opener.Open(piece, bytes, tags));
  }
  header.resize(page.header_bytes);
  return header;
}

}  // namespace terrace
