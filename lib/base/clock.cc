#include "terrace/time.h"

namespace terrace {
namespace {

class RealClock final : public Clock {
 public:
  TimePoint Now() override { return std::chrono::steady_clock::now(); }
  WallTime WallNow() override { return std::chrono::system_clock::now(); }
};

}  // namespace

Clock* Clock::Real() {
  // Never destroyed: threads of an exiting process may still ask for the time.
  static Clock* const clock = new RealClock();
  return clock;
}

}  // namespace terrace
