#include "benchmarks/remote_rounds.h"

#include <algorithm>
#include <array>
#include <string>

#include "benchmarks/cpu_time.h"
#include "benchmarks/order_statistics.h"
#include "lib/base/status_macros.h"

namespace terrace::bench {
namespace {

constexpr uint32_t kGetSeed = 1;
constexpr uint32_t kPutSeed = 2;
constexpr int kCallsPerRound = 200;
constexpr uint64_t kLookupChunks = 128;
// Of a lookup's request and answer: keys and content, and per chunk a presence with its length.
constexpr uint64_t kLookupRequestBytes = kLookupChunks * (32 + 2 + 256 * 4) + 128;
constexpr uint64_t kLookupAnswerBytes = kLookupChunks * 8 + 32;
constexpr uint64_t kViewRequestBytes = 64;
constexpr uint64_t kSmallChunkBytes = 4096;
constexpr std::array kDirections = {Direction::kPut, Direction::kGet};

double CpuOfBoth(const RemoteServer& server) {
  return ProcessCpuSeconds() + (server.process() != nullptr ? server.process()->CpuSeconds() : 0);
}

Result<std::unique_ptr<RemoteClient>> OpenClient(const RemoteBenchOptions& options,
                                                 const RemoteServer& server, const RemoteTransport& transport,
                                                 uint64_t chunk_bytes) {
  RemoteClientOptions client;
  client.remote = server.OptionsFor(transport.over_unix, transport.path);
  client.remote.bulk_connections = options.connections;
  client.remote.inflight_bytes = uint64_t{1} << 30;
  client.payload_bytes = chunk_bytes;
  client.run_id = FreshRunId();
  client.batch = options.batch;
  client.batches_in_flight = options.batches_in_flight;
  return RemoteClient::Open(client);
}

BareKind ProbeOf(const RemoteTransport& transport) {
  if (transport.path == RemotePath::kSharedMemory) return BareKind::kCopy;
  return transport.path == RemotePath::kStreams ? BareKind::kByteBuffer : BareKind::kSocket;
}

// What the library reached in one direction.
struct Measured {
  std::vector<double> gbps;
  std::vector<double> cpu;
  std::vector<double> us;
};

Status RunLibrary(RemoteClient& client, const RemoteServer& server, Direction direction,
                  const ChunkRun& chunks, Measured& measured) {
  const double cpu = CpuOfBoth(server);
  TERRACE_ASSIGN_OR_RETURN(const RemoteFigures figures, client.Run(direction, chunks));
  const double gigabytes = static_cast<double>(figures.payload_bytes) / 1e9;
  measured.gbps.push_back(gigabytes / figures.seconds);
  measured.cpu.push_back((CpuOfBoth(server) - cpu) / gigabytes);
  measured.us.insert(measured.us.end(), figures.us.begin(), figures.us.end());
  return OkStatus();
}

Status RunProbes(BareProbes& bare, Direction direction, const ValueBatch& values, bool counts) {
  for (BareProbe& probe : bare.probes()) {
    TERRACE_ASSIGN_OR_RETURN(const double seconds, probe.run(direction, values));
    const double gigabytes = static_cast<double>(values.count * values.value_bytes) / 1e9;
    if (counts) probe.of(direction).push_back(gigabytes / seconds);
  }
  return OkStatus();
}

RemoteResult Summarise(const RemoteTransport& transport, uint64_t chunk_bytes, Direction direction,
                       const Measured& measured, const BareProbes& bare) {
  RemoteResult row;
  row.op = direction == Direction::kPut ? "put" : "get";
  row.transport = transport.name;
  row.chunk_bytes = chunk_bytes;
  row.library_gbps = MedianOf(measured.gbps);
  row.cpu_s_per_gb = MedianOf(measured.cpu);
  row.p50_us = QuantileOf(measured.us, 0.5);
  row.p99_us = QuantileOf(measured.us, 0.99);
  const auto best = [&](BareKind kind) -> std::optional<double> {
    const BareProbe* probe = bare.Best(kind, direction);
    if (probe == nullptr) return std::nullopt;
    return probe->MedianGbps(direction);
  };
  row.probe_gbps = best(ProbeOf(transport));
  if (row.probe_gbps) row.ratio = *row.library_gbps / *row.probe_gbps;
  row.socket_gbps = best(BareKind::kSocket);
  row.bytebuffer_gbps = best(BareKind::kByteBuffer);
  row.landed_gbps = best(BareKind::kLanded);
  row.protobuf_gbps = best(BareKind::kProtobuf);
  row.redis_gbps = best(BareKind::kRedis);
  if (const BareProbe* probe = bare.Best(ProbeOf(transport), direction)) row.note = probe->setting;
  return row;
}

}  // namespace

Result<std::vector<RemoteResult>> MeasureTransport(const RemoteBenchOptions& options,
                                                   const RemoteServer& server, const BareFarEnds& far_ends,
                                                   const RemoteTransport& transport, uint64_t chunk_bytes) {
  const uint64_t in_flight = uint64_t{options.batch} * options.batches_in_flight;
  const ValueBatch values{.value_bytes = chunk_bytes,
                          .count = std::max(in_flight, options.bytes / chunk_bytes)};
  const uint64_t ring_bytes = in_flight * RoundUp(chunk_bytes, kFrameAlignment);
  TERRACE_ASSIGN_OR_RETURN(const auto client, OpenClient(options, server, transport, chunk_bytes));
  TERRACE_ASSIGN_OR_RETURN(const auto bare,
                           BareProbes::Connect(far_ends, transport, ring_bytes, options.bytes));
  const ChunkRun kept{.seed = kGetSeed, .count = values.count};
  TERRACE_RETURN_IF_ERROR(client->Run(Direction::kPut, kept).status());
  for (const Direction direction : kDirections) {  // warms up
    TERRACE_RETURN_IF_ERROR(RunProbes(*bare, direction, values, false));
  }
  TERRACE_RETURN_IF_ERROR(client->Run(Direction::kGet, kept).status());
  std::array<Measured, 2> measured;
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    const ChunkRun fresh{.seed = kPutSeed, .begin = repetition * values.count, .count = values.count};
    for (const Direction direction : kDirections) {
      const bool is_put = direction == Direction::kPut;
      TERRACE_RETURN_IF_ERROR(
          RunLibrary(*client, server, direction, is_put ? fresh : kept, measured[is_put ? 0 : 1]));
      TERRACE_RETURN_IF_ERROR(RunProbes(*bare, direction, values, true));
    }
    TERRACE_RETURN_IF_ERROR(client->Evict(fresh));
  }
  TERRACE_RETURN_IF_ERROR(client->Evict(kept));
  TERRACE_RETURN_IF_ERROR(bare->ClearRedis());
  std::vector<RemoteResult> rows;
  for (const Direction direction : kDirections) {
    const Measured& of = measured[direction == Direction::kPut ? 0 : 1];
    rows.push_back(Summarise(transport, chunk_bytes, direction, of, *bare));
    if (transport.path != RemotePath::kSharedMemory && far_ends.redis() == nullptr) {
      rows.back().note += "; " + far_ends.no_redis();
    }
  }
  return rows;
}

