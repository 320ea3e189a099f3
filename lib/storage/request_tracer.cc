#include "lib/storage/request_tracer.h"

#include <cstring>

namespace terrace {

void TraceRecorder::Record(const RequestTrace& trace) const {
  try {
    sink_->Record(trace);
  } catch (...) {
    exceptions_->Add();
  }
}

void RequestTracer::AddStep(const char* name, std::chrono::nanoseconds time) {
  if (!trace_) return;
  const auto us = static_cast<uint64_t>(time.count() < 0 ? 0 : time.count() / 1000);
  for (TraceStep& step : trace_->steps) {
    if (std::strcmp(step.name, name) == 0) {
      step.us += us;
      return;
    }
  }
  trace_->steps.push_back({name, us});
}

}  // namespace terrace
