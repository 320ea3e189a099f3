// RequestTracer: builds one RequestTrace while a request runs, and hands it to the sink when it ends. Without
// a sink it costs a branch per step.
//
// Used by one thread at a time; Finish is called with no lock held.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "terrace/metrics.h"
#include "terrace/trace.h"

namespace terrace {

class TraceRecorder {
 public:
  void Set(std::shared_ptr<TraceSink> sink, Counter* exceptions) {
    sink_ = std::move(sink);
    exceptions_ = exceptions;
  }
  bool is_on() const { return sink_ != nullptr; }
  void Record(const RequestTrace& trace) const;

 private:
  std::shared_ptr<TraceSink> sink_;
  Counter* exceptions_ = nullptr;
};

class RequestTracer {
 public:
  RequestTracer(const TraceRecorder& recorder, TraceKind kind) : recorder_(recorder) {
    if (!recorder_.is_on()) return;
    trace_ = std::make_unique<RequestTrace>();
    trace_->kind = kind;
    last_ = std::chrono::steady_clock::now();
  }
  RequestTracer(const RequestTracer&) = delete;
  RequestTracer& operator=(const RequestTracer&) = delete;
  ~RequestTracer() { Finish(); }

  // Null: nobody listens.
  RequestTrace* trace() { return trace_.get(); }
  // What ran since the last step was this.
  void Step(const char* name) {
    if (!trace_) return;
    const auto now = std::chrono::steady_clock::now();
    AddStep(name, now - last_);
    last_ = now;
  }
  // The same for time that was measured elsewhere.
  void AddStep(const char* name, std::chrono::nanoseconds time);
  // The request ends with this error, which is handed back.
  Status Fail(Status status) {
    if (trace_) {
      trace_->outcome = status.code();
      trace_->why_not = status.ToString();
    }
    return status;
  }
  // The record as it is so far, for who hands it to the TraceRecorder later; null where nobody listens.
  std::unique_ptr<RequestTrace> Take() { return std::move(trace_); }
  // Records it, once.
  void Finish() {
    if (trace_) recorder_.Record(*std::exchange(trace_, nullptr));
  }

 private:
  const TraceRecorder& recorder_;
  std::unique_ptr<RequestTrace> trace_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace terrace
