// BulkListener: the sockets that bulk connections come in on (lib/wire/bulk_message.h): a TCP port of its
// own, with TLS where the gRPC port has it, and a Unix socket, which is always plain.
//
//   accept -> wait for the hello -> handshake on one of a few threads -> token redeemed -> the reactor's
//
// Who connects and says nothing costs a descriptor for seconds and no thread; above the limits the oldest of
// these goes first.
//
// Threads: one that accepts, a few for handshakes; every call from every thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "connectors/server/cache_server.h"
#include "connectors/server/server_metrics.h"
#include "connectors/server/session_table.h"
#include "lib/wire/bulk_connection.h"
#include "terrace/log_sink.h"

namespace terrace::server {

struct BulkListenerOptions {
  std::string tcp_host;   // empty: no TCP port
  std::string unix_path;  // empty: no Unix socket
  ServerTls tls;          // of the TCP port
  size_t max_connections = 2048;
  size_t max_pending = 256;
  size_t handshake_threads = 4;
  Duration handshake_limit = std::chrono::seconds(5);
};

// What the listener works with; all outlive it.
struct BulkListenerParts {
  SessionTable* sessions = nullptr;
  BulkReactor* reactor = nullptr;
  ServerMetrics* metrics = nullptr;
  LogSink* log = nullptr;
};

class BulkListener {
 public:
  // kInvalidArgument: certificate or key; kUnavailable: it cannot be bound.
  static Result<std::unique_ptr<BulkListener>> Start(const BulkListenerOptions& options,
                                                     const BulkListenerParts& parts);
  // Stops accepting, ends handshakes; connections stay with the reactor.
  virtual ~BulkListener() = default;
  virtual uint16_t tcp_port() const = 0;
  // New connections are told that the server drains.
  virtual void Drain() = 0;
  virtual size_t num_connections() const = 0;  // with the reactor
};

}  // namespace terrace::server
