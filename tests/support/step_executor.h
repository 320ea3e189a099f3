// StepExecutor: runs what was posted when the test says so, on the test's thread.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "terrace/executor.h"

namespace terrace {

class StepExecutor final : public Executor {
 public:
  ~StepExecutor() override { RunAll(); }
  void Post(std::function<void()> work) override {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }

  // False: nothing waits.
  bool RunOne() {
    std::function<void()> work;
    {
      std::lock_guard lock(mutex_);
      if (queue_.empty()) return false;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    try {
      work();
    } catch (...) {
      ++exceptions_;
    }
    return true;
  }
  void RunAll() {
    while (RunOne()) {
    }
  }
  // Breaks the promise of an executor: destroys what waits, unrun.
  void DropAll() {
    std::deque<std::function<void()>> dropped;
    std::lock_guard lock(mutex_);
    dropped.swap(queue_);
  }
  bool is_idle() { return num_waiting() == 0; }
  size_t num_waiting() {
    std::lock_guard lock(mutex_);
    return queue_.size();
  }
  int exceptions() const { return exceptions_; }

 private:
  std::mutex mutex_;
  std::deque<std::function<void()>> queue_;
  int exceptions_ = 0;
};

}  // namespace terrace
