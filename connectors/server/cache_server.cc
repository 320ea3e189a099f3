#include "connectors/server/cache_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <thread>

#include "connectors/server/bulk_listener.h"
#include "connectors/server/cache_service.h"
#include "connectors/server/listen_address.h"
#include "connectors/server/service_context.h"
#include "connectors/server/shm_listener.h"
#include "lib/wire/host_id.h"
#include "proto/grpc_lifetime.h"

namespace terrace::server {
namespace {

constexpr auto kTick = std::chrono::milliseconds(10);
constexpr auto kReapEvery = std::chrono::seconds(1);
constexpr int kMaxStreamsPerConnection = 1024;
constexpr size_t kMemoryQuotaBytes = size_t{1} << 30;  // of gRPC, for messages on their way
constexpr int kTcpChunkBytes = 2 << 20;                // read at once

Status CheckOptions(const CacheServerOptions& options) {
  if (options.listen.empty() && options.unix_path.empty()) {
    return InvalidArgumentError("listen, unix_path: at least one address is needed");
  }
  for (const std::string& address : options.listen) {
    if (const Result<HostPort> parsed = ParseHostPort(address); !parsed.ok()) return parsed.status();
  }
  if (options.tls.is_set() == options.tls.private_key.empty()) {
    return InvalidArgumentError("tls: certificate_chain and private_key go together");
  }
  if (!options.tls.client_roots.empty() && !options.tls.is_set()) {
    return InvalidArgumentError("tls.client_roots: needs certificate_chain and private_key");
  }
  if (options.max_message_bytes < (uint64_t{4} << 20) || options.max_message_bytes > (uint64_t{64} << 20)) {
    return InvalidArgumentError("max_message_bytes: 4 MiB to 64 MiB are allowed");
  }
  return OkStatus();
}

std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const ServerTls& tls) {
  if (!tls.is_set()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(tls.client_roots.empty()
                                                ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = tls.client_roots;
  options.pem_key_cert_pairs.push_back({tls.private_key, tls.certificate_chain});
  return grpc::SslServerCredentials(options);
}

// Files made meanwhile are for this user only: gRPC's socket has no moment in which others may connect.
class PrivateFiles {
 public:
  PrivateFiles() : before_(umask(S_IRWXG | S_IRWXO)) {}
  ~PrivateFiles() { umask(before_); }
  PrivateFiles(const PrivateFiles&) = delete;
  PrivateFiles& operator=(const PrivateFiles&) = delete;

 private:
  const mode_t before_;
};

void SetLimits(const CacheServerOptions& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));
  // Without it a second server starts silently on the same port.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 3);
  for (const char* name :
       {"grpc.experimental.tcp_read_chunk_size", "grpc.experimental.tcp_min_read_chunk_size",
        "grpc.experimental.tcp_max_read_chunk_size"}) {
    builder.AddChannelArgument(name, kTcpChunkBytes);
  }
  grpc::ResourceQuota quota("terrace");
  quota.Resize(kMemoryQuotaBytes);
  builder.SetResourceQuota(quota);
}

std::chrono::system_clock::time_point WallDeadline(TimePoint deadline) {
  const auto left = deadline - Clock::Real()->Now();
  constexpr auto kMost = std::chrono::hours(24);
  return std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::system_clock::duration>(
                                                left < kMost ? left : Duration(kMost));
}

class GrpcCacheServer final : public CacheServer {
 public:
  GrpcCacheServer(const CacheServerOptions& options, std::shared_ptr<TenantTable> tenants,
                  std::shared_ptr<NamespaceMap> namespaces)
      : context_(options, std::move(tenants), std::move(namespaces)) {}
  ~GrpcCacheServer() override { Stop(Clock::Real()->Now()); }