namespace {

// Calls of the library and bare ones, one after the other.
Result<RemoteResult> MeasureCalls(const RemoteBenchOptions& options, GrpcProbe& grpc,
                                  const std::function<Result<double>()>& call, uint64_t request_bytes,
                                  uint64_t answer_bytes) {
  const std::string request(request_bytes, 'r');
  std::vector<double> library;
  std::array<std::vector<double>, 2> bare;                                        // polled, called back
  for (int i = -kCallsPerRound; i < options.repetitions * kCallsPerRound; ++i) {  // the first ones warm up
    TERRACE_ASSIGN_OR_RETURN(const double seconds, call());
    if (i >= 0) library.push_back(seconds * 1e6);
    for (const bool by_callback : {false, true}) {
      TERRACE_ASSIGN_OR_RETURN(const double beside, grpc.RoundTrip(request, answer_bytes, by_callback));
      if (i >= 0) bare[by_callback ? 1 : 0].push_back(beside * 1e6);
    }
  }
  RemoteResult row;
  row.p50_us = QuantileOf(library, 0.5);
  row.p99_us = QuantileOf(library, 0.99);
  const double polled = QuantileOf(bare[0], 0.5);
  const double called_back = QuantileOf(bare[1], 0.5);
  row.probe_p50_us = std::min(polled, called_back);
  row.ratio = row.p50_us / *row.probe_p50_us;
  row.note = "bare call polled " + std::to_string(static_cast<int>(polled)) + " us, called back " +
             std::to_string(static_cast<int>(called_back)) + " us";
  return row;
}

}  // namespace

Result<RemoteResult> MeasureLookup(const RemoteBenchOptions& options, const RemoteServer& server,
                                   const BareFarEnds& far_ends, const RemoteTransport& transport) {
  const ValueRing ring(kSmallChunkBytes);
  TERRACE_ASSIGN_OR_RETURN(const auto grpc,
                           GrpcProbe::Connect(far_ends.grpc_address(transport.over_unix), ring));
  TERRACE_ASSIGN_OR_RETURN(const auto client, OpenClient(options, server, transport, kSmallChunkBytes));
  TERRACE_RETURN_IF_ERROR(client->PutPrefix(kLookupChunks));
  TERRACE_ASSIGN_OR_RETURN(RemoteResult row, MeasureCalls(
                                                 options, *grpc, [&client] { return client->MatchPrefix(); },
                                                 kLookupRequestBytes, kLookupAnswerBytes));
  row.op = "lookup128";
  row.transport = transport.name;
  return row;
}

Result<RemoteResult> MeasureView(const RemoteBenchOptions& options, const RemoteServer& server,
                                 const BareFarEnds& far_ends, const RemoteTransport& transport) {
  const ValueRing ring(kSmallChunkBytes);
  TERRACE_ASSIGN_OR_RETURN(const auto grpc,
                           GrpcProbe::Connect(far_ends.grpc_address(transport.over_unix), ring));
  TERRACE_ASSIGN_OR_RETURN(const auto client, OpenClient(options, server, transport, kSmallChunkBytes));
  TERRACE_RETURN_IF_ERROR(client->PutPrefix(1));
  TERRACE_ASSIGN_OR_RETURN(RemoteResult row, MeasureCalls(
                                                 options, *grpc, [&client] { return client->GetSmall(); },
                                                 kViewRequestBytes, kViewRequestBytes));
  row.op = "view";
  row.transport = transport.name;
  row.chunk_bytes = kSmallChunkBytes;
  return row;
}

}  // namespace terrace::bench
