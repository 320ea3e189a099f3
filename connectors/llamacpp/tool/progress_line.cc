#include "connectors/llamacpp/tool/progress_line.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

namespace terrace::llamacpp {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// A terminal's line is rewritten every second; a log gets a new line only now and then.
constexpr seconds kFirst{2};
constexpr seconds kTerminalPeriod{1};
constexpr seconds kLogPeriod{5};

}  // namespace

ProgressLine::ProgressLine(std::string label)
    : label_(std::move(label)), terminal_(isatty(STDERR_FILENO) == 1), start_(steady_clock::now()) {
  thread_ = std::thread([this] { Run(); });
}

ProgressLine::~ProgressLine() { Finish(); }

void ProgressLine::SetFraction(double fraction) {
  std::lock_guard lock(mutex_);
  fraction_ = fraction;
}

void ProgressLine::Finish() {
  {
    std::lock_guard lock(mutex_);
    if (finished_) return;
    finished_ = true;
    if (shown_ && terminal_) std::fputs("\r\033[K", stderr);
  }
  changed_.notify_all();
  thread_.join();
}

void ProgressLine::Run() {
  std::unique_lock lock(mutex_);
  auto next = start_ + kFirst;
  while (!changed_.wait_until(lock, next, [this] { return finished_; })) {
    Print(std::chrono::duration<double>(steady_clock::now() - start_).count());
    next += terminal_ ? kTerminalPeriod : kLogPeriod;
  }
}

void ProgressLine::Print(double elapsed) {
  char percent[16] = "";
  if (fraction_ >= 0) std::snprintf(percent, sizeof percent, " %3.0f %%", fraction_ * 100);
  std::fprintf(stderr, terminal_ ? "\r\033[K%s ...%s %.0f s" : "%s ...%s %.0f s\n", label_.c_str(), percent,
               elapsed);
  std::fflush(stderr);
  shown_ = true;
}

}  // namespace terrace::llamacpp
