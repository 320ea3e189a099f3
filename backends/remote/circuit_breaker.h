// CircuitBreaker: whether a server is asked at all. Closed: it is. Open: it failed `failures` times in a row,
// and nobody waits for it; from time to time one probe asks whether it is back (half open).
//
//   closed --failures in a row--> open --BeginProbe--> half open --success--> closed
//                                   ^-------- failure: the pause doubles --------'
//
// Only probes leave the open state, so that no operation pays for finding out. It holds no clock and no
// thread: whoever owns it sends the probes when the pauses that it is told are over.
//
// Threads: every call from every thread; is_open() is one atomic read.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>

#include "terrace/time.h"

namespace terrace::remote {

inline constexpr Duration kMaxBreakerPause = std::chrono::seconds(30);

class CircuitBreaker {
 public:
  CircuitBreaker(uint32_t failures, Duration pause, uint64_t seed);

  bool is_open() const { return is_open_.load(std::memory_order_acquire); }
  void RecordSuccess();
  // The pause before the first probe, where this failure opened it.
  std::optional<Duration> RecordFailure();
  // Opens it whatever came before: somebody made sure that the server does not answer.
  std::optional<Duration> Trip();
  // False: it is not open, or a probe is under way.
  bool BeginProbe();
  void ProbeSucceeded();
  Duration ProbeFailed();  // the pause before the next one

 private:
  Duration Open();
  Duration JitteredPause();  // 0.75 to 1.25 of it, so that clients do not come back in step

  const uint32_t max_failures_;
  const Duration first_pause_;
  std::atomic<bool> is_open_{false};
  std::mutex mutex_;
  uint32_t failures_ = 0;  // in a row
  bool is_probing_ = false;
  Duration pause_;
  std::minstd_rand random_;
};

}  // namespace terrace::remote
