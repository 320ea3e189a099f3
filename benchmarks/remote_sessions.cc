// Many sessions at once.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "benchmarks/cpu_time.h"
#include "benchmarks/order_statistics.h"
#include "benchmarks/remote_rounds.h"
#include "lib/base/status_macros.h"

namespace terrace::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr uint32_t kGetSeed = 1;
constexpr uint32_t kFirstPutSeed = 16;
constexpr uint64_t kCallsPerTurn = 4;  // of a session, then it looks at the clock
constexpr std::chrono::milliseconds kSamplePause(200);
constexpr double kMiB = 1 << 20;

// What sessions reached together in a while.
struct Turn {
  double gbps = 0;
  double cpu_s_per_gb = 0;
  std::vector<double> us;
  uint64_t peak_bytes = 0;  // resident in the server
};

struct SessionPlan {
  Direction direction = Direction::kGet;
  uint64_t num_chunks = 0;  // of the set that is got
  uint64_t chunks_per_turn = 1;
  SteadyClock::time_point end;
};

uint64_t ResidentBytes(const RemoteServer& server) {
  return server.process() != nullptr ? server.process()->ResidentBytes() : 0;
}

double CpuOfBoth(const RemoteServer& server) {
  return ProcessCpuSeconds() + (server.process() != nullptr ? server.process()->CpuSeconds() : 0);
}

// One session until the plan's end; puts go on from `next_put`, so that each is a new chunk.
class Session {
 public:
  Session(std::unique_ptr<RemoteClient> client, uint32_t index) : client_(std::move(client)), index_(index) {}

  Status RunUntilEnd(const SessionPlan& plan) {
    figures_ = {};
    while (SteadyClock::now() < plan.end) {
      ChunkRun chunks{
          .seed = kGetSeed, .begin = next_get_, .count = plan.chunks_per_turn, .period = plan.num_chunks};
      if (plan.direction == Direction::kPut) {
        chunks = {.seed = kFirstPutSeed + index_, .begin = next_put_, .count = plan.chunks_per_turn};
        next_put_ += chunks.count;
      } else {
        next_get_ += chunks.count;
      }
      TERRACE_ASSIGN_OR_RETURN(const RemoteFigures turn, client_->Run(plan.direction, chunks));
      figures_.payload_bytes += turn.payload_bytes;
      figures_.us.insert(figures_.us.end(), turn.us.begin(), turn.us.end());
    }
    return OkStatus();
  }
  const RemoteFigures& figures() const { return figures_; }
  RemoteClient& client() { return *client_; }

 private:
  const std::unique_ptr<RemoteClient> client_;
  const uint32_t index_;
  uint64_t next_get_ = uint64_t{index_} * 7;  // sessions read different chunks at a time
  uint64_t next_put_ = 0;
  RemoteFigures figures_;
};

Result<Turn> RunSessions(std::span<const std::unique_ptr<Session>> sessions, const RemoteServer& server,
                         const SessionPlan& plan) {
  Turn turn;
  const double cpu = CpuOfBoth(server);
  const SteadyClock::time_point begin = SteadyClock::now();
  SteadyClock::time_point end = begin;
  std::mutex mutex;
  Status status;
  std::atomic<size_t> running = sessions.size();
  std::vector<std::thread> threads;
  for (const auto& session : sessions) {
    threads.emplace_back([&, session = session.get()] {
      const Status ended = session->RunUntilEnd(plan);
      const std::lock_guard lock(mutex);
      if (!ended.ok()) status = ended;
      end = SteadyClock::now();
      --running;
    });
  }
  while (running > 0) {
    turn.peak_bytes = std::max(turn.peak_bytes, ResidentBytes(server));
    std::this_thread::sleep_for(kSamplePause);
  }
  for (std::thread& thread : threads) thread.join();
  TERRACE_RETURN_IF_ERROR(status);
  const double seconds = std::chrono::duration<double>(end - begin).count();
  double gigabytes = 0;
  for (const auto& session : sessions) {
    gigabytes += static_cast<double>(session->figures().payload_bytes) / 1e9;
    turn.us.insert(turn.us.end(), session->figures().us.begin(), session->figures().us.end());
  }
  turn.gbps = gigabytes / seconds;
  turn.cpu_s_per_gb = (CpuOfBoth(server) - cpu) / gigabytes;
  return turn;
}

