#include "connectors/server/serve_command.h"

#include <google/protobuf/stubs/logging.h>
#include <malloc.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>

#include "connectors/server/json_log_sink.h"
#include "connectors/server/metrics_endpoint.h"
#include "connectors/server/namespace_opener.h"
#include "connectors/server/stop_signals.h"

namespace terrace::server {
namespace {

using SteadyClock = std::chrono::steady_clock;

// After the drain: for what tiers still write, and threads that end.
constexpr std::chrono::seconds kCloseLimit(30);
constexpr int kExecutorThreads = 4;

constexpr char kServeText[] = R"(
Serves until SIGTERM or SIGINT, which drain: calls in flight end, at the latest after --drain-seconds, then
the tiers are closed. SIGHUP reads the token file again: tokens, rights, limits and quotas. A flag overrides
the file of --config, whose keys are the flags without -- and with _ for -. All mistakes are named at once.

Exit codes: 0 drained and closed; 1 could not start (an address in use, a directory that is held) or not
close; 2 wrong flags, configuration, token or TLS files: nothing was started; 3 a second signal, or an end
that took too long.)";

void AddField(CLI::App* command, const ConfigField& field, std::vector<FlagValue>& flags) {
  if (field.form == ConfigField::Form::kFlag) {
    command->add_flag_callback(
        field.flag(),
        [&flags, key = field.key] {
          flags.push_back({key, {}});
        },
        field.help);
    return;
  }
  command
      ->add_option_function<std::vector<std::string>>(
          field.flag(),
          [&flags, key = field.key](const std::vector<std::string>& values) {
            flags.push_back({key, values});
          },
          field.help)
      ->type_name(field.type_name)
      ->allow_extra_args(false);
}

// Without systemd these do nothing.
void NotifyManager(const std::string& state) { sd_notify(0, state.c_str()); }

std::string ReloadingState() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t us = int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
  return "RELOADING=1\nMONOTONIC_USEC=" + std::to_string(us);
}

// One run of the server: what stands, in the order in which it is made.
class ServeRun {
 public:
  explicit ServeRun(ServerSetup setup)
      : setup_(std::move(setup)), log_(MakeJsonLogSink(STDERR_FILENO, setup_.config.log_level)) {}

  int Run() {
    // A stranger's malformed text would be a line on stderr each time, before anybody asked for a token.
    google::protobuf::SetLogHandler(nullptr);
    StopSignals::Options stop;
    stop.stop_limit = std::chrono::seconds(setup_.config.drain_seconds) + kCloseLimit;
    stop.forced_exit_code = kServeForced;
    Result<std::unique_ptr<StopSignals>> signals = StopSignals::Start(stop);
    Status started = signals.ok() ? Start() : signals.status();
    if (!started.ok()) {
      log_->Log(LogLevel::kError, "server", started.ToString());
      return kServeFailed;
    }
    SayReady();
    while ((*signals)->Wait() == StopSignals::Event::kReload) Reload();
    return Stop();
  }

 private:
  Status Start() {
    ThreadPoolOptions threads;
    threads.num_threads = kExecutorThreads;
    threads.name = "terrace-exec";
    Result<std::unique_ptr<Executor>> executor = MakeThreadPool(threads);
    if (!executor.ok()) return executor.status();
    const ServerConfig& config = setup_.config;
    const bool offers_shm = config.shm && !config.unix_path.empty();
    namespaces_ = std::make_shared<NamespaceMap>(MakeNamespaceOpener(
        {config.nvme_dir, setup_.keys, offers_shm, std::shared_ptr<Executor>(*std::move(executor)), log_}));
    if (Status opened = namespaces_->Set(setup_.tenants.quotas); !opened.ok()) return opened;
    tenants_ = std::make_shared<TenantTable>(std::move(setup_.tenants.entries));
    Result<std::unique_ptr<CacheServer>> server = CacheServer::Start(ServerOptions(), tenants_, namespaces_);
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    is_serving_ = true;
    if (!config.metrics_port) return OkStatus();
    Result<std::unique_ptr<MetricsEndpoint>> endpoint = MetricsEndpoint::Start(
        {*config.metrics_port, [this] { return MetricsText(); }, [this] { return is_serving_.load(); }});
    if (!endpoint.ok()) return endpoint.status();
    endpoint_ = *std::move(endpoint);
    return OkStatus();
  }

  CacheServerOptions ServerOptions() const {
    const ServerConfig& config = setup_.config;
    CacheServerOptions options;
    options.listen = config.listen;
    options.unix_path = config.unix_path;
    options.tls = setup_.tls;
    options.bulk = config.bulk;
    options.bulk_connections = config.bulk_connections;
    options.shm = config.shm && !config.unix_path.empty();
    options.staging_bytes = config.staging_bytes;
    options.shm_users = config.shm_users;
    options.max_connections = config.max_connections;
    options.max_message_bytes = config.max_message_bytes;
    options.sessions.max_sessions = config.max_sessions;
    options.sessions.session_ttl = std::chrono::seconds(config.session_ttl_seconds);
    options.log = log_;
    options.metrics = metrics_;
    return options;
  }

