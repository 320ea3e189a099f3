// TERRACE_CHECK(condition) << values: ends the process where an invariant of our own is broken. Always on.
// The condition's text, file, line and what was streamed go to standard error. Never for what a caller,
// a disk or a peer can cause: those are a Status.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <sstream>
#include <string>

namespace terrace {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition) {
    out_ << "terrace: check failed at " << file << ":" << line << ": " << condition << " ";
  }
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  [[noreturn]] ~CheckFailure() {
    out_ << "\n";
    const std::string text = out_.str();
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
    std::abort();
  }
  std::ostream& stream() { return out_; }

 private:
  std::ostringstream out_;
};

// Binds weaker than << and stronger than ?:, so that the whole stream expression is void.
struct CheckVoid {
  void operator&(std::ostream&) const {}
};

}  // namespace terrace

#define TERRACE_CHECK(condition)                      \
  (__builtin_expect(static_cast<bool>(condition), 1)) \
      ? static_cast<void>(0)                          \
      : ::terrace::CheckVoid() & ::terrace::CheckFailure(__FILE__, __LINE__, #condition).stream()
