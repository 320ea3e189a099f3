#include "backends/remote/link_metrics.h"

namespace terrace::remote {

LinkMetrics::LinkMetrics(MetricRegistry& registry, const std::string& server)
    : registry_(&registry), server_(server) {
  const MetricLabels labels = {{"server", server}};
  const auto counter = [&](std::string_view what, std::string_view help) {
    return registry.GetCounter("terrace_remote_" + std::string(what) + "_total", help, labels);
  };
  calls = counter("calls", "Calls sent to the server.");
  call_failures = counter("call_failures", "Calls that failed as a whole.");
  retries = counter("retries", "Calls sent again after a failure.");
  sessions = counter("sessions", "Sessions opened.");
  session_failures = counter("session_failures", "Sessions that could not be opened.");
  fallbacks = counter("path_fallbacks", "Sessions that use a slower data path than was offered.");
  violations = counter("violations", "Answers that break the contract, and were refused.");
  expired = counter("expired_operations", "Operations that their deadline ended.");
  cancelled = counter("cancelled_operations", "Operations that their caller ended.");
  puts_refused = counter("refused_puts", "Puts refused for want of bytes in flight.");
  roots_refused = counter("refused_roots", "Roots that the server refused.");
  leases_dropped = counter("dropped_releases", "Leases left to lapse instead of being given back.");
  breaker_openings = counter("breaker_openings", "Times that the server was given up for a while.");
  breaker_open = registry.GetGauge("terrace_remote_breaker_open", "1 while the server is given up.", labels);
}

void LinkMetrics::SetPath(std::string_view path) const {
  for (const std::string_view name : {"streams", "bulk", "shm"}) {
    registry_
        ->GetGauge("terrace_remote_data_path", "1 for the data path in use.",
                   {{"server", server_}, {"path", std::string(name)}})
        ->Set(name == path ? 1 : 0);
  }
}

}  // namespace terrace::remote