  Status Listen() {
    if (RAND_bytes(reinterpret_cast<unsigned char*>(context_.server_id.data()),
                   static_cast<int>(context_.server_id.size())) != 1) {
      return InternalError("the system gives no random bytes");
    }
    if (context_.options.bulk) {
      if (const Status started = StartBulk(); !started.ok()) return started;
    }
    if (context_.options.shm && !context_.options.unix_path.empty()) {
      if (const Status started = StartShm(); !started.ok()) return started;
    }
    if (const Status started = StartGrpc(); !started.ok()) return started;
    ticker_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "tc-ticker");
      Tick();
    });
    return OkStatus();
  }

  std::vector<std::string> addresses() const override { return addresses_; }
  size_t num_sessions() const override { return context_.sessions.size(); }

  void Drain(TimePoint deadline) override {
    context_.draining = true;
    if (grpc::HealthCheckServiceInterface* health = server_ ? server_->GetHealthCheckService() : nullptr) {
      health->SetServingStatus(false);
    }
    if (bulk_listener_) bulk_listener_->Drain();
    context_.watches.LeaveAll();
    {
      std::unique_lock lock(mutex_);
      while (context_.guard.calls_in_flight() + context_.bulk_sends.load() > 0 &&
             Clock::Real()->Now() < deadline) {
        ticked_.wait_for(lock, kTick);
      }
    }
    Stop(deadline);
  }

 private:
  Status StartBulk() {
    Result<std::unique_ptr<BulkReactor>> reactor = BulkReactor::Start(context_.options.reactor);
    if (!reactor.ok()) return reactor.status();
    reactor_ = std::move(*reactor);
    BulkListenerOptions options;
    if (!context_.options.listen.empty()) options.tcp_host = ParseHostPort(context_.options.listen[0])->host;
    if (!context_.options.unix_path.empty()) options.unix_path = context_.options.unix_path + ".bulk";
    options.tls = context_.options.tls;
    options.max_connections = context_.options.max_connections;
    Result<std::unique_ptr<BulkListener>> listener = BulkListener::Start(
        options, {&context_.sessions, reactor_.get(), &context_.metrics, context_.log.get()});
    if (!listener.ok()) return listener.status();
    bulk_listener_ = std::move(*listener);
    context_.bulk = BulkAddress{bulk_listener_->tcp_port(), options.unix_path, options.tls.is_set()};
    return OkStatus();
  }

  Status StartGrpc() {
    grpc::EnableDefaultHealthCheckService(true);
    static std::once_flag once;
    std::call_once(once, [] {
      HoldGrpc();
      grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    });
    service_ = MakeCacheService(context_);
    grpc::ServerBuilder builder;
    SetLimits(context_.options, builder);
    builder.RegisterService(service_.get());
    const std::vector<std::string>& listen = context_.options.listen;
    std::vector<int> ports(listen.size(), 0);
    const auto credentials = CredentialsOf(context_.options.tls);
    for (size_t i = 0; i < listen.size(); ++i) builder.AddListeningPort(listen[i], credentials, &ports[i]);
    const std::string& path = context_.options.unix_path;
    int unix_bound = 0;
    if (!path.empty()) {
      if (const Status cleared = ClearUnixPath(path); !cleared.ok()) return cleared;
      builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials(), &unix_bound);
    }
    {
      const PrivateFiles private_files;
      server_ = builder.BuildAndStart();
    }
    for (size_t i = 0; i < listen.size(); ++i) {
      if (!server_ || ports[i] == 0) {
        return UnavailableError("listen " + listen[i] + ": cannot be bound, or the TLS files do not fit");
      }
      addresses_.push_back(FormatHostPort(ParseHostPort(listen[i])->host, ports[i]));
    }
    if (path.empty()) return OkStatus();
    if (!server_ || unix_bound == 0 || chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0) {
      return UnavailableError("unix path " + path + ": cannot be bound");
    }
    addresses_.push_back("unix:" + path);
    return OkStatus();
  }

  Status StartShm() {
    ShmListenerOptions options;
    options.path = context_.options.unix_path + ".shm";
    options.users = context_.options.shm_users;
    options.staging_bytes = context_.options.staging_bytes;
    options.log = context_.log;
    options.metrics = context_.options.metrics;
    Result<std::unique_ptr<ShmListener>> listener = ShmListener::Start(options, &context_.sessions);
    if (!listener.ok()) return listener.status();
    shm_listener_ = std::move(*listener);
    if (const std::optional<std::string> host_id = ReadHostId()) {
      context_.shm_path_for = [path = options.path, here = *host_id](const std::string& client_host_id) {
        return client_host_id == here ? path : std::string();
      };
    }
    return OkStatus();
  }

  void Tick() {
    TimePoint reap_at = Clock::Real()->Now() + kReapEvery;
    std::unique_lock lock(mutex_);
    while (!stopped_) {
      ticked_.wait_for(lock, kTick);
      lock.unlock();
      context_.sessions.Tick();
      context_.watches.PollAll();
      const TimePoint now = Clock::Real()->Now();
      if (now >= reap_at) {
        reap_at = now + kReapEvery;
        context_.sessions.Reap([this](const Tenant& tenant) { return context_.guard.StillLetsIn(tenant); });
        context_.pins.Reap(now);
        if (shm_listener_) shm_listener_->Reap();
        context_.metrics.SetSessions(context_.sessions.size());
        context_.metrics.SetCallsInFlight(context_.guard.calls_in_flight());
      }
      lock.lock();
    }
  }

  // Ends calls, then what they stood on. The second time does nothing.
  void Stop(TimePoint deadline) {
    if (ended_.exchange(true)) return;
    context_.draining = true;
    context_.watches.LeaveAll();
    bulk_listener_.reset();
    shm_listener_.reset();
    if (server_) {
      // What is in flight at the deadline is cancelled, and answers; that needs ticker and queues.
      server_->Shutdown(WallDeadline(deadline));
      server_->Wait();
    }
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    ticked_.notify_all();
    if (ticker_.joinable()) ticker_.join();
    context_.sessions.Clear();
    reactor_.reset();
    context_.publishing.Stop();
    context_.slow.Stop();
    if (server_ && !context_.options.unix_path.empty()) unlink(context_.options.unix_path.c_str());
  }

  ServiceContext context_;
  std::unique_ptr<BulkReactor> reactor_;
  std::unique_ptr<BulkListener> bulk_listener_;
  std::unique_ptr<ShmListener> shm_listener_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::string> addresses_;
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
  std::condition_variable ticked_;
  bool stopped_ = false;  // of the ticker
  std::thread ticker_;
};

}  // namespace

Result<std::unique_ptr<CacheServer>> CacheServer::Start(const CacheServerOptions& options,
                                                        std::shared_ptr<TenantTable> tenants,
                                                        std::shared_ptr<NamespaceMap> namespaces) {
  if (const Status checked = CheckOptions(options); !checked.ok()) return checked;
  if (!tenants || !namespaces) return InvalidArgumentError("tenants, namespaces: missing");
  auto server = std::make_unique<GrpcCacheServer>(options, std::move(tenants), std::move(namespaces));
  if (const Status listening = server->Listen(); !listening.ok()) return listening;
  return std::unique_ptr<CacheServer>(std::move(server));
}

}  // namespace terrace::server
