#include "connectors/server/tenant_use.h"

#include <algorithm>
#include <string>

namespace terrace::server {

bool RateGate::Pass(uint64_t per_second, uint64_t cost, TimePoint now) {
  if (per_second == 0) return true;
  const double full = static_cast<double>(per_second);
  if (last_ == TimePoint{}) {
    level_ = full;
  } else {
    level_ = std::min(full, level_ + std::chrono::duration<double>(now - last_).count() * full);
  }
  last_ = now;
  if (level_ < std::min(full, static_cast<double>(cost))) return false;
  level_ -= static_cast<double>(cost);
  return true;
}

Status TenantUse::BeginCall(const TenantLimits& limits, TimePoint now) {
  const std::lock_guard lock(mutex_);
  if (calls_ >= limits.max_streams) {
    return ResourceExhaustedError("max_streams: " + std::to_string(limits.max_streams) +
                                  " calls of the tenant are in flight");
  }
  if (!call_rate_.Pass(limits.calls_per_second, 1, now)) {
    return ResourceExhaustedError("calls_per_second: more than " + std::to_string(limits.calls_per_second));
  }
  ++calls_;
  return OkStatus();
}

void TenantUse::EndCall() {
  const std::lock_guard lock(mutex_);
  --calls_;
}

Status TenantUse::TakeBytes(const TenantLimits& limits, uint64_t bytes, TimePoint now) {
  const std::lock_guard lock(mutex_);
  if (bytes > limits.max_inflight_bytes || inflight_bytes_ > limits.max_inflight_bytes - bytes) {
    return ResourceExhaustedError("max_inflight_bytes: more than " +
                                  std::to_string(limits.max_inflight_bytes));
  }
  if (!byte_rate_.Pass(limits.bytes_per_second, bytes, now)) {
    return ResourceExhaustedError("bytes_per_second: more than " + std::to_string(limits.bytes_per_second));
  }
  inflight_bytes_ += bytes;
  return OkStatus();
}

void TenantUse::GiveBytes(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  inflight_bytes_ -= std::min(bytes, inflight_bytes_);
}

uint64_t TenantUse::inflight_bytes() const {
  const std::lock_guard lock(mutex_);
  return inflight_bytes_;
}

uint32_t TenantUse::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

}  // namespace terrace::server
