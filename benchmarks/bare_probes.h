// BareProbes: everything that the remote tier is measured beside, for one size of values: bare sockets, bare
// gRPC, Redis, a copy in memory. The far ends run in processes of their own.
//
// One caller's thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/child_process.h"
#include "benchmarks/grpc_probe.h"
#include "benchmarks/redis_probe.h"
#include "benchmarks/socket_probe.h"
#include "benchmarks/value_ring.h"
#include "terrace/remote_backend.h"
#include "terrace/status.h"

namespace terrace::bench {

// How the library's bytes move in a row.
struct RemoteTransport {
  std::string_view name;  // "bulk_tcp"
  bool over_unix = false;
  RemotePath path = RemotePath::kAuto;
};
inline constexpr std::array kRemoteTransports = {RemoteTransport{"grpc_tcp", false, RemotePath::kStreams},
                                                 RemoteTransport{"grpc_unix", true, RemotePath::kStreams},
                                                 RemoteTransport{"bulk_tcp", false, RemotePath::kBulk},
                                                 RemoteTransport{"bulk_unix", true, RemotePath::kBulk},
                                                 RemoteTransport{"shm", true, RemotePath::kSharedMemory}};

enum class BareKind : uint8_t { kSocket, kByteBuffer, kLanded, kProtobuf, kRedis, kCopy };

// One setting of one probe, and what it reached.
struct BareProbe {
  BareKind kind = BareKind::kSocket;
  std::string setting;                                              // "2 connections"
  std::function<Result<double>(Direction, const ValueBatch&)> run;  // seconds
  std::array<std::vector<double>, 2> gbps;                          // by direction, get first
  std::vector<double>& of(Direction direction) { return gbps[direction == Direction::kGet ? 0 : 1]; }
  double MedianGbps(Direction direction) const;
};

// The process with the far ends of sockets and gRPC, and Redis' where it is installed.
class BareFarEnds {
 public:
  // Forks: call it while this process has one thread. `size_bytes`: of the values that it sends and takes.
  static Result<std::unique_ptr<BareFarEnds>> Start(const std::string& directory, uint64_t size_bytes);
  Result<int> ConnectSocket(bool over_unix) const;
  std::string grpc_address(bool over_unix) const;
  const RedisServer* redis() const { return redis_.get(); }  // null: none
  const std::string& no_redis() const { return no_redis_; }  // why

 private:
  BareFarEnds() = default;
  std::string directory_;
  uint16_t socket_port_ = 0;
  uint16_t grpc_port_ = 0;
  std::unique_ptr<ChildProcess> process_;
  std::unique_ptr<RedisServer> redis_;
  std::string no_redis_;
};

class BareProbes {
 public:
  // `landing_bytes`: of the ring of values on this side.
  static Result<std::unique_ptr<BareProbes>> Connect(const BareFarEnds& far_ends,
                                                     const RemoteTransport& transport, uint64_t landing_bytes,
                                                     uint64_t source_bytes);
  std::vector<BareProbe>& probes() { return probes_; }
  // The best setting of a kind by the median of its rounds; null where there is none.
  const BareProbe* Best(BareKind kind, Direction direction) const;
  Status ClearRedis();

 private:
  explicit BareProbes(uint64_t landing_bytes) : ring_(landing_bytes) {}
  Status AddSockets(const BareFarEnds& far_ends, bool over_unix);
  Status AddRedis(const BareFarEnds& far_ends, bool over_unix);
  Status AddGrpc(const BareFarEnds& far_ends, bool over_unix);
  void AddCopy(uint64_t source_bytes);

  const ValueRing ring_;
  std::unique_ptr<ValueRing> source_;
  std::unique_ptr<SocketProbe> sockets_;
  std::unique_ptr<GrpcProbe> grpc_;
  std::unique_ptr<RedisProbe> redis_;
  std::vector<BareProbe> probes_;  // the last member: they use the others
};

}  // namespace terrace::bench
