#include "lib/device/event_poller.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace terrace {
namespace {

constexpr std::chrono::microseconds kFirstPause{2};
constexpr std::chrono::microseconds kLongestPause{50};
// The kernel's default, 50 us, would double the longest pause.
constexpr unsigned long kTimerSlackNs = 1000;

}  // namespace

EventPoller::EventPoller() : thread_([this] { Run(); }) {}

EventPoller::~EventPoller() {
  {
    std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void EventPoller::Add(std::shared_ptr<Event> event, std::function<void(const Status&)> done) {
  {
    std::lock_guard lock(mutex_);
    added_.push_back({std::move(event), std::move(done)});
  }
  changed_.notify_one();
}

void EventPoller::Run() {
  pthread_setname_np(pthread_self(), "terrace-poll");
  (void)prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0UL, 0UL, 0UL);  // a refusal means longer pauses only
  std::vector<Awaited> awaited;
  std::chrono::microseconds pause = kFirstPause;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (awaited.empty()) {
        changed_.wait(lock, [this] { return is_ending_ || !added_.empty(); });
        if (added_.empty()) return;
      }
      if (!added_.empty()) pause = kFirstPause;
      std::move(added_.begin(), added_.end(), std::back_inserter(awaited));
      added_.clear();
    }
    if (CallDone(awaited) > 0) {
      pause = kFirstPause;
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestPause);
    }
  }
}

size_t EventPoller::CallDone(std::vector<Awaited>& awaited) {
  size_t num_kept = 0;
  for (size_t i = 0; i < awaited.size(); ++i) {
    const Result<bool> is_done = awaited[i].event->Query();
    if (is_done.ok() && !*is_done) {
      if (num_kept != i) awaited[num_kept] = std::move(awaited[i]);
      ++num_kept;
      continue;
    }
    // An adopted event may be destroyed by the engine as soon as `done` has told it.
    awaited[i].event.reset();
    std::exchange(awaited[i].done, nullptr)(is_done.status());
  }
  const size_t num_done = awaited.size() - num_kept;
  awaited.resize(num_kept);
  return num_done;
}

}  // namespace terrace
