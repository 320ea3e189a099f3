// ChildProcess: the other end of a measurement in a process of its own, as a server is. It dies with this
// process.
//
// One caller's thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "terrace/status.h"

namespace terrace::bench {

class ChildProcess {
 public:
  // Runs `body` in a copy of this process, which must have one thread only: a copy has no others, but has
  // their locks. What the body writes to `report_fd` is for ReadReport; what it returns is the exit status.
  static Result<std::unique_ptr<ChildProcess>> Fork(const std::function<int(int report_fd)>& body);
  // Another program; its standard output and error go to `log_path`. The first argument is the file.
  static Result<std::unique_ptr<ChildProcess>> Execute(const std::vector<std::string>& arguments,
                                                       const std::string& log_path);
  // Asks it to end, and ends it after a while.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The next line that the body reported. kUnavailable when it ended, or `limit` passed, before.
  Result<std::string> ReadReport(std::chrono::milliseconds limit);
  bool IsRunning();
  // Used so far, user's and kernel's.
  double CpuSeconds() const;
  uint64_t ResidentBytes() const;

 private:
  ChildProcess(pid_t pid, int report_fd) : pid_(pid), report_fd_(report_fd) {}

  pid_t pid_;  // -1: ended and waited for
  int report_fd_;
  std::string reported_;
};

}  // namespace terrace::bench
