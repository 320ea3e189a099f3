#include "benchmarks/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

namespace terrace::bench {
namespace {

constexpr std::chrono::seconds kEndLimit(10);

// In the child: it ends with its parent, also where that ended before this line.
void FollowParent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
}

Status ForkError() { return UnavailableError(std::string("fork: ") + std::strerror(errno)); }

}  // namespace

Result<std::unique_ptr<ChildProcess>> ChildProcess::Fork(const std::function<int(int report_fd)>& body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return UnavailableError(std::string("pipe: ") + std::strerror(errno));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    FollowParent(parent);
    close(ends[0]);
    _exit(body(ends[1]));
  }
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    return ForkError();
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, ends[0]));
}

Result<std::unique_ptr<ChildProcess>> ChildProcess::Execute(const std::vector<std::string>& arguments,
                                                            const std::string& log_path) {
  // Everything is made before the fork: this process may have threads by now.
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (log < 0) return UnavailableError(log_path + ": " + std::strerror(errno));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    FollowParent(parent);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(log);
  if (pid < 0) return ForkError();
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, -1));
}

ChildProcess::~ChildProcess() {
  if (report_fd_ >= 0) close(report_fd_);
  if (!IsRunning()) return;
  kill(pid_, SIGTERM);
  const auto deadline = std::chrono::steady_clock::now() + kEndLimit;
  while (IsRunning()) {
    if (std::chrono::steady_clock::now() > deadline) kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Result<std::string> ChildProcess::ReadReport(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    if (const size_t end = reported_.find('\n'); end != std::string::npos) {
      std::string line = reported_.substr(0, end);
      reported_.erase(0, end + 1);
      return line;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd ready{.fd = report_fd_, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) <= 0) {
      return UnavailableError("the process beside did not report in time");
    }
    char text[256];
    const ssize_t n = read(report_fd_, text, sizeof(text));
    if (n <= 0) return UnavailableError("the process beside ended");
    reported_.append(text, static_cast<size_t>(n));
  }
}

bool ChildProcess::IsRunning() {
  if (pid_ < 0) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) == 0) return true;
  pid_ = -1;
  return false;
}

double ChildProcess::CpuSeconds() const {
  clockid_t clock;
  timespec used{};
  if (pid_ < 0 || clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &used) != 0) return 0;
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

uint64_t ChildProcess::ResidentBytes() const {
  std::ifstream statm("/proc/" + std::to_string(pid_) + "/statm");
  uint64_t total = 0;
  uint64_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace terrace::bench
