// Strand: work of one kind in the order in which it was posted, one piece at a time, on an executor.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "terrace/executor.h"

namespace terrace {

// Threads: Post from every thread. The strand must be shared_ptr-owned: posted work keeps it alive.
class Strand : public std::enable_shared_from_this<Strand> {
 public:
  explicit Strand(Executor* executor) : executor_(executor) {}
  // The executor outlives all posted work.
  void Post(std::function<void()> work);

 private:
  void Drain();

  Executor* const executor_;
  std::mutex mutex_;  // never held while work runs
  std::deque<std::function<void()>> queue_;
  bool running_ = false;
};

}  // namespace terrace
