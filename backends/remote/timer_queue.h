// TimerQueue: the remote tier's one thread for what is due later: deadlines, polls of cancel flags, pauses of
// retries and probes, renewals. Work that it runs does not block.
//
// Threads: At and Post from every thread. Work that is left at Stop is destroyed unrun.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "terrace/time.h"

namespace terrace::remote {

class TimerQueue {
 public:
  TimerQueue(Clock* clock, std::string name);
  ~TimerQueue();

  void At(TimePoint when, std::function<void()> work);
  void After(Duration pause, std::function<void()> work) { At(clock_->Now() + pause, std::move(work)); }
  void Post(std::function<void()> work) { At(TimePoint::min(), std::move(work)); }
  // Waits for work that runs, unless it is this work that calls.
  void Stop();

 private:
  void Run();

  Clock* const clock_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::multimap<TimePoint, std::function<void()>> due_;
  bool is_stopped_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace terrace::remote
