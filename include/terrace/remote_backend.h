// The remote tier's backend: cache servers (`terrace serve`) behind gRPC, the bytes over the fastest data
// path that client and server share. Objects outlive this process. What the wire says:
// proto/terrace/v1/cache.proto; how it behaves: backends/remote/README.md.
//
// An unreachable or hostile server costs the engine nothing but a miss: every operation has a deadline, a
// circuit breaker per server answers kUnavailable at once while a server does not answer, and probes find it
// again. What arrives is bounded before anything is allocated, and is verified by the tier above.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "terrace/backend.h"

namespace terrace {

// How bytes move. kAuto: shared memory with a server on this host, else bulk sockets, else gRPC streams; the
// log and the metric terrace_remote_data_path say which it became, and why not a faster one. The others take
// that path alone; what it cannot do fails with kUnavailable.
enum class RemotePath : uint8_t { kAuto, kStreams, kBulk, kSharedMemory };

// TLS of gRPC and bulk sockets: PEM texts, not files. Empty `roots` with use_tls: the system's.
struct RemoteTls {
  bool use_tls = false;
  std::string roots;
  std::string certificate;  // the client's own, for mutual TLS; with private_key
  std::string private_key;
  std::string server_name;  // expected in the certificate instead of the address's host
};

struct RemoteOptions {
  // "host:port", "[v6]:port", or "unix:/path". Each chunk lives on one of them (on `replicas`): that which
  // rendezvous hashing of the key of the first chunk of its run (RunBegin of object_meta.h) names.
  std::vector<std::string> addresses;
  // Read instead of, or on top of, `addresses`: one address a line, # comments. Watched; a change takes
  // effect within seconds and moves nothing: former owners are asked as well for `membership_grace`.
  std::string address_file;
  // A host whose A and AAAA records are the servers: "name:port". Asked again every 30 s. The same rules.
  std::string dns_name;
  uint32_t replicas = 1;  // 1..3: puts go to as many servers, gets are answered by any
  Duration membership_grace = std::chrono::minutes(10);

  std::string token;  // sent as a bearer token; only over TLS, Unix sockets and loopback, else refused
  bool allow_plaintext_token = false;
  RemoteTls tls;

  RemotePath path = RemotePath::kAuto;
  uint32_t bulk_connections = 2;                  // per server, 1..8
  uint64_t inflight_bytes = uint64_t{256} << 20;  // of puts on their way; above it kResourceExhausted
  Duration connect_deadline = std::chrono::seconds(2);
  Duration operation_deadline = std::chrono::seconds(10);  // where an operation names none that is earlier
  // Idempotent calls that failed before the server took them are tried again so often, with jitter.
  uint32_t retries = 2;  // 0..5
  // The breaker: opens after so many failures in a row, probes after `breaker_pause` (doubled up to 30 s).
  uint32_t breaker_failures = 3;
  Duration breaker_pause = std::chrono::milliseconds(500);

  Status Validate() const;
};

// Starts no connection: the first operation (or Attach) does, in the background. kInvalidArgument names the
// option.
TERRACE_API Result<std::unique_ptr<Backend>> MakeRemoteBackend(const RemoteOptions& options);

}  // namespace terrace
