// ProgressLine: says on standard error that something is still running, once it has taken two seconds. It has
// a thread of its own, because most of what takes long (loading a model, hashing its file, one decode) is a
// single call.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace terrace::llamacpp {

class ProgressLine {
 public:
  explicit ProgressLine(std::string label);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // From any thread. 0..1.
  void SetFraction(double fraction);
  // Ends the line; nothing is printed afterwards. Safe to call twice.
  void Finish();

 private:
  void Run();
  void Print(double seconds);

  const std::string label_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  std::condition_variable changed_;
  double fraction_ = -1;   // mutex_
  bool finished_ = false;  // mutex_
  bool shown_ = false;     // mutex_
  std::thread thread_;
};

}  // namespace terrace::llamacpp
