#include "connectors/server/json_log_sink.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

namespace terrace::server {
namespace {

std::string TimeText(WallTime time) {
  const auto since_epoch = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch());
  const std::time_t seconds = since_epoch.count() / 1000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[40];
  const size_t size = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + size, sizeof(text) - size, ".%03dZ", static_cast<int>(since_epoch.count() % 1000));
  return text;
}

class JsonLogSink final : public LogSink {
 public:
  JsonLogSink(int fd, LogLevel min_level, Clock* clock) : fd_(fd), min_level_(min_level), clock_(clock) {}

  void Log(LogLevel level, std::string_view component, std::string_view message) override {
    if (level < min_level_) return;
    static constexpr const char* kLevels[] = {"debug", "info", "warning", "error"};
    const nlohmann::ordered_json json = {{"time", TimeText(clock_->WallNow())},
                                         {"level", kLevels[static_cast<int>(level) & 3]},
                                         {"component", component},
                                         {"message", message}};
    const std::string line =
        json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    const std::lock_guard lock(mutex_);
    // A log that cannot be written stops no server.
    for (size_t at = 0; at < line.size();) {
      const ssize_t written = write(fd_, line.data() + at, line.size() - at);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;
      at += static_cast<size_t>(written);
    }
  }

 private:
  const int fd_;
  const LogLevel min_level_;
  Clock* const clock_;
  std::mutex mutex_;  // keeps lines whole where a pipe takes them in parts
};

}  // namespace

std::shared_ptr<LogSink> MakeJsonLogSink(int fd, LogLevel min_level, Clock* clock) {
  return std::make_shared<JsonLogSink>(fd, min_level, clock);
}

}  // namespace terrace::server
