#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "lib/base/status_macros.h"
#include "lib/wire/bulk_connection.h"
#include "lib/wire/bulk_loop.h"
#include "lib/wire/bulk_receiver.h"
#include "lib/wire/bulk_sender.h"
#include "lib/wire/bulk_stream.h"
#include "lib/wire/stall_watch.h"

namespace terrace {
namespace {

constexpr uint32_t kMaxThreads = 16;

// Asks, and goes on with whatever the kernel grants. TCP's buffers are left to its own tuning, which fixed
// sizes did not beat.
void TuneSocket(int fd) {
  const int on = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0) return;
  // A Unix socket: its default of 208 KiB wakes both sides more often than needed.
  const int bytes = 1 << 20;
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

// A connection as its owner and as its loop see it. The loop holds it until End.
class BulkSocket final : public BulkConnection,
                         public BulkLoopSocket,
                         public std::enable_shared_from_this<BulkSocket> {
 public:
  BulkSocket(std::unique_ptr<BulkStream> stream, BulkReactor::Connection connection, size_t max_queued_sends,
             std::shared_ptr<BulkLoop> loop)
      : loop_(std::move(loop)),
        stream_(std::move(stream)),
        fd_(stream_->fd()),
        kernel_tls_(stream_->kernel_tls()),
        receiver_(std::move(connection.landings)),
        sender_(connection.max_message_bytes, max_queued_sends),
        on_close_(std::move(connection.on_close)) {}

  void Send(uint64_t transfer, BufferRef frame, std::vector<FrameRange> ranges,
            std::function<void(const Status&)> sent) override {
    WakeIf(sender_.Add(transfer, std::move(frame), std::move(ranges), std::move(sent)));
  }
  void SendAbort(uint64_t transfer, BulkCode code) override { WakeIf(sender_.AddAbort(transfer, code)); }
  void CancelSend(uint64_t transfer) override { WakeIf(sender_.Cancel(transfer)); }
  void Close() override {
    closing_.store(true);
    WakeIf(true);
  }
  uint64_t queued_bytes() const override { return sender_.queued_bytes(); }
  bool kernel_tls() const override { return kernel_tls_; }

  int fd() const override { return fd_; }
  Turn Run(uint32_t events, MutableBytes scratch) override;
  bool CanStall() const override { return reading_.under_way() || writing_.under_way(); }
  bool IsStalled(Duration limit, TimePoint now) const override {
    return reading_.Exceeds(limit, now) || writing_.Exceeds(limit, now);
  }
  void End(const Status& status) override;
  void RunCallbacks() override { sender_.RunCallbacks(); }

 private:
  void WakeIf(bool needed) {
    if (needed && !loop_->Wake(shared_from_this())) RunCallbacks();
  }

  const std::shared_ptr<BulkLoop> loop_;
  std::unique_ptr<BulkStream> stream_;
  const int fd_;
  const bool kernel_tls_;
  std::atomic<bool> closing_{false};
  BulkReceiver receiver_;
  BulkSender sender_;
  StallWatch reading_;
  StallWatch writing_;
  std::function<void(const Status&)> on_close_;
};

BulkLoopSocket::Turn BulkSocket::Run(uint32_t events, MutableBytes scratch) {
  if (closing_.load()) return {.status = CancelledError("the connection was closed")};
  Turn turn;
  // Under TLS either direction may wait for either event.
  const bool both = stream_->is_tls();
  BulkReceiver::Turn received;
  if (both || (events & ~uint32_t{EPOLLOUT}) != 0) received = receiver_.Receive(*stream_, scratch);
  BulkSender::Turn sent;
  if (received.status.ok() && (both || (events & EPOLLOUT) != 0)) sent = sender_.Send(*stream_);
  RunCallbacks();
  turn.status = received.status.ok() ? sent.status : received.status;
  turn.again = received.again || sent.again;
  turn.events = stream_->Events(sender_.pending());
  const TimePoint now = std::chrono::steady_clock::now();
  reading_.Note(receiver_.in_message(), received.moved, now);
  writing_.Note(sender_.pending(), sent.moved, now);
  return turn;
}

void BulkSocket::End(const Status& status) {
  receiver_.Stop();
  sender_.Stop(status);
  stream_->SayGoodbye();
  stream_.reset();
  RunCallbacks();
  const auto on_close = std::exchange(on_close_, nullptr);
  if (on_close) on_close(status);
}

class EpollBulkReactor final : public BulkReactor {
 public:
  explicit EpollBulkReactor(const BulkReactorOptions& options) : options_(options) {}
  ~EpollBulkReactor() override {
    for (const auto& loop : loops_) loop->Stop();
  }

  Status StartLoops() {
    for (uint32_t i = 0; i < options_.threads; ++i) {
      TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<BulkLoop> loop, BulkLoop::Start(i, options_.stall_limit));
      loops_.push_back(std::move(loop));
    }
    return OkStatus();
  }

  Result<std::shared_ptr<BulkConnection>> Add(Connection connection) override {
    auto stream = std::make_unique<BulkStream>(connection.fd, connection.tls);
    const uint64_t max = connection.max_message_bytes;
    if (connection.landings == nullptr) return InvalidArgumentError("landings: missing");
    if (max < kFrameAlignment || max > kMaxBulkMessageBytes || max % kFrameAlignment != 0) {
      return InvalidArgumentError("max_message_bytes: " + std::to_string(max) +
                                  ", allowed are multiples of 4096 up to " +
                                  std::to_string(kMaxBulkMessageBytes));
    }
    TuneSocket(connection.fd);
    const auto fewest = std::min_element(loops_.begin(), loops_.end(), [](const auto& a, const auto& b) {
      return a->num_sockets() < b->num_sockets();
    });
    auto socket = std::make_shared<BulkSocket>(std::move(stream), std::move(connection),
                                               options_.max_queued_sends, *fewest);
    if (!(*fewest)->Add(socket)) return CancelledError("the reactor ended");
    return std::shared_ptr<BulkConnection>(std::move(socket));
  }

 private:
  const BulkReactorOptions options_;
  std::vector<std::shared_ptr<BulkLoop>> loops_;
};

}  // namespace

Status BulkReactorOptions::Validate() const {
  if (threads < 1 || threads > kMaxThreads) {
    return InvalidArgumentError("threads: " + std::to_string(threads) + ", allowed are 1 to 16");
  }
  if (stall_limit <= Duration(0)) return InvalidArgumentError("stall_limit: must be positive");
  if (max_queued_sends < 1) return InvalidArgumentError("max_queued_sends: must be positive");
  return OkStatus();
}

Result<std::unique_ptr<BulkReactor>> BulkReactor::Start(const BulkReactorOptions& options) {
  if (Status valid = options.Validate(); !valid.ok()) return valid;
  auto reactor = std::make_unique<EpollBulkReactor>(options);
  if (Status started = reactor->StartLoops(); !started.ok()) return started;
  return std::unique_ptr<BulkReactor>(std::move(reactor));
}

}  // namespace terrace
