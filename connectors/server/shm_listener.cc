#include "connectors/server/shm_listener.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "connectors/server/shm_area.h"
#include "lib/wire/file_descriptor.h"
#include "lib/wire/shm_message.h"

namespace terrace::server {
namespace {

using SteadyClock = std::chrono::steady_clock;

// How long nobody is accepted when this process is out of descriptors.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
constexpr int kListenBacklog = 64;

Status ErrnoStatus(const std::string& what) { return UnavailableError(what + ": " + std::strerror(errno)); }

// Removes the socket of a server that is gone; nothing else.
Status RemoveStaleSocket(const std::string& path, const sockaddr_un& address) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) return OkStatus();
  if (!S_ISSOCK(found.st_mode)) return UnavailableError(path + " exists and is no socket");
  const FileDescriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno != ECONNREFUSED) {
    return UnavailableError("another process listens at " + path);
  }
  if (unlink(path.c_str()) != 0) return ErrnoStatus("removing " + path);
  return OkStatus();
}

Result<FileDescriptor> Listen(const std::string& path, bool for_others) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return InvalidArgumentError("socket path \"" + path + "\": 1 to " +
                                std::to_string(sizeof(address.sun_path) - 1) + " bytes are allowed");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  if (Status stale = RemoveStaleSocket(path, address); !stale.ok()) return stale;
  FileDescriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Nobody can connect before listen.
  if (!listener || bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), for_others ? 0666 : 0600) != 0 || listen(listener.get(), kListenBacklog) != 0) {
    return ErrnoStatus("listening at " + path);
  }
  return listener;
}

