#include "lib/storage/strand.h"

namespace terrace {

void Strand::Post(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    if (running_) return;
    running_ = true;
  }
  executor_->Post([self = shared_from_this()] { self->Drain(); });
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
      executor_->Post([self = shared_from_this()] { self->Drain(); });
      throw;
    }
  }
}

}  // namespace terrace
