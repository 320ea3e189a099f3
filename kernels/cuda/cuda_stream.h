// CudaStream, CudaEvent: those that Terrace made, and those of the engine that it adopted and never destroys.
// Events of Terrace's own come from a pool: they carry no time, and are recorded again when their last
// reference is gone.
//
// Threads: every call from every thread (the driver orders calls on one stream).
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <vector>

#include "kernels/cuda/cuda_context.h"
#include "terrace/device.h"
#include "terrace/status.h"

namespace terrace {

class CudaEventPool {
 public:
  explicit CudaEventPool(const CudaContext& context) : context_(context) {}
  ~CudaEventPool();
  CudaEventPool(const CudaEventPool&) = delete;
  CudaEventPool& operator=(const CudaEventPool&) = delete;

  Result<cudaEvent_t> Take();
  void Give(cudaEvent_t event);
  const CudaContext& context() const { return context_; }

 private:
  // More than this many that nobody holds are destroyed.
  static constexpr size_t kMaxIdle = 1024;

  const CudaContext context_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> idle_;  // guarded by mutex_
};

class CudaEvent final : public Event {
 public:
  enum class Owner { kEngine, kPool };

  CudaEvent(std::shared_ptr<CudaEventPool> pool, cudaEvent_t event, Owner owner)
      : pool_(std::move(pool)), event_(event), owner_(owner) {}
  ~CudaEvent() override;

  Result<bool> Query() const override;
  void* native_handle() const override { return event_; }

 private:
  const std::shared_ptr<CudaEventPool> pool_;
  const cudaEvent_t event_;
  const Owner owner_;
};

class CudaStream final : public Stream {
 public:
  enum class Owner { kEngine, kTerrace };

  CudaStream(std::shared_ptr<Device> device, std::shared_ptr<CudaEventPool> events, cudaStream_t stream,
             Owner owner)
      : device_(std::move(device)), events_(std::move(events)), stream_(stream), owner_(owner) {}
  ~CudaStream() override;

  const std::shared_ptr<Device>& device() const override { return device_; }
  // kFailedPrecondition, as WaitFor's: the stream is being captured into a graph, which has no events of its
  // own.
  Result<std::shared_ptr<Event>> Record() override;
  Status WaitFor(const Event& event) override;
  void* native_handle() const override { return stream_; }

  cudaStream_t stream() const { return stream_; }
  // The legacy default stream, which the batched copy engine refuses.
  bool is_legacy_default() const { return stream_ == nullptr || stream_ == cudaStreamLegacy; }

 private:
  Status CheckNotCaptured() const;

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<CudaEventPool> events_;
  const cudaStream_t stream_;
  const Owner owner_;
};

}  // namespace terrace
