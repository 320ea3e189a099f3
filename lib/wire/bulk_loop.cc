#include "lib/wire/bulk_loop.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "lib/base/check.h"

namespace terrace {
namespace {

constexpr size_t kScratchBytes = size_t{512} << 10;
constexpr uint32_t kEverything = EPOLLIN | EPOLLOUT;

// How often standing sockets are looked for.
Duration LookInterval(Duration stall_limit) {
  return std::clamp<Duration>(stall_limit / 4, std::chrono::milliseconds(1), std::chrono::seconds(1));
}

Status SystemError(const char* call) {
  return ResourceExhaustedError(std::string(call) + ": " + std::strerror(errno));
}

}  // namespace

Result<std::shared_ptr<BulkLoop>> BulkLoop::Start(uint32_t number, Duration stall_limit) {
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd < 0) return SystemError("epoll_create1");
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) {
    const Status status = SystemError("eventfd");
    close(epoll_fd);
    return status;
  }
  std::shared_ptr<BulkLoop> loop(new BulkLoop(epoll_fd, wake_fd, stall_limit));
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, wake_fd, &event) != 0) return SystemError("epoll_ctl");

  // No signal of the process is handled here; SIGPIPE, which TLS cannot avoid, stays an error of the call.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status started;
  try {
    loop->thread_ = std::thread([raw = loop.get()] { raw->RunThread(); });
    pthread_setname_np(loop->thread_.native_handle(), ("terrace-bulk-" + std::to_string(number)).c_str());
  } catch (const std::system_error& error) {
    started = ResourceExhaustedError(std::string("thread: ") + error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started.ok()) return started;
  return loop;
}

BulkLoop::BulkLoop(int epoll_fd, int wake_fd, Duration stall_limit)
    : epoll_fd_(epoll_fd), wake_fd_(wake_fd), stall_limit_(stall_limit), scratch_(kScratchBytes) {}

BulkLoop::~BulkLoop() {
  TERRACE_CHECK(!thread_.joinable()) << "Stop was not called";
  close(wake_fd_);
  close(epoll_fd_);
}

bool BulkLoop::Add(std::shared_ptr<BulkLoopSocket> socket) {
  num_sockets_ += 1;
  if (Post({std::move(socket), true})) return true;
  num_sockets_ -= 1;
  return false;
}

bool BulkLoop::Wake(std::shared_ptr<BulkLoopSocket> socket) { return Post({std::move(socket), false}); }

bool BulkLoop::Post(Posted posted) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return false;
  posted_.push_back(std::move(posted));
  const bool is_own_thread = std::this_thread::get_id() == thread_.get_id();
  if (!std::exchange(signalled_, true) && !is_own_thread) eventfd_write(wake_fd_, 1);
  return true;
}

void BulkLoop::Stop() {
  TERRACE_CHECK(std::this_thread::get_id() != thread_.get_id()) << "a reactor ends outside its callbacks";
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    eventfd_write(wake_fd_, 1);
  }
  if (thread_.joinable()) thread_.join();
}

void BulkLoop::RunThread() {
  while (TakePosted()) {
    for (BulkLoopSocket* socket : std::exchange(again_, {})) RunTurn(socket, kEverything);
    if (watching_) EndStalled();
    Wait();
  }
  while (!sockets_.empty()) EndSocket(sockets_.begin()->first, CancelledError("the reactor ended"));
}

void BulkLoop::Wait() {
  int timeout_ms = -1;
  if (watching_) {
    const auto left = std::max<Duration>(next_look_ - std::chrono::steady_clock::now(), Duration(0));
    timeout_ms = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
  }
  {
    const std::lock_guard lock(mutex_);
    if (!again_.empty() || !posted_.empty() || stopping_) timeout_ms = 0;
  }
  std::array<epoll_event, 64> events;
  const int n = epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), timeout_ms);
  for (int i = 0; i < n; ++i) {
    auto* socket = static_cast<BulkLoopSocket*>(events[i].data.ptr);
    if (socket == nullptr) {
      eventfd_t value;
      eventfd_read(wake_fd_, &value);
    } else {
      RunTurn(socket, events[i].events);
    }
  }
}

bool BulkLoop::TakePosted() {
  std::vector<Posted> posted;
  bool stopping;
  {
    const std::lock_guard lock(mutex_);
    posted.swap(posted_);
    signalled_ = false;
    stopping = stopping_;
  }
  for (const auto& [socket, is_new] : posted) {
    if (is_new) {
      epoll_event event{.events = 0, .data = {.ptr = socket.get()}};
      sockets_.emplace(socket.get(), Entry{.socket = socket});
      if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, socket->fd(), &event) != 0) {
        EndSocket(socket.get(), SystemError("epoll_ctl"));
      }
    }
    if (!stopping) RunTurn(socket.get(), kEverything);
    socket->RunCallbacks();
  }
  return !stopping;
}

void BulkLoop::RunTurn(BulkLoopSocket* socket, uint32_t events) {
  const auto found = sockets_.find(socket);
  if (found == sockets_.end()) return;  // ended before in this round
  const BulkLoopSocket::Turn turn = socket->Run(events, scratch_);
  if (!turn.status.ok()) return EndSocket(socket, turn.status);
  if (turn.again) again_.push_back(socket);
  if (socket->CanStall() && !std::exchange(watching_, true)) {
    next_look_ = std::chrono::steady_clock::now() + LookInterval(stall_limit_);
  }
  if (turn.events == found->second.events) return;
  epoll_event event{.events = turn.events, .data = {.ptr = socket}};
  epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, socket->fd(), &event);
  found->second.events = turn.events;
}

void BulkLoop::EndSocket(BulkLoopSocket* socket, const Status& status) {
  const auto found = sockets_.find(socket);
  const std::shared_ptr<BulkLoopSocket> ended = std::move(found->second.socket);
  sockets_.erase(found);
  num_sockets_ -= 1;
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, ended->fd(), nullptr);
  ended->End(status);
}

void BulkLoop::EndStalled() {
  const TimePoint now = std::chrono::steady_clock::now();
  if (now < next_look_) return;
  next_look_ = now + LookInterval(stall_limit_);
  watching_ = false;
  std::vector<BulkLoopSocket*> stalled;
  for (const auto& [socket, entry] : sockets_) {
    watching_ |= socket->CanStall();
    if (socket->IsStalled(stall_limit_, now)) stalled.push_back(socket);
  }
  for (BulkLoopSocket* socket : stalled) EndSocket(socket, UnavailableError("the peer stands still"));
}

}  // namespace terrace
