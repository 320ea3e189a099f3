// What all devices share: waiting by asking, and names.
#include "terrace/device.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace terrace {
namespace {

// A layer's copy takes some ten microseconds: shorter ones are seen at once, longer ones cost no core.
constexpr std::chrono::microseconds kSpin{20};
constexpr std::chrono::microseconds kFirstPause{5};
constexpr std::chrono::microseconds kLongestPause{50};

}  // namespace

Event::~Event() = default;
Stream::~Stream() = default;
Device::~Device() = default;

Status Event::Wait(TimePoint deadline) const {
  const TimePoint spin_end = std::chrono::steady_clock::now() + kSpin;
  std::chrono::microseconds pause = kFirstPause;
  while (true) {
    // Asked before the deadline is looked at: an event that is done is never reported as late.
    const Result<bool> is_done = Query();
    if (!is_done.ok()) return is_done.status();
    if (*is_done) return OkStatus();
    const TimePoint now = std::chrono::steady_clock::now();
    if (now >= deadline) return DeadlineExceededError("the event is not done yet");
    if (now < spin_end) continue;  // no yield: on a busy machine that gives a whole time slice away
    std::this_thread::sleep_until(std::min<TimePoint>(deadline, now + pause));
    pause = std::min(pause * 2, kLongestPause);
  }
}

const char* CopyStrategyName(CopyStrategy strategy) {
  switch (strategy) {
    case CopyStrategy::kPlain:
      return "plain";
    case CopyStrategy::kBatched:
      return "batched";
    case CopyStrategy::kStaged:
      return "staged";
    case CopyStrategy::kMapped:
      return "mapped";
  }
  return "unknown";
}

}  // namespace terrace
