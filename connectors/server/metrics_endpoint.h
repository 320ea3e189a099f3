// MetricsEndpoint: GET /metrics and GET /healthz on a port of 127.0.0.1, for Prometheus and probes. Bounded
// in every direction, as whoever is on this host may connect: 16 connections, 4 KiB of request, one request
// per connection, and a time after which it is closed whatever it does. Nothing is changed through it.
//
// No HTTP library is behind it: of those at hand none limits the number of headers, or the time of a request.
//
// Threads: one of its own, from which the callbacks come.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "terrace/status.h"

namespace terrace::server {

struct MetricsEndpointOptions {
  uint16_t port = 0;                       // 0: any free one
  std::function<std::string()> text;       // Prometheus text exposition
  std::function<bool()> is_serving;        // false: /healthz answers 503
  std::chrono::milliseconds limit{10000};  // of a connection, from accept to close
};

class MetricsEndpoint {
 public:
  // kUnavailable: the port cannot be had.
  static Result<std::unique_ptr<MetricsEndpoint>> Start(MetricsEndpointOptions options);
  virtual ~MetricsEndpoint() = default;  // at once; answers on their way are cut
  virtual uint16_t port() const = 0;
};

}  // namespace terrace::server
