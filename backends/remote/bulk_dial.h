// BulkDialer: connects the sockets of the bulk path, with the TLS of the gRPC channel. Blocks; one thread.
#pragma once

#include <openssl/types.h>

#include <memory>
#include <string>

#include "backends/remote/server_address.h"
#include "terrace/remote_backend.h"
#include "terrace/status.h"
#include "terrace/time.h"

namespace terrace::remote {

// Owned socket, and TLS on it whose handshake was not made yet (null: plain).
class DialedSocket {
 public:
  DialedSocket(int fd, SSL* tls) : fd_(fd), tls_(tls) {}
  DialedSocket(DialedSocket&& other) noexcept;
  DialedSocket& operator=(DialedSocket&&) = delete;
  ~DialedSocket();

  int fd() const { return fd_; }
  SSL* tls() const { return tls_; }
  void Disown();  // somebody else owns both now

 private:
  int fd_;
  SSL* tls_;
};

class BulkDialer {
 public:
  // With `tls.use_tls`: roots, own certificate and the name that is expected (of the address, unless tls
  // names another). kInvalidArgument: a PEM text that does not parse.
  static Result<std::unique_ptr<BulkDialer>> Make(const RemoteTls& tls);
  ~BulkDialer();

  Result<DialedSocket> DialUnix(const std::string& path, TimePoint deadline) const;
  // Each address of the host in turn.
  Result<DialedSocket> DialTcp(const std::string& host, uint16_t port, bool with_tls,
                               TimePoint deadline) const;

 private:
  BulkDialer(const RemoteTls& tls, SSL_CTX* context);
  Result<SSL*> MakeTls(int fd, const std::string& host) const;

  const std::string expected_name_;  // empty: the address's host
  SSL_CTX* const context_;           // null without TLS
};

}  // namespace terrace::remote
