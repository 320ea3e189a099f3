// A trace sink that appends one JSON object per line to a file.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>

#include "terrace/trace.h"

namespace terrace {

std::string_view TraceKindName(TraceKind kind) {
  switch (kind) {
    case TraceKind::kLookup:
      return "lookup";
    case TraceKind::kPeek:
      return "peek";
    case TraceKind::kLoad:
      return "load";
    case TraceKind::kStore:
      return "store";
    case TraceKind::kPrefetch:
      return "prefetch";
    case TraceKind::kErase:
      return "erase";
  }
  return "unknown";
}

namespace {

class JsonTraceFile final : public TraceSink {
 public:
  explicit JsonTraceFile(int fd) : fd_(fd) {}
  ~JsonTraceFile() override { close(fd_); }

  void Record(const RequestTrace& trace) override {
    nlohmann::ordered_json line;
    line["kind"] = TraceKindName(trace.kind);
    line["request_id"] = trace.request_id;
    line["root"] = trace.root.ToHex();
    line["tokens"] = trace.tokens;
    line["matched_by_tier"] = trace.matched_by_tier;
    line["remote_tokens"] = trace.remote_tokens;
    line["planned_tokens"] = trace.planned_tokens;
    line["done_tokens"] = trace.done_tokens;
    line["bytes"] = trace.bytes;
    line["why_not"] = trace.why_not;
    for (const TraceStep& step : trace.steps) line["us"][step.name] = step.us;
    line["outcome"] = StatusCodeName(trace.outcome);
    const std::string text =
        line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    // One write per line, so that lines of several threads and processes do not mix.
    std::lock_guard lock(mutex_);
    if (write(fd_, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      throw std::runtime_error("a trace line was not written");
  }

 private:
  std::mutex mutex_;
  const int fd_;
};

}  // namespace

Result<std::shared_ptr<TraceSink>> MakeJsonTraceFile(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return UnavailableError("trace file " + path + ": " + std::strerror(errno));
  return std::shared_ptr<TraceSink>(std::make_shared<JsonTraceFile>(fd));
}

}  // namespace terrace