  std::string MetricsText() const {
    const std::vector<NamespaceRef> all = namespaces_->All();  // holds the registries
    std::vector<MetricRegistry::Labelled> registries = {{metrics_.get(), {}}};
    for (const NamespaceRef& one : all) {
      registries.push_back({&one->manager->metrics(), {{"namespace", one->quota.name}}});
    }
    return MetricRegistry::PrometheusText(registries);
  }

  void SayReady() {
    std::string text = "serving on";
    for (const std::string& address : server_->addresses()) text += " " + address;
    text += setup_.tls.is_set() ? ", with TLS" : ", without TLS";
    if (!setup_.tls.client_roots.empty()) text += " and client certificates";
    text += tenants_->needs_token() ? ", with tokens" : ", without tokens";
    text += ", " + std::to_string(namespaces_->All().size()) + " namespaces";
    if (endpoint_ != nullptr) text += ", metrics on 127.0.0.1:" + std::to_string(endpoint_->port());
    log_->Log(LogLevel::kInfo, "server", text);
    if (ListensBeyondLoopback(setup_.config) && !setup_.tls.is_set()) {
      log_->Log(LogLevel::kWarning, "server", "allow_plaintext: the network sees tokens and KV");
    }
    if (ListensBeyondLoopback(setup_.config) && !tenants_->needs_token()) {
      log_->Log(LogLevel::kWarning, "server", "allow_anyone: who reaches the port may read, write and clear");
    }
    NotifyManager("READY=1\nSTATUS=" + text);
  }

  // A file with mistakes, or a namespace that cannot be opened, changes nothing.
  void Reload() {
    NotifyManager(ReloadingState());
    Mistakes mistakes;
    TenantFile file = ReadTenants(setup_.config, mistakes);
    Status reloaded = mistakes.ToStatus();
    if (reloaded.ok()) reloaded = namespaces_->Set(file.quotas);
    if (reloaded.ok()) tenants_->Replace(std::move(file.entries));
    const bool is_ok = reloaded.ok();
    metrics_
        ->GetCounter("terrace_server_reloads_total", "Token files read at SIGHUP.",
                     {{"result", is_ok ? "ok" : "refused"}})
        ->Add();
    if (is_ok) {
      log_->Log(LogLevel::kInfo, "server", "tenants were read again");
    } else {
      log_->Log(LogLevel::kError, "server", "tenants stay as they were: " + reloaded.ToString());
    }
    NotifyManager("READY=1");
  }

  int Stop() {
    NotifyManager("STOPPING=1");
    log_->Log(LogLevel::kInfo, "server", "draining");
    is_serving_ = false;
    server_->Drain(SteadyClock::now() + std::chrono::seconds(setup_.config.drain_seconds));
    server_.reset();
    endpoint_.reset();
    const Status closed = namespaces_->Close(SteadyClock::now() + kCloseLimit / 2);
    if (!closed.ok()) {
      log_->Log(LogLevel::kError, "server", "closing: " + closed.ToString());
      return kServeFailed;
    }
    log_->Log(LogLevel::kInfo, "server", "stopped");
    return kServeStopped;
  }

  ServerSetup setup_;
  const std::shared_ptr<LogSink> log_;
  const std::shared_ptr<MetricRegistry> metrics_ = std::make_shared<MetricRegistry>();
  std::atomic<bool> is_serving_{false};
  std::shared_ptr<NamespaceMap> namespaces_;
  std::shared_ptr<TenantTable> tenants_;
  std::unique_ptr<CacheServer> server_;
  std::unique_ptr<MetricsEndpoint> endpoint_;
};

}  // namespace

std::shared_ptr<ServeArguments> AddServeCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("serve", "Runs a cache server");
  auto arguments = std::make_shared<ServeArguments>();
  arguments->command = command;
  command->add_option("--config", arguments->source.config_file, "JSON file of what the flags say")
      ->type_name("FILE");
  for (const ConfigField& field : ServerConfigFields()) AddField(command, field, arguments->source.flags);
  command->add_flag("--check", arguments->check_only, "Only say whether flags and files are right");
  command->allow_extras();  // named with all other mistakes
  command->footer(kServeText);
  return arguments;
}

int RunServe(const ServeArguments& arguments) {
  SetupSource source = arguments.source;
  source.unknown = arguments.command->remaining();
  Result<ServerSetup> setup = ReadServerSetup(source);
  if (!setup.ok()) {
    std::fprintf(stderr, "terrace serve: %s\n", std::string(setup.status().message()).c_str());
    return kServeUsage;
  }
  if (arguments.check_only) {
    std::puts("flags and files are right");
    return kServeStopped;
  }
  // gRPC's buffers of some MiB come and go: kept instead of given back to the system each time.
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc takes
  return ServeRun(*std::move(setup)).Run();
}

}  // namespace terrace::server
