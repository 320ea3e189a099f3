// Strand: work of one kind in the order in which it was posted, one piece at a time, on an executor.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "terrace/executor.h"
#include "terrace/metrics.h"

namespace terrace {

// Threads: Post from every thread. The strand must be shared_ptr-owned: posted work keeps it alive.
class Strand : public std::enable_shared_from_this<Strand> {
 public:
  // `exceptions` counts those that leave the executor's Post.
  Strand(std::shared_ptr<Executor> executor, Counter* exceptions)
      : executor_(std::move(executor)), exceptions_(exceptions) {}
  // Where the executor throws, or drops what it was given, all that is queued is destroyed unrun.
  void Post(std::function<void()> work);
  // Lets go of the executor. What is posted from here on is destroyed unrun.
  void Stop();
  // After Stop: destroys what the executor left, if it dropped what it was given.
  void DropQueued();

 private:
  struct Turn;
  void PostTurn(Executor& executor);
  void Drain();
  void TurnWasDropped();
  std::shared_ptr<Executor> executor();

  std::mutex mutex_;  // never held while work runs; guards all below but for the counter
  std::shared_ptr<Executor> executor_;
  Counter* const exceptions_;
  std::deque<std::function<void()>> queue_;
  bool running_ = false;
};

}  // namespace terrace
