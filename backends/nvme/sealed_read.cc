#include "backends/nvme/sealed_read.h"

#include <algorithm>
#include <cstring>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"

namespace terrace {

SealedRead::SealedRead(const RunIdentity& run, const KeyRing* keys, std::span<const FrameRange> ranges,
                       MutableBytes dst_frame, StagingPool& staging)
    : run_(run), keys_(keys), dst_(dst_frame) {
  if (ranges.empty()) {
    PlanRange({.length = run_.frame_bytes});
  } else {
    for (const FrameRange& range : ranges) PlanRange(range);
  }
  open_parts_ = parts_.size();
  const auto staged = std::count_if(parts_.begin(), parts_.end(), [](const Part& p) { return p.is_staged; });
  staging_ = staging.Take(head_bytes() + static_cast<uint64_t>(staged) * kSealedPieceBytes);
  std::byte* next = staging_.get() + head_bytes();
  for (Part& part : parts_) {
    if (!part.is_staged) continue;
    part.memory = next;
    next += kSealedPieceBytes;
  }
  std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) { return a.memory < b.memory; });
}

void SealedRead::PlanRange(const FrameRange& range) {
  const uint64_t end = range.frame_offset + range.length;
  for (uint64_t at = range.frame_offset; at < end;) {
    Part part;
    part.piece = at / kSealedPieceBytes;
    part.length = SealedPieceLength(run_.frame_bytes, part.piece);
    part.skip = at - part.piece * kSealedPieceBytes;
    part.wanted = std::min(part.length - part.skip, end - at);
    part.dst_offset = range.dst_offset + (at - range.frame_offset);
    part.is_staged = part.wanted != part.length;
    if (!part.is_staged) part.memory = dst_.data() + part.dst_offset;
    at += part.wanted;
    parts_.push_back(part);
  }
}

std::vector<SealedRead::Landing> SealedRead::landings() const {
  std::vector<Landing> landings = {{0, head_bytes(), staging_.get()}};
  for (const Part& part : parts_) {
    const uint64_t run_offset = head_bytes() + part.piece * kSealedPieceBytes;
    landings.push_back({run_offset, part.length, part.memory});
  }
  // In the order of the disk, neighbours as one.
  std::sort(landings.begin(), landings.end(),
            [](const Landing& a, const Landing& b) { return a.run_offset < b.run_offset; });
  size_t last = 0;
  for (size_t i = 1; i < landings.size(); ++i) {
    Landing& before = landings[last];
    const bool is_next = landings[i].run_offset == before.run_offset + before.length &&
                         landings[i].memory == before.memory + before.length;
    if (is_next) {
      before.length += landings[i].length;
    } else {
      landings[++last] = landings[i];
    }
  }
  landings.resize(last + 1);
  return landings;
}

void SealedRead::OnBytes(const std::byte* memory, uint64_t n, const OnPlain& on_plain) {
  if (memory >= staging_.get() && memory < staging_.get() + head_bytes()) {
    const uint64_t in_head = std::min<uint64_t>(n, staging_.get() + head_bytes() - memory);
    head_landed_bytes_ += in_head;
    memory += in_head;
    n -= in_head;
    if (head_landed_bytes_ == head_bytes()) {
      status_ = BeginOpening();
      for (const Part& part : parts_) {
        if (part.landed_bytes == part.length) OpenPart(part, on_plain);
      }
    }
  }
  auto part = std::partition_point(parts_.begin(), parts_.end(),
                                   [&](const Part& p) { return p.memory + p.length <= memory; });
  while (n > 0) {
    TERRACE_CHECK(part != parts_.end() && memory >= part->memory) << "bytes that nobody asked for";
    const uint64_t landed = std::min<uint64_t>(n, part->memory + part->length - memory);
    part->landed_bytes += landed;
    TERRACE_CHECK(part->landed_bytes <= part->length);
    if (part->landed_bytes == part->length) OpenPart(*part, on_plain);
    memory += landed;
    n -= landed;
    ++part;
  }
}

Status SealedRead::BeginOpening() {
  const Result<PeekedTierPage> page = PeekTierPage(tier_page());
  if (!page.ok()) return page.status();
  const TierPage& fields = page->fields;
  if (!fields.sealed) return DataLossError("tier page: of a frame that is not sealed");
  const CipherKey* key = keys_->Find(fields.key_id);
  if (key == nullptr) return DataLossError("tier page: key id " + std::to_string(fields.key_id));
  opener_.emplace(DeriveRunKey(*key, fields.salt, run_), run_);
  return OkStatus();
}

void SealedRead::OpenPart(const Part& part, const OnPlain& on_plain) {
  if (!opener_ || !status_.ok()) return;
  status_ = opener_->Open(part.piece, {part.memory, part.length}, head().subspan(kTierPageBytes));
  if (!status_.ok()) return;
  if (part.is_staged) std::memcpy(dst_.data() + part.dst_offset, part.memory + part.skip, part.wanted);
  --open_parts_;
  if (on_plain) on_plain(part.dst_offset, part.wanted);
}

Status SealedRead::Finish() const {
  TERRACE_RETURN_IF_ERROR(status_);
  return open_parts_ == 0 ? OkStatus() : InternalError("sealed frame: read in part");
}

}  // namespace terrace
