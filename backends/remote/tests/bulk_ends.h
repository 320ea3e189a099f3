// BulkEnds: the server's ends of bulk sockets, in a test's hands.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/wire/bulk_connection.h"
#include "lib/wire/bulk_message.h"
#include "lib/wire/file_descriptor.h"
#include "proto/terrace/v1/cache.pb.h"

namespace terrace::remote {

// Numbered as they were accepted. Ready once a client has a session.
class BulkEnds {
 public:
  explicit BulkEnds(size_t count) : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_.get(), generic, length), 0);
    EXPECT_EQ(listen(listener_.get(), 8), 0);
    EXPECT_EQ(getsockname(listener_.get(), generic, &length), 0);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this, count] {
      for (size_t i = 0; i < count; ++i) {
        FileDescriptor fd(accept(listener_.get(), nullptr, nullptr));
        EXPECT_TRUE(BulkServerHello(fd.get(), nullptr).ok());
        EXPECT_TRUE(BulkServerAnswer(fd.get(), nullptr, {}).ok());
        fds_.push_back(std::move(fd));
      }
    });
  }
  ~BulkEnds() {
    shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
  }
  void Offer(size_t count, v1::BulkOffer* offer) const {
    offer->set_tcp_port(port_);
    for (size_t i = 0; i < count; ++i) offer->add_tokens(std::string(sizeof(OneTimeToken), 't'));
  }
  void SendHeader(size_t number, uint64_t transfer, uint64_t length) {
    Send(number, EncodeBulkMessage({.transfer = transfer, .length = length}));
  }
  void Send(size_t number, Bytes bytes) {
    EXPECT_EQ(send(fds_[number].get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Everything sent lies with the other side's kernel.
  void AwaitDelivered(size_t number) {
    int left = 1;
    while (ioctl(fds_[number].get(), SIOCOUTQ, &left) == 0 && left > 0) std::this_thread::yield();
  }

  // The client has closed it, after it read what was sent before.
  void AwaitClosed(size_t number) {
    const timeval minute{.tv_sec = 60, .tv_usec = 0};
    EXPECT_EQ(setsockopt(fds_[number].get(), SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof(minute)), 0);
    char byte;
    while (recv(fds_[number].get(), &byte, 1, 0) > 0) {
    }
  }

 private:
  const FileDescriptor listener_;
  uint16_t port_ = 0;
  std::vector<FileDescriptor> fds_;
  std::thread acceptor_;
};

}  // namespace terrace::remote
