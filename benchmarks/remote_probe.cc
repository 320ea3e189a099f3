#include "benchmarks/remote_probe.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "benchmarks/remote_rounds.h"
#include "lib/base/status_macros.h"

namespace terrace::bench {
namespace {

constexpr uint64_t kMinChunkBytes = 4096;
constexpr uint64_t kMaxChunkBytes = uint64_t{64} << 20;
constexpr uint64_t kServerRounds = 6;  // of bytes that the server's host tier has room for
constexpr uint64_t kMinServerBytes = uint64_t{1} << 30;
constexpr uint64_t kStagingRoomBytes = uint64_t{64} << 20;  // beyond the payloads in flight
constexpr uint32_t kMaxClients = 1024;

// In the directory for temporary files; gone with the object.
class WorkDirectory {
 public:
  static Result<std::unique_ptr<WorkDirectory>> Make() {
    std::string name = (std::filesystem::temp_directory_path() / "terrace-bench-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) return UnavailableError(name + " cannot be made");
    return std::unique_ptr<WorkDirectory>(new WorkDirectory(name));
  }
  ~WorkDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit WorkDirectory(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

Status CheckRange(const char* field, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return OkStatus();
  return InvalidArgumentError(std::string(field) + " = " + std::to_string(value) +
                              ", allowed: " + std::to_string(least) + " to " + std::to_string(most));
}

Status CheckOptions(const RemoteBenchOptions& options) {
  if (options.chunk_bytes.empty()) return InvalidArgumentError("chunk_bytes is empty");
  TERRACE_RETURN_IF_ERROR(CheckRange("batches_in_flight", options.batches_in_flight, 1, 64));
  for (const uint64_t chunk : options.chunk_bytes) {
    TERRACE_RETURN_IF_ERROR(CheckRange("chunk_bytes", chunk, kMinChunkBytes, kMaxChunkBytes));
    const uint64_t in_flight = chunk * options.batch * options.batches_in_flight;
    TERRACE_RETURN_IF_ERROR(CheckRange("bytes", options.bytes, in_flight, uint64_t{1} << 40));
  }
  TERRACE_RETURN_IF_ERROR(CheckRange("connections", options.connections, 1, 8));
  TERRACE_RETURN_IF_ERROR(CheckRange("batch", options.batch, 1, 64));
  TERRACE_RETURN_IF_ERROR(CheckRange("clients", options.clients, 1, kMaxClients));
  TERRACE_RETURN_IF_ERROR(CheckRange("seconds", options.seconds, 1, 86400));
  TERRACE_RETURN_IF_ERROR(CheckRange("repetitions", static_cast<uint64_t>(options.repetitions), 1, 1000));
  for (const std::string& name : options.transports) {
    if (std::ranges::find(kRemoteTransports, name, &RemoteTransport::name) == kRemoteTransports.end()) {
      return InvalidArgumentError("transport " + name +
                                  ", allowed: grpc_tcp, grpc_unix, bulk_tcp, bulk_unix, shm, all");
    }
  }
  return OkStatus();
}

RemoteServer::Sizes SizesFor(const RemoteBenchOptions& options) {
  const uint64_t in_flight =
      std::ranges::max(options.chunk_bytes) * options.batch * options.batches_in_flight;
  return {.host_bytes = std::max(kMinServerBytes, kServerRounds * options.bytes),
          .staging_bytes = in_flight + kStagingRoomBytes};
}

Result<std::vector<RemoteTransport>> ChosenTransports(const RemoteBenchOptions& options) {
  const bool is_unix = options.address.starts_with("unix:");
  std::vector<RemoteTransport> chosen;
  for (const RemoteTransport& transport : kRemoteTransports) {
    const bool is_named = std::ranges::find(options.transports, transport.name) != options.transports.end();
    if (!is_named && !options.transports.empty()) continue;
    if (options.address.empty() || transport.over_unix == is_unix) {
      chosen.push_back(transport);
    } else if (is_named) {
      return InvalidArgumentError("transport " + std::string(transport.name) + " needs " +
                                  (transport.over_unix ? "an address unix:PATH" : "an address HOST:PORT"));
    }
  }
  return chosen;
}

Status MeasureChunk(const RemoteBenchOptions& options, RemoteServer& server, const BareFarEnds* far_ends,
                    const RemoteTransport& transport, uint64_t chunk_bytes,
                    std::vector<RemoteResult>& results) {
  const auto measured = far_ends == nullptr
                            ? MeasureSessions(options, server, transport, chunk_bytes)
                            : MeasureTransport(options, server, *far_ends, transport, chunk_bytes);
  TERRACE_RETURN_IF_ERROR(server.CheckRunning());
  TERRACE_RETURN_IF_ERROR(measured.status());
  results.insert(results.end(), measured->begin(), measured->end());
  return OkStatus();
}

}  // namespace

std::string RemoteResult::ToJson() const {
  nlohmann::ordered_json row{{"op", op}, {"transport", transport}, {"chunk_bytes", chunk_bytes}};
  const auto set = [&row](const char* key, const std::optional<double>& value) {
    row[key] = nullptr;
    if (value) row[key] = *value;
  };
  set("library_gbps", library_gbps);
  set("probe_gbps", probe_gbps);
  set("ratio", ratio);
  set("cpu_s_per_gb", cpu_s_per_gb);
  row["p50_us"] = p50_us;
  row["p99_us"] = p99_us;
  set("probe_p50_us", probe_p50_us);
  set("socket_gbps", socket_gbps);
  set("bytebuffer_gbps", bytebuffer_gbps);
  set("landed_gbps", landed_gbps);
  set("protobuf_gbps", protobuf_gbps);
  set("redis_gbps", redis_gbps);
  row["note"] = note;
  return row.dump();
}

Result<std::vector<RemoteResult>> MeasureRemote(const RemoteBenchOptions& options) {
  TERRACE_RETURN_IF_ERROR(CheckOptions(options));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<RemoteTransport> transports, ChosenTransports(options));
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<WorkDirectory> work, WorkDirectory::Make());
  std::unique_ptr<BareFarEnds> far_ends;  // before anything here starts a thread
  if (options.clients == 1) {
    TERRACE_ASSIGN_OR_RETURN(far_ends, BareFarEnds::Start(work->path(), options.bytes));
  }
  std::unique_ptr<RemoteServer> server;
  if (options.address.empty()) {
    TERRACE_ASSIGN_OR_RETURN(server, RemoteServer::Start(options.program, work->path(), SizesFor(options)));
  } else {
    server = RemoteServer::At(options.address, options.token);
  }
  std::vector<RemoteResult> results;
  for (const RemoteTransport& transport : transports) {
    for (const uint64_t chunk_bytes : options.chunk_bytes) {
      TERRACE_RETURN_IF_ERROR(
          MeasureChunk(options, *server, far_ends.get(), transport, chunk_bytes, results));
    }
    if (far_ends == nullptr) continue;
    if (transport.path == RemotePath::kStreams) {
      TERRACE_ASSIGN_OR_RETURN(results.emplace_back(), MeasureLookup(options, *server, *far_ends, transport));
    } else if (transport.path == RemotePath::kSharedMemory) {
      TERRACE_ASSIGN_OR_RETURN(results.emplace_back(), MeasureView(options, *server, *far_ends, transport));
    }
  }
  for (RemoteResult& row : results) {
    if (server->process() == nullptr) row.note += "; CPU of this process only";
  }
  return results;
}

}  // namespace terrace::bench
