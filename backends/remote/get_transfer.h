// GetTransfer: one object on its way from a server: what landed of it, what the server said of it, and its
// end.
//
// It succeeds once the server's answer is there and every byte that the answer promises has landed, in
// whatever order. Invariant: on_bytes is never running, nor called, once End has returned true.
//
// Threads: every call from every thread.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>

#include "lib/wire/landing_table.h"
#include "proto/terrace/v1/cache.pb.h"
#include "terrace/backend.h"

namespace terrace::remote {

class GetTransfer {
 public:
  GetTransfer(GetOp op, TimePoint deadline);

  BufferRef destination() const;  // empty after the end
  TimePoint deadline() const { return deadline_; }
  bool is_cancelled() const { return op_.cancel && op_.cancel->load(std::memory_order_acquire); }
  // Where its bytes go. `lent` is the reference that receivers hold. A whole frame may be as long as the
  // destination: how long it is, the answer says.
  Landing MakeLanding(BufferRef lent);
  // Somebody may write to the destination still, though its landing was dropped: a peer that sends slowly. It
  // is not to be used for another try.
  bool is_lent() const;
  uint64_t most_bytes() const;  // that may come
  void FillRequest(uint64_t transfer, v1::GetObject* object) const;

  // Each returns the end where this was the last thing missing, or where it is wrong.
  std::optional<Status> OnBytes(uint64_t offset, uint64_t n);
  std::optional<Status> OnAnswer(const v1::GetResult& answer);

  // True for the first caller, who tells the operation's owner. The destination is let go of.
  bool End(const Status& status);
  bool has_ended() const;
  // Neither a byte nor an answer has come: it may be asked for again.
  bool is_untouched() const;
  GetResult result() const;  // after the end

 private:
  std::optional<Status> Judge() const;  // under mutex_

  GetOp op_;
  const TimePoint deadline_;
  const uint64_t dst_bytes_;
  const bool is_whole_;

  mutable std::mutex mutex_;  // also held while on_bytes runs
  std::weak_ptr<BufferRef> lent_;
  uint64_t landed_bytes_ = 0;
  uint64_t landed_end_ = 0;
  std::optional<uint64_t> frame_bytes_;  // of the answer
  bool has_ended_ = false;
  GetResult result_;
};

}  // namespace terrace::remote
