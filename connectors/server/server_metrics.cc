#include "connectors/server/server_metrics.h"

namespace terrace::server {

ServerMetrics::ServerMetrics(std::shared_ptr<MetricRegistry> registry)
    : registry_(registry ? std::move(registry) : std::make_shared<MetricRegistry>()) {}

void ServerMetrics::CountCall(std::string_view method, StatusCode code) {
  registry_
      ->GetCounter("terrace_server_calls_total", "Calls that were answered",
                   {{"method", std::string(method)}, {"code", std::string(StatusCodeName(code))}})
      ->Add();
}

void ServerMetrics::AddBytes(ByteDirection direction, std::string_view path, std::string_view tenant,
                             uint64_t bytes) {
  if (bytes == 0) return;
  const bool in = direction == ByteDirection::kIn;
  registry_
      ->GetCounter(in ? "terrace_server_received_bytes_total" : "terrace_server_sent_bytes_total",
                   in ? "Bytes of frames that arrived" : "Bytes of frames that were sent",
                   {{"path", std::string(path)}, {"tenant", std::string(tenant)}})
      ->Add(bytes);
}

void ServerMetrics::CountRefusal(std::string_view reason) {
  registry_
      ->GetCounter("terrace_server_refusals_total", "Calls, objects and connections that were turned away",
                   {{"reason", std::string(reason)}})
      ->Add();
}

void ServerMetrics::SetSessions(size_t sessions) {
  registry_->GetGauge("terrace_server_sessions", "Sessions that are open")
      ->Set(static_cast<int64_t>(sessions));
}

void ServerMetrics::SetCallsInFlight(size_t calls) {
  registry_->GetGauge("terrace_server_calls_in_flight", "Calls that have no answer yet")
      ->Set(static_cast<int64_t>(calls));
}

}  // namespace terrace::server
