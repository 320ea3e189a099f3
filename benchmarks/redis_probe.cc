#include "benchmarks/redis_probe.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>

#include "benchmarks/socket_probe.h"
#include "lib/base/status_macros.h"

namespace terrace::bench {
namespace {

constexpr uint64_t kCommandsAhead = 2;
constexpr std::chrono::seconds kStartLimit(10);

// "*2\r\n$3\r\nGET\r\n$4\r\nkey7\r\n"
std::string Command(std::string_view name, const std::string& key, bool has_value, uint64_t value_bytes) {
  std::string text = has_value ? "*3\r\n" : "*2\r\n";
  text += "$3\r\n" + std::string(name) + "\r\n$" + std::to_string(key.size()) + "\r\n" + key + "\r\n";
  if (has_value) text += "$" + std::to_string(value_bytes) + "\r\n";
  return text;
}

bool Expect(int fd, std::string_view expected) {
  std::string answer(expected.size(), '\0');
  return ReadAll(fd, answer.data(), answer.size()) && answer == expected;
}

}  // namespace

Result<std::unique_ptr<RedisServer>> RedisServer::Start(const std::string& directory) {
  std::unique_ptr<RedisServer> server(new RedisServer);
  server->unix_path_ = directory + "/redis.sock";
  // A free port, given back for the server to take.
  TERRACE_ASSIGN_OR_RETURN(const int listener, ListenTcp(server->tcp_port_));
  close(listener);
  TERRACE_ASSIGN_OR_RETURN(
      server->process_,
      ChildProcess::Execute({"redis-server", "--port", std::to_string(server->tcp_port_), "--bind",
                             "127.0.0.1", "--unixsocket", server->unix_path_, "--unixsocketperm", "700",
                             "--save", "", "--appendonly", "no", "--dir", directory},
                            directory + "/redis.log"));
  const auto limit = std::chrono::steady_clock::now() + kStartLimit;
  while (server->process_->IsRunning() && std::chrono::steady_clock::now() < limit) {
    if (const Result<int> fd = ConnectUnix(server->unix_path_); fd.ok()) {
      close(*fd);
      return server;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return NotFoundError("no redis-server that starts");
}

Result<std::unique_ptr<RedisProbe>> RedisProbe::Connect(const RedisServer& server, bool over_unix,
                                                        const ValueRing& ring) {
  std::unique_ptr<RedisProbe> probe(new RedisProbe(ring));
  while (probe->sockets_.size() < kMaxConnections) {
    TERRACE_ASSIGN_OR_RETURN(const int fd,
                             over_unix ? ConnectUnix(server.unix_path()) : ConnectTcp(server.tcp_port()));
    probe->sockets_.push_back(fd);
  }
  return probe;
}

RedisProbe::~RedisProbe() {
  for (const int fd : sockets_) close(fd);
}

Result<double> RedisProbe::Run(Direction direction, uint32_t connections, const ValueBatch& values) {
  std::atomic<bool> is_right = true;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < connections; ++i) {
    threads.emplace_back([this, &is_right, &values, i, connections, direction] {
      if (!RunConnection(i, connections, direction, values)) is_right = false;
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!is_right) return UnavailableError("Redis gave another answer than expected");
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

bool RedisProbe::RunConnection(uint32_t index, uint32_t connections, Direction direction,
                               const ValueBatch& values) {
  const int fd = sockets_[index];
  const uint64_t count = values.ShareOf(index, connections);
  const bool is_put = direction == Direction::kPut;
  const std::string value_head = "$" + std::to_string(values.value_bytes) + "\r\n";
  uint64_t sent = 0;
  for (uint64_t answered = 0; answered < count; ++answered) {
    for (; sent < std::min(count, answered + kCommandsAhead); ++sent) {
      const uint64_t number = index + sent * connections;
      const std::string command =
          Command(is_put ? "SET" : "GET", "value" + std::to_string(number), is_put, values.value_bytes);
      if (!WriteAll(fd, command.data(), command.size())) return false;
      if (!is_put) continue;
      const MutableBytes value = ring_.Value(number, values.value_bytes);
      if (!WriteAll(fd, value.data(), value.size()) || !WriteAll(fd, "\r\n", 2)) return false;
    }
    if (is_put) {
      if (!Expect(fd, "+OK\r\n")) return false;
      continue;
    }
    const MutableBytes value = ring_.Value(index + answered * connections, values.value_bytes);
    if (!Expect(fd, value_head) || !ReadAll(fd, value.data(), value.size()) || !Expect(fd, "\r\n")) {
      return false;
    }
  }
  return true;
}

Status RedisProbe::Clear() {
  constexpr std::string_view kFlush = "*1\r\n$8\r\nFLUSHALL\r\n";
  if (!WriteAll(sockets_[0], kFlush.data(), kFlush.size()) || !Expect(sockets_[0], "+OK\r\n")) {
    return UnavailableError("Redis gave another answer than expected");
  }
  return OkStatus();
}

}  // namespace terrace::bench
