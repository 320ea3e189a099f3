#include "connectors/server/bulk_listener.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "connectors/server/bulk_tls.h"
#include "connectors/server/listen_address.h"
#include "connectors/server/work_queue.h"
#include "lib/wire/file_descriptor.h"

namespace terrace::server {
namespace {

// How often sockets that have sent a part of their hello are looked at again.
constexpr Duration kWithoutDescriptorsPause = std::chrono::milliseconds(100);
constexpr int kLookAgainMs = 20;
constexpr size_t kTlsRecordHeader = 5;
constexpr size_t kMaxPeek = 4096;
constexpr size_t kMaxHandshakesWaiting = 64;

// A socket that was accepted and has not said enough yet.
struct Pending {
  FileDescriptor fd;
  bool over_tls = false;
  bool has_some = false;  // a part of the hello: polling would not wait any more
  TimePoint since;
};

class BulkListenerOverSockets final : public BulkListener {
 public:
  BulkListenerOverSockets(const BulkListenerOptions& options, const BulkListenerParts& parts)
      : options_(options),
        parts_(parts),
        handshakes_("tc-handshake", options.handshake_threads, kMaxHandshakesWaiting) {}
  ~BulkListenerOverSockets() override {
    stopping_ = true;
    const uint64_t one = 1;
    // An eventfd takes this; the thread looks by itself soon in any case.
    if (wake_.get() >= 0 && write(wake_.get(), &one, sizeof(one)) < 0) stopping_ = true;
    if (acceptor_.joinable()) acceptor_.join();
    handshakes_.Stop();
    if (!options_.unix_path.empty() && unix_.get() >= 0) unlink(options_.unix_path.c_str());
  }

