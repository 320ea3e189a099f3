#include "connectors/server/metrics_endpoint.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "lib/wire/file_descriptor.h"

namespace terrace::server {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kMaxConnections = 16;
constexpr size_t kMaxRequestBytes = 4096;
constexpr int kBacklog = 16;
constexpr std::chrono::milliseconds kAcceptPause(100);
constexpr std::string_view kEnd = "\r\n\r\n";

struct Connection {
  FileDescriptor socket;
  SteadyClock::time_point deadline;
  std::string request;
  std::string answer;  // empty: the request is not whole yet
  size_t sent = 0;
  // The answer was sent. What still comes is read and dropped, as a reset could overtake the answer.
  bool is_done = false;
};

std::string Answer(std::string_view code, std::string_view type, std::string_view body) {
  return "HTTP/1.1 " + std::string(code) + "\r\nContent-Type: " + std::string(type) +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" +
         std::string(body);
}

std::string Refusal(std::string_view code) { return Answer(code, "text/plain", ""); }

// A listening socket on 127.0.0.1.
Result<FileDescriptor> Listen(uint16_t& port) {
  FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (listener.get() < 0 || setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(listener.get(), generic, length) != 0 || listen(listener.get(), kBacklog) != 0 ||
      getsockname(listener.get(), generic, &length) != 0) {
    return UnavailableError("metrics_port: 127.0.0.1:" + std::to_string(port) +
                            " cannot be listened on: " + std::strerror(errno));
  }
  port = ntohs(address.sin_port);
  return listener;
}

class PollingEndpoint final : public MetricsEndpoint {
 public:
  PollingEndpoint(MetricsEndpointOptions options, FileDescriptor listener, FileDescriptor end, uint16_t port)
      : options_(std::move(options)),
        listener_(std::move(listener)),
        end_(std::move(end)),
        port_(port),
        thread_([this] { Run(); }) {}

  ~PollingEndpoint() override {
    const uint64_t one = 1;
    // An eventfd at 0 takes it without blocking.
    while (write(end_.get(), &one, sizeof(one)) < 0 && errno == EINTR) continue;
    thread_.join();
  }

  uint16_t port() const override { return port_; }

 private:
  void Run() {
    for (;;) {
      std::vector<pollfd> fds = {{end_.get(), POLLIN, 0}};
      // While all places are taken, the kernel's backlog holds who comes.
      const bool accepts = connections_.size() < kMaxConnections && SteadyClock::now() >= accepts_again_;
      fds.push_back({accepts ? listener_.get() : -1, POLLIN, 0});
      for (const Connection& connection : connections_) {
        const bool sends = !connection.answer.empty() && !connection.is_done;
        fds.push_back({connection.socket.get(), static_cast<short>(sends ? POLLOUT : POLLIN), 0});
      }
      if (poll(fds.data(), fds.size(), WaitMilliseconds()) < 0) continue;  // EINTR
      if (fds[0].revents != 0) return;
      const auto now = SteadyClock::now();
      std::vector<Connection> kept;
      for (size_t i = 0; i < connections_.size(); ++i) {
        Connection& connection = connections_[i];
        const bool lives = now < connection.deadline && (fds[i + 2].revents == 0 || Serve(connection));
        if (lives) kept.push_back(std::move(connection));
      }
      connections_ = std::move(kept);
      if (fds[1].revents != 0) Accept(now);
    }
  }

  int WaitMilliseconds() const {
    auto first = SteadyClock::time_point::max();
    if (SteadyClock::now() < accepts_again_) first = accepts_again_;
    for (const Connection& connection : connections_) first = std::min(first, connection.deadline);
    if (first == SteadyClock::time_point::max()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(first - SteadyClock::now());
    return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
  }

  void Accept(SteadyClock::time_point now) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) {
      // No descriptor left: who waits stays readable, and this would spin.
      if (errno != EAGAIN && errno != ECONNABORTED) accepts_again_ = now + kAcceptPause;
      return;
    }
    connections_.push_back({std::move(socket), now + options_.limit, "", "", 0, false});
  }

  // False: the connection is over.
  bool Serve(Connection& connection) {
    if (connection.is_done) return Drop(connection);
    if (connection.answer.empty() && !Receive(connection)) return false;
    return connection.answer.empty() || Send(connection);
  }

  bool Receive(Connection& connection) {
    char bytes[kMaxRequestBytes];
    const ssize_t got = recv(connection.socket.get(), bytes, kMaxRequestBytes - connection.request.size(), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    connection.request.append(bytes, static_cast<size_t>(got));
    if (connection.request.find(kEnd) != std::string::npos) {
      connection.answer = AnswerTo(connection.request);
    } else if (connection.request.size() == kMaxRequestBytes) {
      connection.answer = Refusal("431 Request Header Fields Too Large");
    }
    return true;
  }

  bool Send(Connection& connection) {
    const ssize_t put = send(connection.socket.get(), connection.answer.data() + connection.sent,
                             connection.answer.size() - connection.sent, MSG_NOSIGNAL);
    if (put < 0) return errno == EAGAIN || errno == EINTR;
    connection.sent += static_cast<size_t>(put);
    if (connection.sent < connection.answer.size()) return true;
    connection.is_done = true;
    return shutdown(connection.socket.get(), SHUT_WR) == 0;
  }

  static bool Drop(Connection& connection) {
    char bytes[kMaxRequestBytes];
    const ssize_t got = recv(connection.socket.get(), bytes, sizeof(bytes), 0);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
  }

  std::string AnswerTo(std::string_view request) const {
    const std::string_view line = request.substr(0, request.find("\r\n"));
    const size_t method_end = line.find(' ');
    const size_t target_end = line.rfind(' ');
    if (method_end == std::string_view::npos || target_end <= method_end ||
        !line.substr(target_end + 1).starts_with("HTTP/1.")) {
      return Refusal("400 Bad Request");
    }
    if (line.substr(0, method_end) != "GET") return Refusal("405 Method Not Allowed\r\nAllow: GET");
    const std::string_view target = line.substr(method_end + 1, target_end - method_end - 1);
    const std::string_view path = target.substr(0, target.find('?'));
    if (path == "/metrics") {
      return Answer("200 OK", "text/plain; version=0.0.4; charset=utf-8", options_.text());
    }
    if (path != "/healthz") return Refusal("404 Not Found");
    return options_.is_serving() ? Answer("200 OK", "text/plain", "ok\n")
                                 : Answer("503 Service Unavailable", "text/plain", "not serving\n");
  }

  const MetricsEndpointOptions options_;
  const FileDescriptor listener_;
  const FileDescriptor end_;
  const uint16_t port_;
  std::vector<Connection> connections_;  // of the thread alone, as is the next
  SteadyClock::time_point accepts_again_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(MetricsEndpointOptions options) {
  uint16_t port = options.port;
  Result<FileDescriptor> listener = Listen(port);
  if (!listener.ok()) return listener.status();
  FileDescriptor end(eventfd(0, EFD_CLOEXEC));
  if (end.get() < 0) return UnavailableError(std::string("no descriptor: ") + std::strerror(errno));
  return std::unique_ptr<MetricsEndpoint>(
      std::make_unique<PollingEndpoint>(std::move(options), *std::move(listener), std::move(end), port));
}

}  // namespace terrace::server