bool SendWelcome(int fd, const ShmWelcome& welcome, const std::array<int, 3>* descriptors) {
  std::array<std::byte, kShmWelcomeBytes> bytes = EncodeShmWelcome(welcome);
  iovec vector{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 3)> control{};
  if (descriptors != nullptr) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * 3);
    std::memcpy(CMSG_DATA(header), descriptors->data(), sizeof(int) * 3);
  }
  return sendmsg(fd, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

struct Peer {
  std::shared_ptr<FileDescriptor> socket;
  std::array<std::byte, kShmHelloBytes> hello{};
  size_t received = 0;
  TimePoint hello_until;
  std::optional<SessionId> session;  // after the welcome
  std::weak_ptr<SessionShmArea> area;
};

class EpollShmListener final : public ShmListener {
 public:
  EpollShmListener(const ShmListenerOptions& options, SessionTable* sessions)
      : options_(options), sessions_(sessions) {}

  ~EpollShmListener() override {
    if (!thread_.joinable()) return;
    const uint64_t one = 1;
    // It cannot fail: the counter is far from its end.
    (void)!write(wake_.get(), &one, sizeof(one));
    thread_.join();
    unlink(options_.path.c_str());
  }

  Status Open() {
    Result<FileDescriptor> listener = Listen(options_.path, !options_.users.empty());
    if (!listener.ok()) return listener.status();
    listener_ = *std::move(listener);
    epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
    wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!epoll_ || !wake_ || !Watch(listener_.get()) || !Watch(wake_.get())) {
      unlink(options_.path.c_str());
      return ErrnoStatus("watching " + options_.path);
    }
    thread_ = std::thread([this] { Run(); });
    pthread_setname_np(thread_.native_handle(), "terrace-shm");
    return OkStatus();
  }

  void Reap() override {
    for (const std::shared_ptr<SessionShmArea>& area : Areas()) area->Sweep();
  }
  size_t num_clients() const override { return Areas().size(); }
  size_t num_places() const override {
    size_t places = 0;
    for (const std::shared_ptr<SessionShmArea>& area : Areas()) places += area->num_places();
    return places;
  }

 private:
  bool Watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP;
    event.data.fd = fd;
    return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }

  // Not under the lock where they are used: the last reference may be theirs.
  std::vector<std::shared_ptr<SessionShmArea>> Areas() const {
    std::vector<std::shared_ptr<SessionShmArea>> areas;
    const std::lock_guard lock(mutex_);
    for (const auto& [fd, peer] : peers_) {
      if (std::shared_ptr<SessionShmArea> area = peer.area.lock()) areas.push_back(std::move(area));
    }
    return areas;
  }

  void Run() {
    std::array<epoll_event, 64> events;
    while (true) {
      const int n = epoll_wait(epoll_.get(), events.data(), events.size(), WaitMs());
      for (int i = 0; i < n; ++i) {
        const int fd = events[i].data.fd;
        if (fd == wake_.get()) return;
        if (fd == listener_.get()) {
          Accept();
        } else {
          OnPeer(fd);
        }
      }
      const TimePoint now = SteadyClock::now();
      if (accept_again_at_ && *accept_again_at_ <= now && Watch(listener_.get())) accept_again_at_.reset();
      DropLatePeers(now);
    }
  }

  // Until the next hello is late; -1: nothing is awaited.
  int WaitMs() const {
    TimePoint next = accept_again_at_.value_or(kNoDeadline);
    for (const auto& [fd, peer] : peers_) {
      if (!peer.session) next = std::min(next, peer.hello_until);
    }
    if (next == kNoDeadline) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - SteadyClock::now());
    return static_cast<int>(std::max<int64_t>(0, left.count()));
  }

  void Accept() {
    FileDescriptor accepted(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!accepted) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) return;
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
      accept_again_at_ = SteadyClock::now() + kAcceptPause;
      return;
    }
    ucred peer_user{};
    socklen_t length = sizeof(peer_user);
    if (getsockopt(accepted.get(), SOL_SOCKET, SO_PEERCRED, &peer_user, &length) != 0 ||
        !MayMap(peer_user.uid)) {
      Refuse("user " + std::to_string(peer_user.uid) + " may not map memory");
      return;
    }
    const auto num_pending =
        std::count_if(peers_.begin(), peers_.end(), [](const auto& entry) { return !entry.second.session; });
    if (static_cast<size_t>(num_pending) >= options_.max_pending || peers_.size() >= options_.max_clients) {
      Refuse("too many clients at once");
      return;
    }
    const int fd = accepted.get();
    Peer peer;
    peer.socket = std::make_shared<FileDescriptor>(std::move(accepted));
    peer.hello_until = SteadyClock::now() + options_.hello_limit;
    if (!Watch(fd)) return;
    const std::lock_guard lock(mutex_);
    peers_.emplace(fd, std::move(peer));
  }

  bool MayMap(uid_t user) const {
    return user == geteuid() || user == 0 ||
           std::find(options_.users.begin(), options_.users.end(), user) != options_.users.end();
  }

  void OnPeer(int fd) {
    const auto found = peers_.find(fd);
    if (found == peers_.end()) return;
    Peer& peer = found->second;
    if (peer.session) return Drop(fd);  // its end; nothing else is ever sent
    const ssize_t n =
        recv(fd, peer.hello.data() + peer.received, peer.hello.size() - peer.received, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) return Drop(fd);
    peer.received += static_cast<size_t>(n);
    if (peer.received < peer.hello.size()) return;
    const Result<ShmHello> hello = DecodeShmHello(peer.hello);
    if (!hello.ok()) {
      Refuse(std::string(hello.status().message()));
      return Drop(fd);
    }
    const BulkCode code = Welcome(*hello, peer);
    if (code == BulkCode::kOk) return;
    Refuse("a hello with another version or without a token that is good");
    SendWelcome(fd, {.code = code}, nullptr);
    Drop(fd);
  }

  BulkCode Welcome(const ShmHello& hello, Peer& peer) {
    if (hello.version != kShmVersion) return BulkCode::kVersion;
    const SessionRef session = sessions_->Redeem(hello.session, hello.token, SessionTable::Purpose::kShm);
    if (!session || !session->tenant->may_read) return BulkCode::kRefused;
    const std::optional<SharedPool> pool = session->name_space->store->shared_pool();
    if (!pool) return BulkCode::kRefused;
    ShmAreaOptions options{.staging_bytes = options_.staging_bytes, .clock = options_.clock};
    options.max_place_bytes =
        static_cast<uint64_t>(options_.place_share * static_cast<double>(pool->pool_bytes));
    std::memcpy(&options.places_after, hello.session.data(), sizeof(options.places_after));
    Result<std::shared_ptr<SessionShmArea>> area = SessionShmArea::Make(options, peer.socket);
    if (!area.ok()) {
      Log(LogLevel::kWarning, area.status().ToString());
      return BulkCode::kRefused;
    }
    {
      const std::lock_guard lock(mutex_);
      peer.session = hello.session;
      peer.area = *area;
    }
    session->SetShm(*area);
    const std::array<int, 3> descriptors{pool->pool_fd, pool->generations_fd, (*area)->staging_fd()};
    const ShmWelcome welcome{.pool_bytes = pool->pool_bytes,
                             .generations_bytes = pool->generations_bytes,
                             .staging_bytes = options_.staging_bytes};
    return SendWelcome(peer.socket->get(), welcome, &descriptors) ? BulkCode::kOk : BulkCode::kGivenUp;
  }

  // With the session, where it has one.
  void Drop(int fd) {
    std::optional<SessionId> session;
    std::shared_ptr<FileDescriptor> socket;
    {
      const std::lock_guard lock(mutex_);
      const auto found = peers_.find(fd);
      session = found->second.session;
      socket = std::move(found->second.socket);
      peers_.erase(found);
    }
    // The area may hold the socket for longer, which must not be heard of again.
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    if (session) sessions_->Close(*session);
  }

  void DropLatePeers(TimePoint now) {
    std::vector<int> late;
    for (const auto& [fd, peer] : peers_) {
      if (!peer.session && peer.hello_until <= now) late.push_back(fd);
    }
    for (const int fd : late) {
      Refuse("no hello in time");
      Drop(fd);
    }
  }

  void Refuse(const std::string& why) {
    if (options_.metrics) {
      options_.metrics
          ->GetCounter("terrace_server_shm_refused_total", "Connections that were not given shared memory.")
          ->Add();
    }
    Log(LogLevel::kInfo, "refused: " + why);
  }

  void Log(LogLevel level, const std::string& message) {
    if (options_.log) options_.log->Log(level, "shm", message);
  }

  const ShmListenerOptions options_;
  SessionTable* const sessions_;
  FileDescriptor listener_;
  FileDescriptor epoll_;
  FileDescriptor wake_;
  std::optional<TimePoint> accept_again_at_;  // the thread's own
  mutable std::mutex mutex_;                  // for others than the thread, and for its changes
  std::map<int, Peer> peers_;                 // by socket
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<ShmListener>> ShmListener::Start(const ShmListenerOptions& options,
                                                        SessionTable* sessions) {
  auto listener = std::make_unique<EpollShmListener>(options, sessions);
  if (Status opened = listener->Open(); !opened.ok()) return opened;
  return std::unique_ptr<ShmListener>(std::move(listener));
}

}  // namespace terrace::server
