#include "connectors/server/stop_signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace terrace::server {
namespace {

using SteadyClock = std::chrono::steady_clock;

int MillisecondsUntil(TimePoint deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

}  // namespace

Result<std::unique_ptr<StopSignals>> StopSignals::Start(const Options& options) {
  // A peer that goes away is an error of a write, not the end.
  signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
  if (const int error = pthread_sigmask(SIG_BLOCK, &signals, nullptr); error != 0) {
    return InternalError(std::string("signals cannot be blocked: ") + std::strerror(error));
  }
  const int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
  const int end_fd = eventfd(0, EFD_CLOEXEC);
  if (signal_fd < 0 || end_fd < 0) {
    const int error = errno;
    if (signal_fd >= 0) close(signal_fd);
    if (end_fd >= 0) close(end_fd);
    return UnavailableError(std::string("no descriptor for signals: ") + std::strerror(error));
  }
  return std::unique_ptr<StopSignals>(new StopSignals(options, signal_fd, end_fd));
}

StopSignals::StopSignals(const Options& options, int signal_fd, int end_fd)
    : options_(options), signal_fd_(signal_fd), end_fd_(end_fd), thread_([this] { Run(); }) {}

StopSignals::~StopSignals() {
  const uint64_t one = 1;
  // An eventfd at 0 takes it without blocking.
  while (write(end_fd_, &one, sizeof(one)) < 0 && errno == EINTR) continue;
  thread_.join();
  close(signal_fd_);
  close(end_fd_);
}

StopSignals::Event StopSignals::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stop_ || reload_; });
  if (stop_) return Event::kStop;
  reload_ = false;
  return Event::kReload;
}

void StopSignals::Run() {
  bool is_stopping = false;
  TimePoint limit = kNoDeadline;
  for (;;) {
    pollfd fds[] = {{signal_fd_, POLLIN, 0}, {end_fd_, POLLIN, 0}};
    const int ready = poll(fds, 2, is_stopping ? MillisecondsUntil(limit) : -1);
    if (fds[1].revents != 0 && ready > 0) return;
    if (is_stopping && SteadyClock::now() >= limit) {
      constexpr char kLine[] = "terrace: the orderly stop took too long\n";
      if (write(STDERR_FILENO, kLine, sizeof(kLine) - 1) < 0) errno = 0;  // nobody is left to be told
      _exit(options_.forced_exit_code);
    }
    if (ready <= 0 || fds[0].revents == 0) continue;
    // All that are pending, so that two that came together are two for certain.
    std::array<signalfd_siginfo, 8> pending{};
    const ssize_t got = read(signal_fd_, pending.data(), sizeof(pending));
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; got > 0 && i < static_cast<size_t>(got) / sizeof(pending[0]); ++i) {
      if (pending[i].ssi_signo == SIGHUP) {
        reload_ = true;
        continue;
      }
      if (is_stopping) _exit(options_.forced_exit_code);
      is_stopping = stop_ = true;
      limit = SteadyClock::now() + options_.stop_limit;
    }
    changed_.notify_all();
  }
}

}  // namespace terrace::server
