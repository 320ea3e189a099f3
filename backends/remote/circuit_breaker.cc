#include "backends/remote/circuit_breaker.h"

#include <algorithm>

namespace terrace::remote {

CircuitBreaker::CircuitBreaker(uint32_t failures, Duration pause, uint64_t seed)
    : max_failures_(failures),
      first_pause_(pause),
      pause_(pause),
      random_(static_cast<std::minstd_rand::result_type>(seed | 1)) {}

void CircuitBreaker::RecordSuccess() {
  std::lock_guard lock(mutex_);
  if (!is_open()) failures_ = 0;  // a late answer does not close it: the probe does
}

std::optional<Duration> CircuitBreaker::RecordFailure() {
  std::lock_guard lock(mutex_);
  if (is_open() || ++failures_ < max_failures_) return std::nullopt;
  return Open();
}

std::optional<Duration> CircuitBreaker::Trip() {
  std::lock_guard lock(mutex_);
  if (is_open()) return std::nullopt;
  return Open();
}

Duration CircuitBreaker::Open() {
  is_open_.store(true, std::memory_order_release);
  pause_ = first_pause_;
  return JitteredPause();
}

bool CircuitBreaker::BeginProbe() {
  std::lock_guard lock(mutex_);
  if (!is_open() || is_probing_) return false;
  is_probing_ = true;
  return true;
}

void CircuitBreaker::ProbeSucceeded() {
  std::lock_guard lock(mutex_);
  is_probing_ = false;
  failures_ = 0;
  is_open_.store(false, std::memory_order_release);
}

Duration CircuitBreaker::ProbeFailed() {
  std::lock_guard lock(mutex_);
  is_probing_ = false;
  pause_ = std::min(2 * pause_, kMaxBreakerPause);
  return JitteredPause();
}

Duration CircuitBreaker::JitteredPause() {
  const double share = std::uniform_real_distribution<double>(0.75, 1.25)(random_);
  return std::min(kMaxBreakerPause,
                  Duration(static_cast<Duration::rep>(static_cast<double>(pause_.count()) * share)));
}

}  // namespace terrace::remote
