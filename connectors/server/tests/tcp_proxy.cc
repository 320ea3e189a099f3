#include "connectors/server/tests/tcp_proxy.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <deque>

namespace terrace::server {
namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kMaxQueuedBytes = size_t{1} << 20;  // per direction
constexpr auto kLatency = std::chrono::milliseconds(20);

sockaddr_in AddressOf(const std::string& host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET, host.c_str(), &address.sin_addr), 1);
  return address;
}

struct Piece {
  SteadyClock::time_point ready;
  std::string bytes;
};

struct Direction {
  std::deque<Piece> queue;
  size_t queued_bytes = 0;
  bool ended = false;  // nothing more comes in
};

}  // namespace

struct TcpProxy::Pair {
  int client = -1;
  int server = -1;
  Direction up;
  Direction down;
  uint64_t down_bytes = 0;  // since the fault began
  uint64_t fault_number = 0;
  bool is_stalled = false;

  ~Pair() {
    close(client);
    close(server);
  }
};

TcpProxy::TcpProxy(const std::string& listen_host, uint16_t listen_port, uint16_t target_port)
    : target_port_(target_port) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address = AddressOf(listen_host, listen_port);
  EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(listener_, 64), 0);
  socklen_t length = sizeof(address);
  EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length), 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
}

TcpProxy::~TcpProxy() {
  stopping_ = true;
  thread_.join();
  close(listener_);
}

void TcpProxy::Set(Fault fault, uint64_t fault_bytes) {
  fault_bytes_ = fault_bytes;
  fault_ = fault;
  ++fault_number_;
}

void TcpProxy::Accept() {
  while (true) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0) return;
    auto pair = std::make_unique<Pair>();
    pair->client = client;
    pair->server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pair->fault_number = fault_number_;
    const sockaddr_in address = AddressOf("127.0.0.1", target_port_);
    if (fault_ == Fault::kRefuse ||
        connect(pair->server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      ++num_faults_;
      continue;
    }
    const int on = 1;
    setsockopt(pair->client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(pair->server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    pairs_.push_back(std::move(pair));
  }
}

bool TcpProxy::Fill(Pair& pair, bool to_client) {
  Direction& direction = to_client ? pair.down : pair.up;
  while (!direction.ended && direction.queued_bytes < kMaxQueuedBytes) {
    std::string bytes(kReadBytes, '\0');
    const ssize_t got = recv(to_client ? pair.server : pair.client, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) direction.ended = true;
    bytes.resize(static_cast<size_t>(got));
    const auto wait = fault_ == Fault::kLatency ? kLatency : std::chrono::milliseconds(0);
    if (got > 0) direction.queue.push_back({SteadyClock::now() + wait, std::move(bytes)});
    direction.queued_bytes += static_cast<size_t>(got);
  }
  return true;
}

// What is in force now, before more goes to the client. False: the connection ends.
bool TcpProxy::Damage(Pair& pair) {
  const Fault fault = fault_;
  if (fault_number_ != pair.fault_number) {
    if (pair.is_stalled) return false;
    pair.fault_number = fault_number_;
    pair.down_bytes = 0;
  }
  if (fault == Fault::kRefuse) return false;
  if (pair.down_bytes < fault_bytes_) return true;
  if (fault == Fault::kReset) {
    const linger now{1, 0};
    setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    return false;
  }
  if (fault == Fault::kHalf) return false;
  if (fault == Fault::kStall && !pair.is_stalled) {
    pair.is_stalled = true;
    ++num_faults_;
  }
  return true;
}

bool TcpProxy::Drain(Pair& pair, bool to_client) {
  Direction& direction = to_client ? pair.down : pair.up;
  const int fd = to_client ? pair.client : pair.server;
  while (!direction.queue.empty() && direction.queue.front().ready <= SteadyClock::now()) {
    std::string& bytes = direction.queue.front().bytes;
    size_t count = bytes.size();
    const Fault fault = fault_;
    if (to_client && (fault == Fault::kReset || fault == Fault::kHalf || fault == Fault::kStall)) {
      // Up to the very byte.
      count = std::min<size_t>(count, fault_bytes_ > pair.down_bytes ? fault_bytes_ - pair.down_bytes : 0);
      if (count == 0) return true;
    }
    const ssize_t sent = send(fd, bytes.data(), count, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    direction.queued_bytes -= static_cast<size_t>(sent);
    if (to_client) {
      pair.down_bytes += static_cast<size_t>(sent);
      passed_bytes_ += static_cast<size_t>(sent);
    }
    if (static_cast<size_t>(sent) == bytes.size()) {
      direction.queue.pop_front();
    } else {
      bytes.erase(0, static_cast<size_t>(sent));
    }
  }
  if (direction.ended && direction.queue.empty()) shutdown(fd, SHUT_WR);
  return true;
}

bool TcpProxy::Serve(Pair& pair) {
  if (!Damage(pair)) {
    ++num_faults_;
    return false;
  }
  if (pair.is_stalled) return true;
  for (const bool to_client : {false, true}) {
    if (!Fill(pair, to_client) || !Drain(pair, to_client)) return false;
  }
  return !(pair.up.ended && pair.up.queue.empty()) && !(pair.down.ended && pair.down.queue.empty());
}

void TcpProxy::Run() {
  while (!stopping_) {
    std::vector<pollfd> polled{{listener_, POLLIN, 0}};
    for (const auto& pair : pairs_) {
      if (pair->is_stalled) continue;
      const auto wants = [](const Direction& in, const Direction& out) {
        return static_cast<short>((in.queued_bytes < kMaxQueuedBytes && !in.ended ? POLLIN : 0) |
                                  (out.queue.empty() ? 0 : POLLOUT));
      };
      polled.push_back({pair->client, wants(pair->up, pair->down), 0});
      polled.push_back({pair->server, wants(pair->down, pair->up), 0});
    }
    poll(polled.data(), polled.size(), 2);
    Accept();
    std::erase_if(pairs_, [this](const std::unique_ptr<Pair>& pair) { return !Serve(*pair); });
  }
  pairs_.clear();
}

}  // namespace terrace::server
