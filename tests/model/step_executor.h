// StepExecutor: work runs only when the test says so, on the test's thread. One seed, one order of steps.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "terrace/executor.h"

namespace terrace {

// One thread at a time.
class StepExecutor final : public Executor {
 public:
  void Post(std::function<void()> work) override { queue_.push_back(std::move(work)); }

  bool is_idle() const { return queue_.empty(); }
  // The oldest piece of work; false where there is none. What escapes is caught and counted, as an executor
  // must.
  bool RunOne() {
    if (queue_.empty()) return false;
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
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
  // Destroys what waits, unrun.
  void DropAll() {
    std::deque<std::function<void()>> dropped;
    dropped.swap(queue_);
  }
  uint64_t exceptions() const { return exceptions_; }

 private:
  std::deque<std::function<void()>> queue_;
  uint64_t exceptions_ = 0;
};

}  // namespace terrace
