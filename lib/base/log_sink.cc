#include "terrace/log_sink.h"

#include <cstdio>
#include <string>

namespace terrace {
namespace {

class StderrLogSink final : public LogSink {
 public:
  explicit StderrLogSink(LogLevel min_level) : min_level_(min_level) {}

  void Log(LogLevel level, std::string_view component, std::string_view message) override {
    if (level < min_level_) return;
    static constexpr char kLetters[] = "DIWE";
    std::string line = "terrace: ";
    line += kLetters[static_cast<int>(level) & 3];
    line.append(" ").append(component).append(": ").append(message).append("\n");
    // One call per line: the stream's own lock keeps lines whole.
    std::fwrite(line.data(), 1, line.size(), stderr);
  }

 private:
  const LogLevel min_level_;
};

class NullLogSink final : public LogSink {
 public:
  void Log(LogLevel, std::string_view, std::string_view) override {}
};

}  // namespace

std::shared_ptr<LogSink> MakeStderrLogSink(LogLevel min_level) {
  return std::make_shared<StderrLogSink>(min_level);
}
std::shared_ptr<LogSink> MakeNullLogSink() { return std::make_shared<NullLogSink>(); }

}  // namespace terrace
