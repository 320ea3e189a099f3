// Eventually: waits for what other threads or processes bring about.
#pragma once

#include <chrono>
#include <thread>

namespace terrace {

// Whether it comes true within a time that is never needed.
template <typename Condition>
bool Eventually(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace terrace
