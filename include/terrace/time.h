// Time as Terrace counts it: a steady clock for deadlines and leases, the system clock for what is
// stored (expiry). Both come from a Clock that is injected, so that tests and simulations own it.
#pragma once

#include <chrono>

#include "terrace/export.h"

namespace terrace {

using TimePoint = std::chrono::steady_clock::time_point;
using WallTime = std::chrono::system_clock::time_point;
using Duration = std::chrono::nanoseconds;

// A deadline that never comes.
inline constexpr TimePoint kNoDeadline = TimePoint::max();

// Safe to call from every thread.
class TERRACE_API Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() = 0;
  virtual WallTime WallNow() = 0;
  // The process's real clock; lives for ever, holds nothing.
  static Clock* Real();
};

}  // namespace terrace
