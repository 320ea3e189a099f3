// PoolFrame: a frame on its way into a manager's pool. Its pieces are verified as they become whole, by
// whoever brought them, one thread at a time: another that comes meanwhile leaves its bytes to that one.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "lib/codec/piece_codec.h"
#include "terrace/frame_store.h"

namespace terrace {

class ManagerCore;

class PoolFrame final : public ArrivingFrame {
 public:
  // `core` is a name only.
  PoolFrame(const ManagerCore* core, BufferRef buffer, uint64_t frame_bytes)
      : core_(core),
        frame_bytes_(frame_bytes),
        buffer_(std::move(buffer)),
        verifier_(buffer_.frame().first(frame_bytes)) {}

  MutableBytes bytes() override { return buffer_.mutable_frame().first(frame_bytes_); }
  void MarkPresent(uint64_t offset, uint64_t n) override;

  const ManagerCore* core() const { return core_; }
  uint64_t frame_bytes() const { return frame_bytes_; }
  const BufferRef& buffer() const { return buffer_; }
  // The header of a frame that is whole and right. kFailedPrecondition: bytes are missing, or it was finished
  // already; kDataLoss: what is wrong.
  Result<FrameHeader> Finish();

 private:
  static constexpr size_t kMaxGaps = 4096;  // more, and the frame is refused

  const ManagerCore* const core_;
  const uint64_t frame_bytes_;
  const BufferRef buffer_;

  std::mutex mutex_;
  std::condition_variable idle_;
  std::deque<std::pair<uint64_t, uint64_t>> arrived_;  // offset and length, for the verifying thread
  bool is_verifying_ = false;
  bool is_finished_ = false;
  bool has_too_many_gaps_ = false;
  PieceVerifier verifier_;  // of the thread that set is_verifying_
};

}  // namespace terrace
