// DeadlineQueue: what is to be done at points of time, by whoever calls RunDue: the server's ticker.
//
// Threads: every call from every thread. Callbacks run without a lock and do not block. As many entries as
// callers wait, which their own limits bound.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "terrace/time.h"

namespace terrace::server {

class DeadlineQueue {
 public:
  using Handle = std::pair<TimePoint, uint64_t>;

  Handle Add(TimePoint at, std::function<void()> callback) {
    const std::lock_guard lock(mutex_);
    const Handle handle{at, ++last_number_};
    waiting_.emplace(handle, std::move(callback));
    return handle;
  }
  // A callback that has begun may still run after the return.
  void Remove(const Handle& handle) {
    const std::lock_guard lock(mutex_);
    waiting_.erase(handle);
  }
  void RunDue(TimePoint now) {
    std::vector<std::function<void()>> due;
    {
      const std::lock_guard lock(mutex_);
      while (!waiting_.empty() && waiting_.begin()->first.first <= now) {
        due.push_back(std::move(waiting_.begin()->second));
        waiting_.erase(waiting_.begin());
      }
    }
    for (const auto& callback : due) callback();
  }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return waiting_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::map<Handle, std::function<void()>> waiting_;
  uint64_t last_number_ = 0;
};

}  // namespace terrace::server
