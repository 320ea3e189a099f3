// TenantUse: what a tenant has in flight on this server, over all of its sessions and calls, against its
// limits. The limits come with each call: they may be read anew meanwhile.
//
// Threads: every call from every thread.
#pragma once

#include <cstdint>
#include <mutex>

#include "connectors/server/tenant_table.h"
#include "terrace/status.h"
#include "terrace/time.h"

namespace terrace::server {

// So much per second, a second's worth at once. What is larger than that passes when nothing is owed, and is
// owed afterwards.
class RateGate {
 public:
  // `per_second` 0: no limit.
  bool Pass(uint64_t per_second, uint64_t cost, TimePoint now);

 private:
  double level_ = 0;
  TimePoint last_{};
};

class TenantUse {
 public:
  // kResourceExhausted names the limit; then there is nothing to end or to give back.
  Status BeginCall(const TenantLimits& limits, TimePoint now);
  void EndCall();
  Status TakeBytes(const TenantLimits& limits, uint64_t bytes, TimePoint now);
  void GiveBytes(uint64_t bytes);
  uint64_t inflight_bytes() const;
  uint32_t calls() const;

 private:
  mutable std::mutex mutex_;
  RateGate call_rate_;
  RateGate byte_rate_;
  uint32_t calls_ = 0;
  uint64_t inflight_bytes_ = 0;
};

}  // namespace terrace::server
