// CacheServer: storage managers behind gRPC, bulk sockets and shared memory. `terrace serve` is this with a
// configuration; tests and examples make one in their own process.
//
//   gRPC call -> TenantTable (who) -> SessionTable (what it holds) -> Namespace (FrameStore) -> answer
//
// Threads: those of gRPC, of the bulk reactor, one acceptor per listener, and one ticker.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "connectors/server/namespace_map.h"
#include "connectors/server/session_table.h"
#include "connectors/server/tenant_table.h"
#include "terrace/log_sink.h"
#include "terrace/metrics.h"
#include "terrace/status.h"

namespace terrace::server {

struct ServerTls {
  std::string certificate_chain;  // PEM texts
  std::string private_key;
  std::string client_roots;  // set: clients must show a certificate of these (mutual TLS)
  bool is_set() const { return !certificate_chain.empty(); }
};

struct CacheServerOptions {
  std::vector<std::string> listen;  // "host:port" or "[v6]:port"; port 0: any, see address()
  std::string unix_path;            // empty: none
  ServerTls tls;                    // of the TCP ports, gRPC and bulk
  bool bulk = true;                 // offer bulk sockets
  uint32_t bulk_connections = 4;    // per session at most
  bool shm = true;                  // offer shared memory to clients of this host (needs unix_path)
  uint64_t staging_bytes = uint64_t{64} << 20;  // per client, of shared memory
  std::vector<uint32_t> shm_users;              // user ids beside the server's own that may map memory
  uint32_t max_connections = 2048;
  uint64_t max_message_bytes = uint64_t{8} << 20;  // of a gRPC message, data parts included
  SessionTable::Options sessions;
  BulkReactorOptions reactor;
  std::shared_ptr<LogSink> log;
  std::shared_ptr<MetricRegistry> metrics;
};

class CacheServer {
 public:
  // Listens when it returns. `tenants` and `namespaces` are shared with whoever changes them at run time.
  // kInvalidArgument names the option; kUnavailable: an address that cannot be bound.
  static Result<std::unique_ptr<CacheServer>> Start(const CacheServerOptions& options,
                                                    std::shared_ptr<TenantTable> tenants,
                                                    std::shared_ptr<NamespaceMap> namespaces);
  virtual ~CacheServer() = default;  // stops at once

  // Addresses as clients name them, in the order of options.listen, then "unix:PATH".
  virtual std::vector<std::string> addresses() const = 0;
  // No new sessions; lookups and gets miss, puts are refused; calls in flight end, at the latest at the
  // deadline. The health service says NOT_SERVING.
  virtual void Drain(TimePoint deadline) = 0;
  virtual size_t num_sessions() const = 0;
};

}  // namespace terrace::server
