// OperationRegistry: what is under way, so that Close can cancel it and wait until nothing calls back any
// more.
//
// Threads: every call from every thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "terrace/time.h"

namespace terrace::remote {

// How often the cancel flags of operations are looked at.
inline constexpr Duration kCancelPoll = std::chrono::milliseconds(2);

class Cancellable {
 public:
  virtual ~Cancellable() = default;
  virtual void Cancel() = 0;  // asks for an early end; returns at once, and may be too late
};

class OperationRegistry : public std::enable_shared_from_this<OperationRegistry> {
 public:
  // The operation is under way until the ticket is dropped.
  using Ticket = std::shared_ptr<void>;
  Ticket Enter(std::weak_ptr<Cancellable> operation);
  void CancelAll();
  bool AwaitNone(TimePoint deadline) const;
  size_t size() const;

 private:
  void Leave(uint64_t number);

  mutable std::mutex mutex_;
  mutable std::condition_variable left_;
  std::map<uint64_t, std::weak_ptr<Cancellable>> operations_;
  uint64_t next_number_ = 1;
};

}  // namespace terrace::remote
