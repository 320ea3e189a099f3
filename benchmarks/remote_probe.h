// MeasureRemote: the remote tier between two processes beside what bare sockets, bare gRPC, Redis and a copy
// in memory reach with the same bytes, in turns, in one run.
//
//   put, get     whole frames, `batch` in a call and `batches_in_flight` calls; every piece of what is got is
//                hashed while the rest arrives, and compared. `ratio` is library_gbps / probe_gbps; the probe
//                is the best setting of: bare sockets for the bulk channel, bare ByteBuffers (dropped as they
//                arrive) for gRPC, one thread's streaming copy for shared memory
//   lookup128    one Match of 128 chunks, beside a bare unary call with as many bytes; `ratio` is p50_us /
//                probe_p50_us: less is better. Only with gRPC, which carries every lookup
//   view         one Get of a small chunk through shared memory, beside a bare unary call of 64 bytes; the
//                same ratio
//
// With clients > 1 instead: `get` and `put` of so many sessions at once for `seconds`, one call each in
// flight, beside one session with all calls of its own (`probe_gbps` is that one's); p50_us and p99_us are
// those of the many. The note says what the server had resident.
//
// Gigabytes (10^9) of payload per second, medians of the rounds; CPU seconds of both processes together per
// gigabyte, of this one where the server is not its own. All memory was touched before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "terrace/status.h"

namespace terrace::bench {

struct RemoteBenchOptions {
  std::string address;  // as RemoteOptions has it; empty: a server of its own is started and ended
  std::string token;    // for `address`
  std::string program;  // the file of `terrace`: `program serve` is that server
  std::vector<uint64_t> chunk_bytes = {5898240, uint64_t{32} << 20};  // payloads
  uint64_t bytes = uint64_t{512} << 20;  // that a round moves in each direction; the server holds six times
  std::vector<std::string> transports;   // empty: all that the address allows
  uint32_t connections = 2;              // of the bulk channel
  uint32_t batch = 2;                    // chunks in a call
  uint32_t batches_in_flight = 3;
  uint32_t clients = 1;
  uint32_t seconds = 10;  // with clients
  int repetitions = 5;
};

struct RemoteResult {
  std::string op;
  std::string transport;
  uint64_t chunk_bytes = 0;
  std::optional<double> library_gbps;
  std::optional<double> probe_gbps;
  std::optional<double> ratio;
  std::optional<double> cpu_s_per_gb;
  double p50_us = 0;  // from a call to its completion, others being in flight
  double p99_us = 0;
  std::optional<double> probe_p50_us;
  // The best settings of the others beside it.
  std::optional<double> socket_gbps;
  std::optional<double> bytebuffer_gbps;
  std::optional<double> landed_gbps;  // ByteBuffers that the receiver copies into its buffer
  std::optional<double> protobuf_gbps;
  std::optional<double> redis_gbps;
  std::string note;  // the probe's setting; why there is no Redis

  // One line with the keys of the fields.
  std::string ToJson() const;
};

// kInvalidArgument names a wrong option; anything that failed, or was got wrong, ends it.
Result<std::vector<RemoteResult>> MeasureRemote(const RemoteBenchOptions& options);

}  // namespace terrace::bench
