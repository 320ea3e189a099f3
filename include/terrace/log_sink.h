// LogSink: where Terrace writes what an operator should see. Injected; the default drops nothing and
// writes lines to standard error. Implementations are called from any thread and must not call back.
#pragma once

#include <memory>
#include <string_view>

#include "terrace/export.h"

namespace terrace {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

class TERRACE_API LogSink {
 public:
  virtual ~LogSink() = default;
  // `component` is a part's name ("nvme", "manager"). Tokens, salts and payload never appear.
  virtual void Log(LogLevel level, std::string_view component, std::string_view message) = 0;
};

// Lines "terrace: W nvme: message" on standard error, from `min_level` on. Thread safe.
TERRACE_API std::shared_ptr<LogSink> MakeStderrLogSink(LogLevel min_level = LogLevel::kWarning);
// Drops everything.
TERRACE_API std::shared_ptr<LogSink> MakeNullLogSink();

}  // namespace terrace
