#include "benchmarks/bare_probes.h"

#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "benchmarks/order_statistics.h"
#include "lib/base/status_macros.h"
#include "lib/memory/stream_copy.h"

namespace terrace::bench {
namespace {

constexpr std::chrono::seconds kStartLimit(30);
constexpr uint64_t kMiB = uint64_t{1} << 20;
// Of malloc, in the process of the far ends: as `terrace serve` has it.
constexpr int kTrimThreshold = 512 << 20;
constexpr int kMmapThreshold = 32 << 20;

// The body of the far ends' process.
int ServeFarEnds(const std::string& directory, const std::vector<int>& listeners, uint64_t size_bytes,
                 int report_fd) {
  mallopt(M_TRIM_THRESHOLD, kTrimThreshold);
  mallopt(M_MMAP_THRESHOLD, kMmapThreshold);
  const auto ring = std::make_shared<const ValueRing>(size_bytes);
  const auto server = GrpcProbeServer::Start(directory + "/grpc.sock", ring);
  if (!server.ok()) return 1;
  ServeSocketProbe(listeners, ring);
  const std::string report = std::to_string((*server)->tcp_port()) + "\n";
  if (write(report_fd, report.data(), report.size()) < 0) return 1;
  for (;;) pause();
}

std::string ConnectionsOf(uint32_t count) {
  return std::to_string(count) + (count == 1 ? " connection" : " connections");
}

}  // namespace

Result<std::unique_ptr<BareFarEnds>> BareFarEnds::Start(const std::string& directory, uint64_t size_bytes) {
  std::unique_ptr<BareFarEnds> ends(new BareFarEnds);
  ends->directory_ = directory;
  TERRACE_ASSIGN_OR_RETURN(const int tcp, ListenTcp(ends->socket_port_));
  TERRACE_ASSIGN_OR_RETURN(const int local, ListenUnix(directory + "/socket.sock"));
  TERRACE_ASSIGN_OR_RETURN(ends->process_, ChildProcess::Fork([&](int report_fd) {
                             return ServeFarEnds(directory, {tcp, local}, size_bytes, report_fd);
                           }));
  close(tcp);
  close(local);
  TERRACE_ASSIGN_OR_RETURN(const std::string port, ends->process_->ReadReport(kStartLimit));
  ends->grpc_port_ = static_cast<uint16_t>(std::stoul(port));
  Result<std::unique_ptr<RedisServer>> redis = RedisServer::Start(directory);
  if (redis.ok()) {
    ends->redis_ = std::move(*redis);
  } else {
    ends->no_redis_ = redis.status().message();
  }
  return ends;
}

Result<int> BareFarEnds::ConnectSocket(bool over_unix) const {
  return over_unix ? ConnectUnix(directory_ + "/socket.sock") : ConnectTcp(socket_port_);
}

std::string BareFarEnds::grpc_address(bool over_unix) const {
  return over_unix ? "unix:" + directory_ + "/grpc.sock" : "127.0.0.1:" + std::to_string(grpc_port_);
}

Result<std::unique_ptr<BareProbes>> BareProbes::Connect(const BareFarEnds& far_ends,
                                                        const RemoteTransport& transport,
                                                        uint64_t landing_bytes, uint64_t source_bytes) {
  std::unique_ptr<BareProbes> probes(new BareProbes(landing_bytes));
  if (transport.path == RemotePath::kSharedMemory) {
    probes->AddCopy(source_bytes);
    return probes;
  }
  TERRACE_RETURN_IF_ERROR(probes->AddSockets(far_ends, transport.over_unix));
  TERRACE_RETURN_IF_ERROR(probes->AddRedis(far_ends, transport.over_unix));
  if (transport.path == RemotePath::kStreams) {
    TERRACE_RETURN_IF_ERROR(probes->AddGrpc(far_ends, transport.over_unix));
  }
  return probes;
}

Status BareProbes::AddSockets(const BareFarEnds& far_ends, bool over_unix) {
  TERRACE_ASSIGN_OR_RETURN(
      sockets_,
      SocketProbe::Connect([&far_ends, over_unix] { return far_ends.ConnectSocket(over_unix); }, ring_));
  for (const uint32_t count : {1, 2, 4}) {
    BareProbe& probe = probes_.emplace_back();
    probe.kind = BareKind::kSocket;
    probe.setting = ConnectionsOf(count);
    probe.run = [this, count](Direction direction, const ValueBatch& values) {
      return sockets_->Run(direction, count, values);
    };
  }
  return OkStatus();
}

Status BareProbes::AddRedis(const BareFarEnds& far_ends, bool over_unix) {
  if (far_ends.redis() == nullptr) return OkStatus();
  TERRACE_ASSIGN_OR_RETURN(redis_, RedisProbe::Connect(*far_ends.redis(), over_unix, ring_));
  for (const uint32_t count : {1, 2}) {
    BareProbe& probe = probes_.emplace_back();
    probe.kind = BareKind::kRedis;
    probe.setting = ConnectionsOf(count);
    probe.run = [this, count](Direction direction, const ValueBatch& values) {
      return redis_->Run(direction, count, values);
    };
  }
  return OkStatus();
}

Status BareProbes::AddGrpc(const BareFarEnds& far_ends, bool over_unix) {
  TERRACE_ASSIGN_OR_RETURN(grpc_, GrpcProbe::Connect(far_ends.grpc_address(over_unix), ring_));
  const auto add = [this](BareKind kind, const GrpcProbe::Setting& setting) {
    BareProbe& probe = probes_.emplace_back();
    probe.kind = kind;
    probe.setting = std::to_string(setting.streams) +
                    (setting.streams == 1 ? " stream of " : " streams of ") +
                    std::to_string(setting.message_bytes / kMiB) + " MiB";
    probe.run = [this, setting](Direction direction, const ValueBatch& values) {
      return grpc_->Run(direction, setting, values);
    };
  };
  for (const uint64_t message_bytes : {2 * kMiB, 4 * kMiB}) {
    for (const uint32_t streams : {1, 2}) {
      add(BareKind::kByteBuffer, {WireForm::kDropped, streams, message_bytes});
    }
    add(BareKind::kLanded, {WireForm::kLanded, 1, message_bytes});
    add(BareKind::kProtobuf, {WireForm::kProtobuf, 1, message_bytes});
  }
  return OkStatus();
}

void BareProbes::AddCopy(uint64_t source_bytes) {
  source_ = std::make_unique<ValueRing>(source_bytes);
  BareProbe& probe = probes_.emplace_back();
  probe.kind = BareKind::kCopy;
  probe.setting = "1 thread, " + std::string(CopyKernelName(ChosenCopyKernel()));
  probe.run = [this](Direction direction, const ValueBatch& values) -> Result<double> {
    const auto begin = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < values.count; ++i) {
      const MutableBytes here = ring_.Value(i, values.value_bytes);
      const MutableBytes there = source_->Value(i, values.value_bytes);
      const bool is_get = direction == Direction::kGet;
      StreamCopy(is_get ? here.data() : there.data(), is_get ? there.data() : here.data(), here.size());
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
}

double BareProbe::MedianGbps(Direction direction) const {
  return MedianOf(gbps[direction == Direction::kGet ? 0 : 1]);
}

const BareProbe* BareProbes::Best(BareKind kind, Direction direction) const {
  const BareProbe* best = nullptr;
  double best_gbps = 0;
  for (const BareProbe& probe : probes_) {
    const double gbps = probe.MedianGbps(direction);
    if (probe.kind != kind || gbps <= best_gbps) continue;
    best = &probe;
    best_gbps = gbps;
  }
  return best;
}

Status BareProbes::ClearRedis() { return redis_ ? redis_->Clear() : OkStatus(); }

}  // namespace terrace::bench
