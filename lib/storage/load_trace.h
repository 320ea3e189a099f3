// LoadTrace: what a load tells about itself when it ends. Made only where somebody listens.
//
// Threads: the times are added from any; the rest by whoever makes the load, and by its end.
#pragma once

#include <atomic>
#include <chrono>

#include "lib/storage/request_tracer.h"
#include "terrace/load.h"

namespace terrace {

class LoadTrace {
 public:
  using Clock = std::chrono::steady_clock;

  explicit LoadTrace(TraceKind kind) { record_.kind = kind; }

  RequestTrace& record() { return record_; }
  void AddRead(Clock::time_point since) { Add(read_ns_, since); }  // of one unit, until it was verified
  void AddCopy(Clock::time_point since) { Add(copy_ns_, since); }

  void Record(const TraceRecorder& recorder, const LoadReport& report) {
    record_.done_tokens = report.loaded_tokens;
    record_.bytes = report.loaded_bytes;
    record_.outcome = report.status.code();
    if (!report.status.ok()) record_.why_not = report.status.ToString();
    record_.steps = {{"read", Microseconds(read_ns_)},
                     {"copy", Microseconds(copy_ns_)},
                     {"total", Microseconds((Clock::now() - start_).count())}};
    recorder.Record(record_);
  }

 private:
  static void Add(std::atomic<int64_t>& sum, Clock::time_point since) {
    sum.fetch_add((Clock::now() - since).count(), std::memory_order_relaxed);
  }
  static uint64_t Microseconds(int64_t ns) { return static_cast<uint64_t>(ns) / 1000; }

  RequestTrace record_;
  const Clock::time_point start_ = Clock::now();
  std::atomic<int64_t> read_ns_{0};
  std::atomic<int64_t> copy_ns_{0};
};

}  // namespace terrace
