// LinkMetrics: the metrics terrace_remote_*, of one server each (label `server`).
#pragma once

#include <string>

#include "terrace/metrics.h"

namespace terrace::remote {

struct LinkMetrics {
  LinkMetrics(MetricRegistry& registry, const std::string& server);

  // Which path the session uses: 1 under its label `path`, 0 under the others. Empty: no session.
  void SetPath(std::string_view path) const;

  Counter* calls;
  Counter* call_failures;
  Counter* retries;
  Counter* sessions;
  Counter* session_failures;
  Counter* fallbacks;
  Counter* violations;
  Counter* expired;
  Counter* cancelled;
  Counter* puts_refused;
  Counter* roots_refused;
  Counter* leases_dropped;
  Counter* breaker_openings;
  Gauge* breaker_open;

 private:
  MetricRegistry* registry_;
  std::string server_;
};

}  // namespace terrace::remote
