// WaitUntil: a condition variable's wait that may have no deadline: kNoDeadline, the largest time there is,
// is not for the arithmetic of a timed wait.
#pragma once

#include <condition_variable>
#include <mutex>

#include "terrace/time.h"

namespace terrace {

// Whether `condition` holds, which is asked with the lock; false: the deadline passed before.
template <typename Condition>
bool WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, TimePoint deadline,
               const Condition& condition) {
  if (deadline != kNoDeadline) return changed.wait_until(lock, deadline, condition);
  changed.wait(lock, condition);
  return true;
}

}  // namespace terrace
