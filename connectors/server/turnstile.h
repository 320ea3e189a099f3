// Turnstile: lets one thread at a time run a step again and again while others only say that there is
// something new to do. Keeps callbacks that come inline from nesting.
#pragma once

#include <mutex>

namespace terrace::server {

class Turnstile {
 public:
  // Runs `step` until it returns false and nobody has called meanwhile; returns at once where another thread
  // (or this one, further up) is inside: that one runs once more.
  template <typename Step>
  void Run(const Step& step) {
    {
      const std::lock_guard lock(mutex_);
      if (inside_) {
        again_ = true;
        return;
      }
      inside_ = true;
    }
    while (true) {
      while (step()) {
      }
      const std::lock_guard lock(mutex_);
      if (!again_) {
        inside_ = false;
        return;
      }
      again_ = false;
    }
  }

 private:
  std::mutex mutex_;
  bool inside_ = false;
  bool again_ = false;
};

}  // namespace terrace::server
