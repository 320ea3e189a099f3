// DeviceHealth: whether a device is worth asking. After kFailuresToDegrade failures in a row (errors, and
// deadlines that passed while the device had the request), or where it has had requests for kStallLimit and
// completed none, it is degraded: operations are refused at once but for a probe every kProbePeriod, and none
// while the device has not moved since the last probe. The first success ends it.
//
//               kFailuresToDegrade failures, or a stall
//   [ healthy ] ---------------------------------------> [ degraded ]  one probe a kProbePeriod
//               <---------------------------------------
//                              a success
//
// A stall is seen by the next operation that asks; nothing here has a timer. The owner's thread only.
#pragma once

#include <chrono>

#include "terrace/time.h"

namespace terrace {

class DeviceHealth {
 public:
  static constexpr int kFailuresToDegrade = 8;
  static constexpr Duration kProbePeriod = std::chrono::seconds(1);
  static constexpr Duration kStallLimit = std::chrono::seconds(10);

  explicit DeviceHealth(Clock* clock) : clock_(clock), last_progress_(clock->Now()) {}

  // Whether an operation may go to the device now; the caller sends it then. `is_idle`: the device has no
  // request.
  bool Admit(bool is_idle);
  // The device completed something, whatever came of it, or has nothing to do.
  void OnProgress();
  // An operation that was in time.
  void OnSuccess();
  void OnFailure();

  bool is_degraded() const { return is_degraded_; }

 private:
  void Degrade(TimePoint now);

  Clock* clock_;
  TimePoint last_progress_;
  bool is_degraded_ = false;
  int failures_ = 0;  // in a row
  TimePoint next_probe_;
  bool moved_since_probe_ = true;
};

}  // namespace terrace
