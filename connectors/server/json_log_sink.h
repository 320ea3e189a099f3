// Log lines of a server: one JSON object each, for what collects them.
//
//   {"time":"2026-01-31T12:00:00.123Z","level":"info","component":"server","message":"..."}
#pragma once

#include <memory>

#include "terrace/log_sink.h"
#include "terrace/time.h"

namespace terrace::server {

// Writes to the descriptor, which it does not own, each line with one call. Thread safe.
std::shared_ptr<LogSink> MakeJsonLogSink(int fd, LogLevel min_level, Clock* clock = Clock::Real());

}  // namespace terrace::server
