// BulkStream: one connected socket, plain or under TLS, that never blocks. Used by one thread at a time.
#pragma once

#include <openssl/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "terrace/bytes.h"
#include "terrace/status.h"

namespace terrace {

// Bytes that moved, and whether more may move at once. Not OK: the connection is over (kUnavailable, or
// kDataLoss where TLS found the bytes wrong).
struct BulkMove {
  size_t n = 0;
  bool blocked = false;  // until epoll says so
  Status status;
};

class BulkStream {
 public:
  // Owns both; `tls` may be null. TLS whose handshake was not begun makes it on the way, and lets the kernel
  // encrypt where that can.
  BulkStream(int fd, SSL* tls);
  ~BulkStream();
  BulkStream(const BulkStream&) = delete;
  BulkStream& operator=(const BulkStream&) = delete;

  BulkMove Read(std::span<const iovec> to);
  BulkMove Write(std::span<const iovec> from);

  // What epoll is to wait for, where `writing` says that there is something to write.
  uint32_t Events(bool writing) const;
  // The socket and its TLS are left to the caller.
  void Disown();
  int fd() const { return fd_; }
  bool is_tls() const { return tls_ != nullptr; }
  bool kernel_tls() const;
  // Tells a TLS peer that the end is meant, as far as that goes without waiting.
  void SayGoodbye();

 private:
  enum class Way { kRead, kWrite };
  // Takes in what an SSL call of `way` answered; false where the loop around it is to stop.
  bool Account(Way way, int answer, size_t n, BulkMove& move);

  int fd_;
  SSL* tls_;
  bool broken_ = false;  // TLS cannot go on
  bool read_wants_write_ = false;
  bool write_wants_read_ = false;
};

}  // namespace terrace
