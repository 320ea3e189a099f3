#include "lib/wire/bulk_stream.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace terrace {
namespace {

BulkMove OfSocketCall(ssize_t n, const char* call) {
  if (n >= 0) return {.n = static_cast<size_t>(n)};
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {.blocked = true};
  return {.status = UnavailableError(std::string(call) + ": " + std::strerror(errno))};
}

msghdr MessageOf(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());  // neither call writes to the vector
  message.msg_iovlen = parts.size();
  return message;
}

Status PeerClosed() { return UnavailableError("the peer closed the connection"); }

}  // namespace

BulkStream::BulkStream(int fd, SSL* tls) : fd_(fd), tls_(tls) {
  if (tls_ == nullptr) return;  // each call says that it does not block
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
  if (SSL_in_before(tls_)) SSL_set_options(tls_, SSL_OP_ENABLE_KTLS | SSL_OP_NO_RENEGOTIATION);
  SSL_set_mode(tls_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
}

BulkStream::~BulkStream() {
  if (tls_ != nullptr) SSL_free(tls_);
  if (fd_ >= 0) close(fd_);
}

void BulkStream::Disown() {
  fd_ = -1;
  tls_ = nullptr;
}

BulkMove BulkStream::Read(std::span<const iovec> to) {
  if (tls_ == nullptr) {
    msghdr message = MessageOf(to);
    const ssize_t n = recvmsg(fd_, &message, MSG_DONTWAIT);
    if (n == 0) return {.status = PeerClosed()};
    return OfSocketCall(n, "recvmsg");
  }
  BulkMove move;
  read_wants_write_ = false;
  for (const iovec& part : to) {
    for (size_t at = 0; at < part.iov_len;) {
      size_t n = 0;
      ERR_clear_error();
      const int answer =
          SSL_read_ex(tls_, static_cast<std::byte*>(part.iov_base) + at, part.iov_len - at, &n);
      if (!Account(Way::kRead, answer, n, move)) return move;
      at += n;
    }
  }
  return move;
}

BulkMove BulkStream::Write(std::span<const iovec> from) {
  if (tls_ == nullptr) {
    const msghdr message = MessageOf(from);
    return OfSocketCall(sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL), "sendmsg");
  }
  BulkMove move;
  write_wants_read_ = false;
  for (const iovec& part : from) {
    for (size_t at = 0; at < part.iov_len;) {
      size_t n = 0;
      ERR_clear_error();
      const int answer =
          SSL_write_ex(tls_, static_cast<const std::byte*>(part.iov_base) + at, part.iov_len - at, &n);
      if (!Account(Way::kWrite, answer, n, move)) return move;
      at += n;
    }
  }
  return move;
}

bool BulkStream::Account(Way way, int answer, size_t n, BulkMove& move) {
  if (answer > 0) {
    move.n += n;
    return true;
  }
  const int error = SSL_get_error(tls_, answer);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
    if (way == Way::kRead) read_wants_write_ = error == SSL_ERROR_WANT_WRITE;
    if (way == Way::kWrite) write_wants_read_ = error == SSL_ERROR_WANT_READ;
    move.blocked = true;
    return false;
  }
  if (error == SSL_ERROR_ZERO_RETURN) {
    move.status = PeerClosed();
    return false;
  }
  broken_ = true;
  const unsigned long reason = ERR_peek_error();
  const bool lost =
      error == SSL_ERROR_SYSCALL || ERR_GET_REASON(reason) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
  const char* text = ERR_reason_error_string(reason);
  const std::string message = std::string("TLS: ") + (text != nullptr ? text : "the connection was lost");
  move.status = lost ? UnavailableError(message) : DataLossError(message);
  return false;
}

uint32_t BulkStream::Events(bool writing) const {
  const bool wants_write = read_wants_write_ || (writing && !write_wants_read_);
  return EPOLLIN | (wants_write ? EPOLLOUT : 0u);
}

bool BulkStream::kernel_tls() const { return tls_ != nullptr && BIO_get_ktls_send(SSL_get_wbio(tls_)) != 0; }

void BulkStream::SayGoodbye() {
  if (tls_ == nullptr || broken_ || SSL_in_init(tls_)) return;
  ERR_clear_error();
  SSL_shutdown(tls_);  // an answer is not awaited, and a full socket not either
  ERR_clear_error();
}

}  // namespace terrace
