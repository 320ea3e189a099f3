#include "benchmarks/remote_server.h"

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "benchmarks/socket_probe.h"
#include "lib/base/status_macros.h"

namespace terrace::bench {
namespace {

constexpr std::chrono::seconds kStartLimit(60);  // the pool is populated before it listens

std::string LastLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) last = line;
  return last;
}

}  // namespace

Result<std::unique_ptr<RemoteServer>> RemoteServer::Start(const std::string& program,
                                                          const std::string& directory, const Sizes& sizes) {
  std::unique_ptr<RemoteServer> server(new RemoteServer);
  const std::string unix_path = directory + "/server.sock";
  uint16_t port = 0;
  // A free port, given back for the server to take.
  TERRACE_ASSIGN_OR_RETURN(const int listener, ListenTcp(port));
  close(listener);
  server->unix_address_ = "unix:" + unix_path;
  server->tcp_address_ = "127.0.0.1:" + std::to_string(port);
  server->log_path_ = directory + "/server.log";
  TERRACE_ASSIGN_OR_RETURN(
      server->process_,
      ChildProcess::Execute({program, "serve", "--listen", server->tcp_address_, "--unix", unix_path,
                             "--host-bytes", std::to_string(sizes.host_bytes), "--staging-bytes",
                             std::to_string(sizes.staging_bytes), "--metrics-port", "off"},
                            server->log_path_));
  const auto limit = std::chrono::steady_clock::now() + kStartLimit;
  for (;;) {
    if (const Result<int> fd = ConnectUnix(unix_path); fd.ok()) {
      close(*fd);
      return server;
    }
    TERRACE_RETURN_IF_ERROR(server->CheckRunning());
    if (std::chrono::steady_clock::now() > limit) return UnavailableError("the server does not listen");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

std::unique_ptr<RemoteServer> RemoteServer::At(const std::string& address, const std::string& token) {
  std::unique_ptr<RemoteServer> server(new RemoteServer);
  (address.starts_with("unix:") ? server->unix_address_ : server->tcp_address_) = address;
  server->token_ = token;
  return server;
}

RemoteOptions RemoteServer::OptionsFor(bool over_unix, RemotePath path) const {
  RemoteOptions options;
  options.addresses = {AddressOf(over_unix)};
  options.token = token_;
  options.path = path;
  return options;
}

Status RemoteServer::CheckRunning() {
  if (!process_ || process_->IsRunning()) return OkStatus();
  return UnavailableError("the server ended: " + LastLineOf(log_path_));
}

}  // namespace terrace::bench
