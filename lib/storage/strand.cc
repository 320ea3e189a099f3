#include "lib/storage/strand.h"

namespace terrace {

// One drain that an executor was given. Notices that it will never run.
struct Strand::Turn {
  explicit Turn(std::shared_ptr<Strand> s) : strand(std::move(s)) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (!has_run) strand->TurnWasDropped();
  }
  std::shared_ptr<Strand> strand;
  bool has_run = false;
};

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
  PostTurn(*executor);
}

void Strand::PostTurn(Executor& executor) {
  auto turn = std::make_shared<Turn>(shared_from_this());
  try {
    executor.Post([turn] {
      turn->has_run = true;
      turn->strand->Drain();
    });
  } catch (...) {
    exceptions_->Add();
  }
}

// Nobody else would run the queue: `running_` was set for this turn.
void Strand::TurnWasDropped() {
  std::deque<std::function<void()>> dropped;  // ends outside the lock
  std::lock_guard lock(mutex_);
  running_ = false;
  dropped.swap(queue_);
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
      PostTurn(*executor);
      throw;
    }
  }
}

}  // namespace terrace
