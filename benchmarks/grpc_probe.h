// GrpcProbe: what bare gRPC moves between two processes, with the callback API and raw ByteBuffers on both
// sides, and how long a bare unary call takes. One service for all of it, without a .proto file:
//
//   /probe/get, /probe/put   streams; the first message is the request (StreamRequest of grpc_probe.cc)
//   /probe/echo              unary; the first eight bytes of the request are the length of the answer
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "benchmarks/value_ring.h"
#include "terrace/status.h"

namespace terrace::bench {

enum class WireForm : uint8_t {
  kDropped = 1,   // slices over the sender's memory; the receiver lets go of what arrives
  kLanded = 2,    // the same, and the receiver copies it into its ring
  kProtobuf = 3,  // a `bytes` field, serialised and parsed, then copied into the ring
};

// Server, in a process of its own. Answers until it is destroyed.
class GrpcProbeServer {
 public:
  virtual ~GrpcProbeServer() = default;
  // On the Unix socket and a loopback port of its choice.
  static Result<std::unique_ptr<GrpcProbeServer>> Start(const std::string& unix_path,
                                                        std::shared_ptr<const ValueRing> ring);
  virtual uint16_t tcp_port() const = 0;
};

// Client. One caller's thread.
class GrpcProbe {
 public:
  struct Setting {
    WireForm form = WireForm::kLanded;
    uint32_t streams = 1;  // at once, each on a connection of its own; kMaxStreams at most
    uint64_t message_bytes = uint64_t{4} << 20;
  };
  static constexpr uint32_t kMaxStreams = 2;

  virtual ~GrpcProbe() = default;
  // `address` as gRPC writes it. `ring` outlives the probe.
  static Result<std::unique_ptr<GrpcProbe>> Connect(const std::string& address, const ValueRing& ring);

  // The seconds that it took.
  virtual Result<double> Run(Direction direction, const Setting& setting, const ValueBatch& values) = 0;
  // One unary call; the caller's thread polls for the answer itself, or (`by_callback`) sleeps until gRPC's
  // thread hands it over.
  virtual Result<double> RoundTrip(std::string_view request, uint64_t answer_bytes, bool by_callback) = 0;
};

}  // namespace terrace::bench
