#include <fcntl.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "lib/base/status_macros.h"
#include "lib/wire/bulk_connection.h"
#include "lib/wire/bulk_stream.h"

namespace terrace {
namespace {

// OpenSSL writes without MSG_NOSIGNAL: while this lives, the thread takes the signal back.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    const timespec no_time{};
    while (!was_pending_ && sigtimedwait(&pipe_, nullptr, &no_time) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_;
};

// One call's time with a socket that the caller keeps.
class Exchange {
 public:
  Exchange(int fd, SSL* tls, Duration limit)
      : stream_(fd, tls), fd_(fd), deadline_(std::chrono::steady_clock::now() + limit) {}
  ~Exchange() { stream_.Disown(); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  Status Read(MutableBytes to) {
    while (!to.empty()) {
      const iovec part{to.data(), to.size()};
      TERRACE_ASSIGN_OR_RETURN(const size_t n, Moved(stream_.Read({&part, 1}), false));
      to = to.subspan(n);
    }
    return OkStatus();
  }
  Status Write(Bytes from) {
    while (!from.empty()) {
      const iovec part{const_cast<std::byte*>(from.data()), from.size()};  // is not written to
      TERRACE_ASSIGN_OR_RETURN(const size_t n, Moved(stream_.Write({&part, 1}), true));
      from = from.subspan(n);
    }
    return OkStatus();
  }

 private:
  // The bytes of one move, after a wait where it was blocked.
  Result<size_t> Moved(const BulkMove& move, bool writing) {
    TERRACE_RETURN_IF_ERROR(move.status);
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
    if (left.count() <= 0) return DeadlineExceededError("bulk handshake: the peer took too long");
    if (!move.blocked) return move.n;
    pollfd waited{.fd = fd_};
    const uint32_t events = stream_.Events(writing);
    if (events & EPOLLOUT) waited.events |= POLLOUT;
    if (!writing || !(events & EPOLLOUT)) waited.events |= POLLIN;
    const auto timeout_ms = std::min<int64_t>(left.count(), INT32_MAX);
    if (poll(&waited, 1, static_cast<int>(timeout_ms)) < 0 && errno != EINTR) {
      return UnavailableError(std::string("poll: ") + std::strerror(errno));
    }
    return move.n;
  }

  const NoSigpipe no_sigpipe_;
  BulkStream stream_;
  const int fd_;
  const TimePoint deadline_;
};

}  // namespace

Status BulkClientHandshake(int fd, SSL* tls, const BulkHello& hello, BulkWelcome& welcome, Duration limit) {
  Exchange exchange(fd, tls, limit);
  TERRACE_RETURN_IF_ERROR(exchange.Write(EncodeBulkHello(hello)));
  std::array<std::byte, kBulkWelcomeBytes> answer;
  TERRACE_RETURN_IF_ERROR(exchange.Read(answer));
  TERRACE_ASSIGN_OR_RETURN(welcome, DecodeBulkWelcome(answer));
  if (welcome.code == BulkCode::kOk && welcome.version != kBulkVersion) {
    return DataLossError("bulk welcome: version " + std::to_string(welcome.version));
  }
  return OkStatus();
}

Result<BulkHello> BulkServerHello(int fd, SSL* tls, Duration limit) {
  Exchange exchange(fd, tls, limit);
  std::array<std::byte, kBulkHelloBytes> hello;
  TERRACE_RETURN_IF_ERROR(exchange.Read(hello));
  return DecodeBulkHello(hello);
}

Status BulkServerAnswer(int fd, SSL* tls, const BulkWelcome& welcome, Duration limit) {
  return Exchange(fd, tls, limit).Write(EncodeBulkWelcome(welcome));
}

}  // namespace terrace
