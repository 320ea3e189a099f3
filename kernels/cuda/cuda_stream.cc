#include "kernels/cuda/cuda_stream.h"

#include <utility>

namespace terrace {

CudaEventPool::~CudaEventPool() {
  const CudaContextScope scope(context_);
  for (cudaEvent_t event : idle_) cudaEventDestroy(event);
}

Result<cudaEvent_t> CudaEventPool::Take() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      cudaEvent_t event = idle_.back();
      idle_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  const CudaContextScope scope(context_);
  TERRACE_RETURN_IF_CUDA_FAILS(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void CudaEventPool::Give(cudaEvent_t event) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.size() < kMaxIdle) {
      idle_.push_back(event);
      return;
    }
  }
  const CudaContextScope scope(context_);
  cudaEventDestroy(event);
}

CudaEvent::~CudaEvent() {
  if (owner_ == Owner::kPool) pool_->Give(event_);
}

Result<bool> CudaEvent::Query() const {
  const CudaContextScope scope(pool_->context());
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaSuccess) return true;
  // What a capture forbids is no end of the work.
  const bool is_captured =
      error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
  if (error == cudaErrorNotReady || is_captured) {
    cudaGetLastError();
    return false;
  }
  return CudaStatus(error, "cudaEventQuery");
}

CudaStream::~CudaStream() {
  if (owner_ == Owner::kEngine) return;
  const CudaContextScope scope(events_->context());
  cudaStreamDestroy(stream_);  // what is enqueued still runs
}

Status CudaStream::CheckNotCaptured() const {
  if (owner_ == Owner::kTerrace) return OkStatus();
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  TERRACE_RETURN_IF_CUDA_FAILS(cudaStreamIsCapturing(stream_, &capture));
  if (capture == cudaStreamCaptureStatusNone) return OkStatus();
  return FailedPreconditionError("the stream is being captured into a graph");
}

Result<std::shared_ptr<Event>> CudaStream::Record() {
  const CudaContextScope scope(events_->context());
  if (Status s = CheckNotCaptured(); !s.ok()) return s;
  Result<cudaEvent_t> event = events_->Take();
  if (!event.ok()) return event.status();
  const cudaError_t error = cudaEventRecord(*event, stream_);
  if (error != cudaSuccess) {
    events_->Give(*event);
    return CudaStatus(error, "cudaEventRecord");
  }
  return std::shared_ptr<Event>(std::make_shared<CudaEvent>(events_, *event, CudaEvent::Owner::kPool));
}

Status CudaStream::WaitFor(const Event& event) {
  const auto* cuda_event = dynamic_cast<const CudaEvent*>(&event);
  if (cuda_event == nullptr)
    return InvalidArgumentError("a CUDA stream waits for events of CUDA devices only");
  const CudaContextScope scope(events_->context());
  if (Status s = CheckNotCaptured(); !s.ok()) return s;
  TERRACE_RETURN_IF_CUDA_FAILS(cudaStreamWaitEvent(
      stream_, static_cast<cudaEvent_t>(cuda_event->native_handle()), cudaEventWaitDefault));
  return OkStatus();
}

}  // namespace terrace
