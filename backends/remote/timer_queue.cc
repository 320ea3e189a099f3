#include "backends/remote/timer_queue.h"

#include <pthread.h>

#include <algorithm>

namespace terrace::remote {

TimerQueue::TimerQueue(Clock* clock, std::string name)
    : clock_(clock), thread_([this, name = std::move(name)] {
        pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
        Run();
      }) {}

TimerQueue::~TimerQueue() { Stop(); }

void TimerQueue::At(TimePoint when, std::function<void()> work) {
  std::unique_lock lock(mutex_);
  if (is_stopped_) {
    lock.unlock();
    return;  // `work` is destroyed without the lock: its captures may call back
  }
  const bool is_first = due_.empty() || when < due_.begin()->first;
  due_.emplace(when, std::move(work));
  if (is_first) wake_.notify_one();
}

void TimerQueue::Stop() {
  std::multimap<TimePoint, std::function<void()>> left;
  std::thread thread;
  {
    std::lock_guard lock(mutex_);
    is_stopped_ = true;
    left.swap(due_);
    thread.swap(thread_);
    wake_.notify_one();
  }
  left.clear();
  if (!thread.joinable()) return;
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();
  } else {
    thread.join();
  }
}

void TimerQueue::Run() {
  std::unique_lock lock(mutex_);
  while (!is_stopped_) {
    if (due_.empty()) {
      wake_.wait(lock);
      continue;
    }
    const TimePoint first = due_.begin()->first;
    if (const TimePoint now = clock_->Now(); first > now) {
      wake_.wait_for(lock, std::min<Duration>(first - now, std::chrono::hours(1)));
      continue;
    }
    std::function<void()> work = std::move(due_.begin()->second);
    due_.erase(due_.begin());
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

}  // namespace terrace::remote
