// RedisProbe: SET and GET of values on a Redis server of its own, without persistence. The client writes and
// reads the protocol by itself, straight out of and into a ring of buffers, two commands ahead: faster than a
// client library that copies.
//
// One caller's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/child_process.h"
#include "benchmarks/value_ring.h"
#include "terrace/status.h"

namespace terrace::bench {

class RedisServer {
 public:
  // kNotFound where no redis-server is installed. `directory` is for its socket and its log.
  static Result<std::unique_ptr<RedisServer>> Start(const std::string& directory);
  const std::string& unix_path() const { return unix_path_; }
  uint16_t tcp_port() const { return tcp_port_; }

 private:
  RedisServer() = default;
  std::string unix_path_;
  uint16_t tcp_port_ = 0;
  std::unique_ptr<ChildProcess> process_;
};

class RedisProbe {
 public:
  static constexpr uint32_t kMaxConnections = 2;
  // Over the Unix socket, or over loopback. `ring` outlives the probe.
  static Result<std::unique_ptr<RedisProbe>> Connect(const RedisServer& server, bool over_unix,
                                                     const ValueRing& ring);
  ~RedisProbe();
  // A get of as many values needs a put of them before. The seconds that it took.
  Result<double> Run(Direction direction, uint32_t connections, const ValueBatch& values);
  // Drops all values.
  Status Clear();

 private:
  explicit RedisProbe(const ValueRing& ring) : ring_(ring) {}
  bool RunConnection(uint32_t index, uint32_t connections, Direction direction, const ValueBatch& values);

  const ValueRing& ring_;
  std::vector<int> sockets_;
};

}  // namespace terrace::bench
