#include "backends/nvme/device_health.h"

namespace terrace {

bool DeviceHealth::Admit(bool is_idle) {
  if (is_idle) OnProgress();
  const TimePoint now = clock_->Now();
  if (!is_degraded_ && now - last_progress_ > kStallLimit) Degrade(now);
  if (!is_degraded_) return true;
  // Probes that a dead device keeps would only take buffers away.
  if (now < next_probe_ || !moved_since_probe_) return false;
  next_probe_ = now + kProbePeriod;
  moved_since_probe_ = false;
  return true;
}

void DeviceHealth::OnProgress() {
  last_progress_ = clock_->Now();
  moved_since_probe_ = true;
}

void DeviceHealth::OnSuccess() {
  failures_ = 0;
  is_degraded_ = false;
}

void DeviceHealth::OnFailure() {
  if (is_degraded_ || ++failures_ < kFailuresToDegrade) return;
  Degrade(clock_->Now());
}

void DeviceHealth::Degrade(TimePoint now) {
  is_degraded_ = true;
  failures_ = 0;
  next_probe_ = now + kProbePeriod;
  // A stall: what the device has is the probe.
  moved_since_probe_ = now - last_progress_ <= kStallLimit;
}

}  // namespace terrace
