// TouchLog: which chunks lookups used, until somebody who holds the manager's lock tells the eviction
// policies. So a lookup needs neither that lock nor a policy's time.
//
// Threads: every call from every thread; one mutex, under which nothing is called.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "lib/storage/lease_state.h"

namespace terrace {

class TouchLog {
 public:
  // One lookup's segments, in prefix order. False: full. The caller may drain it, or let this use go
  // unnoticed.
  bool Add(std::vector<LeaseSegmentRef> segments) {
    std::lock_guard lock(mutex_);
    if (used_.size() >= kMaxLookups) return false;
    used_.push_back(std::move(segments));
    return true;
  }
  // In the order in which they were added.
  std::vector<std::vector<LeaseSegmentRef>> Take() {
    std::lock_guard lock(mutex_);
    return std::exchange(used_, {});
  }

 private:
  static constexpr size_t kMaxLookups = 256;

  std::mutex mutex_;
  std::vector<std::vector<LeaseSegmentRef>> used_;
};

}  // namespace terrace
