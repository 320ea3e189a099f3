// ServerMetrics: what the server counts, under terrace_server_*.
//
// Threads: every call from every thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "terrace/metrics.h"
#include "terrace/status.h"

namespace terrace::server {

enum class ByteDirection : uint8_t { kIn, kOut };

class ServerMetrics {
 public:
  // Null: a registry of its own.
  explicit ServerMetrics(std::shared_ptr<MetricRegistry> registry);
  void CountCall(std::string_view method, StatusCode code);
  // Bytes of frames, by data path ("streams", "bulk", "shm").
  void AddBytes(ByteDirection direction, std::string_view path, std::string_view tenant, uint64_t bytes);
  // Why a call, an object or a connection was turned away.
  void CountRefusal(std::string_view reason);
  void SetSessions(size_t sessions);
  void SetCallsInFlight(size_t calls);

 private:
  const std::shared_ptr<MetricRegistry> registry_;
};

}  // namespace terrace::server
