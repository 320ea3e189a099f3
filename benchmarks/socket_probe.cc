#include "benchmarks/socket_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "lib/base/status_macros.h"

namespace terrace::bench {
namespace {

constexpr size_t kStepBytes = size_t{1} << 20;  // of one read or write: what was read is in the cache
constexpr int kBacklog = 64;

struct RunRequest {
  uint64_t direction = 0;
  uint64_t first = 0;
  uint64_t step = 1;
  uint64_t count = 0;
  uint64_t value_bytes = 0;
};

Status SocketError(const char* what, int fd) {
  const Status status = UnavailableError(std::string(what) + ": " + std::strerror(errno));
  if (fd >= 0) close(fd);
  return status;
}

Result<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidArgumentError("a socket's path of " + std::to_string(path.size()) +
                                " bytes, allowed: " + std::to_string(sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

sockaddr_in LoopbackAddress(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

template <typename Move>
bool MoveValues(const ValueRing& ring, const RunRequest& request, Move move) {
  for (uint64_t i = 0; i < request.count; ++i) {
    const MutableBytes value = ring.Value(request.first + i * request.step, request.value_bytes);
    if (!move(value.data(), value.size())) return false;
  }
  return true;
}

void ServeConnection(int fd, const ValueRing& ring) {
  RunRequest request;
  while (ReadAll(fd, &request, sizeof(request)) && request.value_bytes > 0) {
    const bool is_get = request.direction == static_cast<uint64_t>(Direction::kGet);
    const auto move = [&](std::byte* bytes, size_t n) {
      return is_get ? WriteAll(fd, bytes, n) : ReadAll(fd, bytes, n);
    };
    const char taken = 1;
    if (!MoveValues(ring, request, move) || (!is_get && !WriteAll(fd, &taken, 1))) break;
  }
  close(fd);
}

bool RunConnection(int fd, const ValueRing& ring, const RunRequest& request) {
  if (!WriteAll(fd, &request, sizeof(request))) return false;
  const bool is_get = request.direction == static_cast<uint64_t>(Direction::kGet);
  const auto move = [&](std::byte* bytes, size_t n) {
    return is_get ? ReadAll(fd, bytes, n) : WriteAll(fd, bytes, n);
  };
  char taken = 0;
  return MoveValues(ring, request, move) && (is_get || ReadAll(fd, &taken, 1));
}

}  // namespace

bool ReadAll(int fd, void* bytes, size_t n) {
  auto* at = static_cast<char*>(bytes);
  while (n > 0) {
    const ssize_t got = recv(fd, at, std::min(n, kStepBytes), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    n -= static_cast<size_t>(got);
  }
  return true;
}

bool WriteAll(int fd, const void* bytes, size_t n) {
  const auto* at = static_cast<const char*>(bytes);
  while (n > 0) {
    const ssize_t sent = send(fd, at, std::min(n, kStepBytes), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    n -= static_cast<size_t>(sent);
  }
  return true;
}

Result<int> ConnectTcp(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = LoopbackAddress(port);
  if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return SocketError("connect to loopback", fd);
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

Result<int> ConnectUnix(const std::string& path) {
  TERRACE_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return SocketError(path.c_str(), fd);
  }
  return fd;
}

Result<int> ListenTcp(uint16_t& port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = LoopbackAddress(0);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (fd < 0 || bind(fd, generic, length) != 0 || listen(fd, kBacklog) != 0 ||
      getsockname(fd, generic, &length) != 0) {
    return SocketError("listen on loopback", fd);
  }
  port = ntohs(address.sin_port);
  return fd;
}

Result<int> ListenUnix(const std::string& path) {
  TERRACE_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(fd, kBacklog) != 0) {
    return SocketError(path.c_str(), fd);
  }
  return fd;
}

void ServeSocketProbe(const std::vector<int>& listeners, std::shared_ptr<const ValueRing> ring) {
  for (const int listener : listeners) {
    std::thread([listener, ring] {
      for (int fd = accept(listener, nullptr, nullptr); fd >= 0; fd = accept(listener, nullptr, nullptr)) {
        const int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on,
                   sizeof(on));  // refused by Unix sockets, which need none
        std::thread([fd, ring] { ServeConnection(fd, *ring); }).detach();
      }
    }).detach();
  }
}

Result<std::unique_ptr<SocketProbe>> SocketProbe::Connect(const std::function<Result<int>()>& connect,
                                                          const ValueRing& ring) {
  std::unique_ptr<SocketProbe> probe(new SocketProbe(ring));
  while (probe->sockets_.size() < kMaxConnections) {
    TERRACE_ASSIGN_OR_RETURN(const int fd, connect());
    probe->sockets_.push_back(fd);
  }
  return probe;
}

SocketProbe::~SocketProbe() {
  for (const int fd : sockets_) close(fd);
}

Result<double> SocketProbe::Run(Direction direction, uint32_t connections, const ValueBatch& values) {
  std::atomic<bool> is_whole = true;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < connections; ++i) {
    const RunRequest request{.direction = static_cast<uint64_t>(direction),
                             .first = i,
                             .step = connections,
                             .count = values.ShareOf(i, connections),
                             .value_bytes = values.value_bytes};
    threads.emplace_back([this, &is_whole, i, request] {
      if (!RunConnection(sockets_[i], ring_, request)) is_whole = false;
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!is_whole) return UnavailableError("the socket probe lost its connection");
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace terrace::bench
