// Bare connections that a test holds in numbers.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace terrace::server {

// As many open files as this process may ever have, and no more than the tests need.
inline size_t RaiseFileLimit() {
  rlimit limit{};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = std::max<rlim_t>(limit.rlim_cur, std::min<rlim_t>(limit.rlim_max, 8192));
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  return limit.rlim_cur;
}

class SocketSwarm {
 public:
  SocketSwarm() = default;
  ~SocketSwarm() {
    for (const int fd : fds_) close(fd);
  }
  SocketSwarm(const SocketSwarm&) = delete;
  SocketSwarm& operator=(const SocketSwarm&) = delete;

  void ConnectTcp(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    Connect(AF_INET, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  void ConnectUnix(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    ASSERT_LT(path.size(), sizeof(address.sun_path));
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    Connect(AF_UNIX, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  // What the other side has closed takes none.
  void SendAll(const std::string& bytes) {
    for (const int fd : fds_) (void)send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

 private:
  void Connect(int family, const sockaddr* address, socklen_t length) {
    fds_.push_back(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fds_.back(), address, length), 0) << std::strerror(errno);
  }
  std::vector<int> fds_;
};

}  // namespace terrace::server