  Status Listen() {
    if (options_.tls.is_set()) {
      Result<SslContextPtr> context = MakeServerTlsContext(options_.tls);
      if (!context.ok()) return context.status();
      tls_ = std::move(*context);
    }
    if (!options_.tcp_host.empty()) {
      Result<FileDescriptor> fd = ListenTcp({options_.tcp_host, 0}, tcp_port_);
      if (!fd.ok()) return fd.status();
      tcp_ = *std::move(fd);
    }
    if (!options_.unix_path.empty()) {
      Result<FileDescriptor> fd = ListenUnix(options_.unix_path);
      if (!fd.ok()) return fd.status();
      unix_ = *std::move(fd);
    }
    wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (wake_.get() < 0) return ResourceExhaustedError("no descriptor for the bulk listener");
    acceptor_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "tc-bulk-accept");
      Run();
    });
    return OkStatus();
  }

  uint16_t tcp_port() const override { return tcp_port_; }
  void Drain() override { draining_ = true; }
  size_t num_connections() const override { return connected_->load(); }

 private:
  void Run() {
    while (!stopping_.load()) {
      std::vector<pollfd> polled;
      const auto add = [&polled](int fd) { polled.push_back({fd, POLLIN, 0}); };
      add(wake_.get());
      // -1 is passed over: without descriptors to accept with, a listening socket is ready all the time.
      const bool accepts = Clock::Real()->Now() >= accepts_again_at_;
      add(accepts ? tcp_.get() : -1);
      add(accepts ? unix_.get() : -1);
      for (const Pending& pending : pending_) add(pending.has_some ? -1 : pending.fd.get());
      poll(polled.data(), polled.size(), pending_.empty() && accepts ? 1000 : kLookAgainMs);
      if (accepts) {
        Accept(tcp_, tls_ != nullptr);
        Accept(unix_, false);
      }
      const TimePoint now = Clock::Real()->Now();
      std::erase_if(pending_, [&](Pending& pending) { return !StaysPending(pending, now); });
    }
  }

  void Accept(const FileDescriptor& listening, bool over_tls) {
    if (listening.get() < 0) return;
    // So many per turn: those that wait already get theirs in between.
    for (size_t i = 0; i < options_.max_pending; ++i) {
      FileDescriptor fd(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (fd.get() < 0) {
        if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
          parts_.metrics->CountRefusal("bulk_accept");
          accepts_again_at_ = Clock::Real()->Now() + kWithoutDescriptorsPause;
        }
        return;
      }
      if (connected_->load() + pending_.size() >= options_.max_connections) {
        parts_.metrics->CountRefusal("bulk_connections");
        continue;
      }
      if (pending_.size() >= options_.max_pending) {
        parts_.metrics->CountRefusal("bulk_pending");
        pending_.erase(pending_.begin());  // the oldest
      }
      pending_.push_back({std::move(fd), over_tls, false, Clock::Real()->Now()});
    }
  }

  // False: it was handed on, or dropped.
  bool StaysPending(Pending& pending, TimePoint now) {
    std::byte peeked[kMaxPeek];
    const ssize_t n = recv(pending.fd.get(), peeked, sizeof(peeked), MSG_PEEK | MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
    size_t needed = kBulkHelloBytes;
    if (pending.over_tls) {
      needed = kTlsRecordHeader;
      if (n >= static_cast<ssize_t>(kTlsRecordHeader)) {
        const size_t record = (std::to_integer<size_t>(peeked[3]) << 8) | std::to_integer<size_t>(peeked[4]);
        needed = std::min(kTlsRecordHeader + record, kMaxPeek);
      }
    }
    if (n >= static_cast<ssize_t>(needed)) {
      HandOn(std::move(pending));
      return false;
    }
    pending.has_some = n > 0;
    if (now - pending.since < options_.handshake_limit) return true;
    parts_.metrics->CountRefusal("bulk_silent");
    return false;
  }

  void HandOn(Pending pending) {
    const auto held = std::make_shared<Pending>(std::move(pending));
    if (!handshakes_.Post([this, held] { Handshake(std::move(held->fd), held->over_tls); })) {
      parts_.metrics->CountRefusal("bulk_handshakes");
    }
  }

  void Handshake(FileDescriptor fd, bool over_tls) {
    SslPtr ssl;
    if (over_tls) {
      ssl.reset(SSL_new(tls_.get()));
      if (!ssl || SSL_set_fd(ssl.get(), fd.get()) != 1) return;
      SSL_set_accept_state(ssl.get());
    }
    const Result<BulkHello> hello = BulkServerHello(fd.get(), ssl.get(), options_.handshake_limit);
    if (!hello.ok()) {
      parts_.metrics->CountRefusal("bulk_hello");
      parts_.log->Log(LogLevel::kInfo, "server",
                      "a bulk connection was dropped: " + hello.status().ToString());
      return;
    }
    BulkWelcome welcome;
    SessionRef session;
    if (hello->version != kBulkVersion) {
      welcome.code = BulkCode::kVersion;
    } else if (draining_.load()) {
      welcome.code = BulkCode::kDraining;
    } else {
      session = parts_.sessions->Redeem(hello->session, hello->token, SessionTable::Purpose::kBulk);
      if (!session) welcome.code = BulkCode::kRefused;
    }
    if (session) session->ExpectBulk();
    const Status answered = BulkServerAnswer(fd.get(), ssl.get(), welcome, options_.handshake_limit);
    if (!session) return parts_.metrics->CountRefusal("bulk_token");
    if (!answered.ok() || !HandToReactor(session, std::move(fd), std::move(ssl))) session->BulkFailed();
  }

  bool HandToReactor(const SessionRef& session, FileDescriptor fd, SslPtr ssl) {
    // The connection may end before Add has returned it.
    struct Slot {
      std::mutex mutex;
      std::shared_ptr<BulkConnection> connection;
      bool closed = false;
    };
    const auto slot = std::make_shared<Slot>();
    BulkReactor::Connection connection;
    connection.fd = fd.release();
    connection.tls = ssl.release();
    connection.landings = session->landings;
    ++*connected_;
    connection.on_close = [slot, connected = connected_,
                           weak = std::weak_ptr<Session>(session)](const Status& why) {
      --*connected;
      std::shared_ptr<BulkConnection> gone;
      {
        const std::lock_guard lock(slot->mutex);
        slot->closed = true;
        gone = std::move(slot->connection);
      }
      const SessionRef owner = weak.lock();
      if (!owner) return;
      if (gone) owner->RemoveBulk(gone.get());
      // Who breaks a rule is not trusted with the rest either.
      if (why.code() == StatusCode::kDataLoss) owner->landings->FailAll(why);
    };
    Result<std::shared_ptr<BulkConnection>> added = parts_.reactor->Add(std::move(connection));
    if (!added.ok()) {
      --*connected_;
      return false;
    }
    session->AddBulk(*added);
    bool closed = false;
    {
      const std::lock_guard lock(slot->mutex);
      closed = slot->closed;
      if (!closed) slot->connection = *added;
    }
    if (closed) session->RemoveBulk(added->get());
    return true;
  }

  const BulkListenerOptions options_;
  const BulkListenerParts parts_;
  SslContextPtr tls_;
  FileDescriptor tcp_;
  FileDescriptor unix_;
  FileDescriptor wake_;
  uint16_t tcp_port_ = 0;
  std::vector<Pending> pending_;  // the acceptor's alone; oldest first
  std::atomic<bool> stopping_{false};
  std::atomic<bool> draining_{false};
  // Shared: a connection may outlive the listener.
  const std::shared_ptr<std::atomic<size_t>> connected_ = std::make_shared<std::atomic<size_t>>(0);
  WorkQueue handshakes_;
  TimePoint accepts_again_at_{};  // the acceptor's own
  std::thread acceptor_;
};

}  // namespace

Result<std::unique_ptr<BulkListener>> BulkListener::Start(const BulkListenerOptions& options,
                                                          const BulkListenerParts& parts) {
  auto listener = std::make_unique<BulkListenerOverSockets>(options, parts);
  if (const Status listening = listener->Listen(); !listening.ok()) return listening;
  return std::unique_ptr<BulkListener>(std::move(listener));
}

}  // namespace terrace::server
