// SocketProbe: what bare stream sockets move between two processes. Each connection has a blocking thread at
// either end; values are received straight into a ring of buffers and sent out of one.
//
// Request of the client, native byte order, one per run and connection:
//
//   u64 direction | u64 first | u64 step | u64 count | u64 value_bytes     values first, first + step, ...
//
// Then the values, without anything between them; after those of a put the server answers with one byte.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/value_ring.h"
#include "terrace/status.h"

namespace terrace::bench {

// Blocking whole reads and writes; false: the other end is gone.
bool ReadAll(int fd, void* bytes, size_t n);
bool WriteAll(int fd, const void* bytes, size_t n);
// Connected stream sockets of a process on this host; without Nagle's delay.
Result<int> ConnectTcp(uint16_t port);
Result<int> ConnectUnix(const std::string& path);
Result<int> ListenTcp(uint16_t& port);  // loopback; the port is chosen here
Result<int> ListenUnix(const std::string& path);

// In the server's process: accepts on each for ever, a thread per connection.
void ServeSocketProbe(const std::vector<int>& listeners, std::shared_ptr<const ValueRing> ring);

// In the client's. One caller's thread.
class SocketProbe {
 public:
  static constexpr uint32_t kMaxConnections = 4;

  // `ring` outlives it. `connect` makes one of kMaxConnections sockets.
  static Result<std::unique_ptr<SocketProbe>> Connect(const std::function<Result<int>()>& connect,
                                                      const ValueRing& ring);
  ~SocketProbe();
  // Moves values over the first `connections` of its sockets. The seconds that it took.
  Result<double> Run(Direction direction, uint32_t connections, const ValueBatch& values);

 private:
  explicit SocketProbe(const ValueRing& ring) : ring_(ring) {}

  const ValueRing& ring_;
  std::vector<int> sockets_;
};

}  // namespace terrace::bench
