#include "lib/storage/strand.h"

namespace terrace {

void Strand::Post(std::function<void()> work) {
  std::shared_ptr<Executor> executor;
  {
    std::lock_guard lock(mutex_);
    if (!executor_) return;
    queue_.push_back(std::move(work));
    if (running_) return;
    running_ = true;
    executor = executor_;
  }
  executor->Post([self = shared_from_this()] { self->Drain(); });
}

void Strand::Stop() {
  std::shared_ptr<Executor> executor;  // its end may run what was posted, which takes the lock
  std::lock_guard lock(mutex_);
  executor.swap(executor_);
}

void Strand::DropQueued() {
  std::deque<std::function<void()>> dropped;  // ends outside the lock
  std::lock_guard lock(mutex_);
  dropped.swap(queue_);
}

std::shared_ptr<Executor> Strand::executor() {
  std::lock_guard lock(mutex_);
  return executor_;
}

void Strand::Drain() {
  while (true) {
    std::function<void()> work;
    {
      std::lock_guard lock(mutex_);
      if (queue_.empty()) {
        running_ = false;
        return;
      }
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    // An exception must not stop what is queued behind: the rest goes on in a new piece of work.
    try {
      work();
    } catch (...) {
      // Stopped: nobody is left to run the rest elsewhere.
      const std::shared_ptr<Executor> executor = this->executor();
      if (!executor) continue;
      executor->Post([self = shared_from_this()] { self->Drain(); });
      throw;
    }
  }
}

}  // namespace terrace
