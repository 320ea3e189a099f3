// ServiceContext: what the calls of one server share. Made by the server, outlives its gRPC server.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "connectors/server/cache_server.h"
#include "connectors/server/call_guard.h"
#include "connectors/server/pin_table.h"
#include "connectors/server/server_metrics.h"
#include "connectors/server/watch_hub.h"
#include "connectors/server/work_queue.h"

namespace terrace::server {

inline constexpr uint32_t kMinorVersion = 0;  // of the contract terrace.v1
inline constexpr Duration kMaxLease = std::chrono::seconds(30);

// Where the bulk listener waits.
struct BulkAddress {
  uint32_t tcp_port = 0;
  std::string unix_path;
  bool tls = false;
};

struct ServiceContext {
  ServiceContext(const CacheServerOptions& server_options, std::shared_ptr<TenantTable> tenant_table,
                 std::shared_ptr<NamespaceMap> namespace_map)
      : options(server_options),
        log(options.log ? options.log : MakeStderrLogSink()),
        namespaces(std::move(namespace_map)),
        metrics(options.metrics),
        sessions(options.sessions),
        guard(std::move(tenant_table), &sessions) {}

  const CacheServerOptions options;
  const std::shared_ptr<LogSink> log;
  const std::shared_ptr<NamespaceMap> namespaces;
  ServerMetrics metrics;
  SessionTable sessions;
  CallGuard guard;
  PinTable pins;
  WatchHub watches;
  std::optional<BulkAddress> bulk;
  // The path of the socket that passes memory, for a client with this host id; empty: not offered.
  std::function<std::string(const std::string& host_id)> shm_path_for;
  std::array<std::byte, 16> server_id{};
  const TimePoint started = Clock::Real()->Now();
  std::atomic<bool> draining{false};
  std::atomic<size_t> bulk_sends{0};  // on their way
  // Stopped first, so that what waits there finds everything above.
  WorkQueue publishing{"tc-publish", 2, 4096};
  WorkQueue slow{"tc-slow", 4, 1024};
};

}  // namespace terrace::server