Result<std::unique_ptr<Session>> OpenSession(const RemoteServer& server, const RemoteTransport& transport,
                                             RemoteClientOptions client, uint32_t index) {
  const uint32_t connections = client.remote.bulk_connections;
  client.remote = server.OptionsFor(transport.over_unix, transport.path);
  client.remote.bulk_connections = connections;
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<RemoteClient> opened, RemoteClient::Open(client));
  return std::make_unique<Session>(std::move(opened), index);
}

std::string MemoryNote(uint64_t before, uint64_t peak, uint64_t after) {
  const auto mib = [](uint64_t bytes) {
    return std::to_string(static_cast<uint64_t>(static_cast<double>(bytes) / kMiB));
  };
  return "server MiB resident: before " + mib(before) + ", peak " + mib(peak) + ", after " + mib(after);
}

}  // namespace

Result<std::vector<RemoteResult>> MeasureSessions(const RemoteBenchOptions& options,
                                                  const RemoteServer& server,
                                                  const RemoteTransport& transport, uint64_t chunk_bytes) {
  RemoteClientOptions client{
      .payload_bytes = chunk_bytes, .batch = options.batch, .batches_in_flight = options.batches_in_flight};
  client.run_id = FreshRunId();
  client.remote.bulk_connections = options.connections;
  std::vector<std::unique_ptr<Session>> alone(1);
  TERRACE_ASSIGN_OR_RETURN(alone[0], OpenSession(server, transport, client, 0));
  client.batch = client.batches_in_flight = 1;
  client.remote.bulk_connections = 1;
  std::vector<std::unique_ptr<Session>> many(options.clients);
  for (uint32_t i = 0; i < options.clients; ++i) {
    TERRACE_ASSIGN_OR_RETURN(many[i], OpenSession(server, transport, client, i + 1));
  }
  const uint64_t num_chunks = std::max<uint64_t>(1, options.bytes / chunk_bytes);
  TERRACE_RETURN_IF_ERROR(
      alone[0]->client().Run(Direction::kPut, {.seed = kGetSeed, .count = num_chunks}).status());
  std::vector<RemoteResult> rows;
  for (const Direction direction : {Direction::kGet, Direction::kPut}) {
    const auto share = std::chrono::milliseconds(options.seconds * 1000 / (2 * options.repetitions));
    std::vector<double> one_gbps, gbps, cpu, us;
    uint64_t peak = 0;
    uint64_t before = 0;
    for (int repetition = 0; repetition < options.repetitions; ++repetition) {
      SessionPlan plan{.direction = direction, .num_chunks = num_chunks, .end = SteadyClock::now() + share};
      plan.chunks_per_turn = kCallsPerTurn * options.batch * options.batches_in_flight;
      TERRACE_ASSIGN_OR_RETURN(const Turn one, RunSessions(alone, server, plan));
      one_gbps.push_back(one.gbps);
      if (repetition == 0) before = ResidentBytes(server);
      plan.chunks_per_turn = kCallsPerTurn;
      plan.end = SteadyClock::now() + share;
      TERRACE_ASSIGN_OR_RETURN(const Turn all, RunSessions(many, server, plan));
      gbps.push_back(all.gbps);
      cpu.push_back(all.cpu_s_per_gb);
      us.insert(us.end(), all.us.begin(), all.us.end());
      peak = std::max(peak, all.peak_bytes);
    }
    RemoteResult& row = rows.emplace_back();
    row.op = direction == Direction::kPut ? "put" : "get";
    row.transport = transport.name;
    row.chunk_bytes = chunk_bytes;
    row.library_gbps = MedianOf(gbps);
    row.probe_gbps = MedianOf(one_gbps);
    row.ratio = *row.library_gbps / *row.probe_gbps;
    row.cpu_s_per_gb = MedianOf(cpu);
    row.p50_us = QuantileOf(us, 0.5);
    row.p99_us = QuantileOf(us, 0.99);
    row.note =
        std::to_string(options.clients) + " clients; " + MemoryNote(before, peak, ResidentBytes(server));
  }
  return rows;
}

}  // namespace terrace::bench
