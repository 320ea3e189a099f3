#include "backends/remote/get_transfer.h"

#include <algorithm>
#include <utility>

#include "backends/remote/wire_values.h"

namespace terrace::remote {
namespace {

uint64_t WholePages(const BufferRef& buffer) {
  const uint64_t bytes = buffer.size_bytes() - kTierPageBytes;
  return bytes - bytes % kFrameAlignment;
}

}  // namespace

GetTransfer::GetTransfer(GetOp op, TimePoint deadline)
    : op_(std::move(op)),
      deadline_(deadline),
      dst_bytes_(WholePages(op_.dst)),
      is_whole_(op_.ranges.empty()) {}

uint64_t GetTransfer::most_bytes() const {
  if (is_whole_) return dst_bytes_;
  uint64_t bytes = 0;
  for (const FrameRange& range : op_.ranges) bytes += range.length;
  return bytes;
}

BufferRef GetTransfer::destination() const {
  std::lock_guard lock(mutex_);
  return op_.dst;
}

Landing GetTransfer::MakeLanding(BufferRef lent) {
  Landing landing;
  landing.memory = lent.mutable_frame();
  landing.ranges = op_.ranges;
  if (is_whole_) landing.ranges = {{.frame_offset = 0, .length = dst_bytes_, .dst_offset = 0}};
  auto keep = std::make_shared<BufferRef>(std::move(lent));
  landing.is_watched = op_.on_bytes != nullptr;
  std::lock_guard lock(mutex_);
  lent_ = keep;
  landing.keep = std::move(keep);
  return landing;
}

bool GetTransfer::is_lent() const {
  std::lock_guard lock(mutex_);
  return !lent_.expired();
}

void GetTransfer::FillRequest(uint64_t transfer, v1::GetObject* object) const {
  SetName(op_.id, object->mutable_name());
  for (const FrameRange& range : op_.ranges) {
    v1::ByteRange* asked = object->add_ranges();
    asked->set_offset(range.frame_offset);
    asked->set_length(range.length);
  }
  object->set_transfer(transfer);
  object->set_max_frame_bytes(is_whole_ ? dst_bytes_ : UINT64_MAX);  // ranges were checked against dst
}

std::optional<Status> GetTransfer::OnBytes(uint64_t offset, uint64_t n) {
  std::lock_guard lock(mutex_);
  if (has_ended_) return std::nullopt;
  landed_bytes_ += n;
  landed_end_ = std::max(landed_end_, offset + n);
  if (op_.on_bytes) op_.on_bytes(offset, n);
  return Judge();
}

std::optional<Status> GetTransfer::OnAnswer(const v1::GetResult& answer) {
  const Status status = FromResult(answer.result());
  if (!status.ok()) return status;
  const uint64_t bytes = answer.frame_bytes();
  if (bytes == 0 || bytes % kFrameAlignment != 0)
    return DataLossError("a frame of " + std::to_string(bytes) + " bytes, no multiple of 4096");
  if (is_whole_ && bytes > dst_bytes_)
    return DataLossError("a frame of " + std::to_string(bytes) + " bytes for a destination of " +
                         std::to_string(dst_bytes_));
  for (const FrameRange& range : op_.ranges) {
    if (range.frame_offset + range.length > bytes)
      return DataLossError("ranges beyond the frame were answered with bytes");
  }
  std::lock_guard lock(mutex_);
  if (has_ended_) return std::nullopt;
  frame_bytes_ = bytes;
  return Judge();
}

std::optional<Status> GetTransfer::Judge() const {
  if (!frame_bytes_) return std::nullopt;
  const uint64_t awaited = is_whole_ ? *frame_bytes_ : most_bytes();
  // Landings take each byte once, so that counting them is enough.
  if (is_whole_ && landed_end_ > awaited) return DataLossError("bytes beyond the frame's end");
  if (landed_bytes_ < awaited) return std::nullopt;
  return OkStatus();
}

bool GetTransfer::End(const Status& status) {
  BufferRef dst;
  std::lock_guard lock(mutex_);
  if (has_ended_) return false;
  has_ended_ = true;
  result_.status = status;
  result_.frame_bytes = status.ok() ? *frame_bytes_ : 0;
  dst = std::move(op_.dst);
  return true;
}

bool GetTransfer::has_ended() const {
  std::lock_guard lock(mutex_);
  return has_ended_;
}

bool GetTransfer::is_untouched() const {
  std::lock_guard lock(mutex_);
  return !has_ended_ && landed_bytes_ == 0 && !frame_bytes_;
}

GetResult GetTransfer::result() const {
  std::lock_guard lock(mutex_);
  return result_;
}

}  // namespace terrace::remote
