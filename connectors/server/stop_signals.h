// StopSignals: SIGTERM, SIGINT and SIGHUP as events, read on a thread of its own. The first SIGTERM or SIGINT
// asks for an orderly stop, the second one ends the process at once, as does the end of the time that an
// orderly stop may take.
//
// Threads: made by the thread that starts every other one, before it does (the signals are blocked in all of
// them from then on). Wait: one thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "terrace/status.h"
#include "terrace/time.h"

namespace terrace::server {

class StopSignals {
 public:
  struct Options {
    // After the first stop signal; then the process ends with `forced_exit_code`.
    Duration stop_limit = std::chrono::seconds(60);
    int forced_exit_code = 3;
  };
  static Result<std::unique_ptr<StopSignals>> Start(const Options& options);
  ~StopSignals();  // the signals stay blocked: the process is about to end

  enum class Event { kReload, kStop };
  // Blocks. Several SIGHUPs before a call are one; a stop goes before.
  Event Wait();

 private:
  StopSignals(const Options& options, int signal_fd, int end_fd);
  void Run();

  const Options options_;
  const int signal_fd_;
  const int end_fd_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reload_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace terrace::server
