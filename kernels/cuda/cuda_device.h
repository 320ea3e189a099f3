// CudaDevice: a device of CUDA. Each call goes to the device's primary context and leaves the thread as it
// came; no error of CUDA leaves as anything but a Status.
//
// Threads: every call from every thread.
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/host_registration.h"
#include "kernels/cuda/paged_copy_kernels.h"
#include "terrace/device.h"
#include "terrace/status.h"

namespace terrace {

struct CudaDeviceOptions {
  PagedCopyGrid grid;
  bool use_bulk_copy = true;  // where the device has it; false: vectors everywhere
};

class CudaDevice final : public Device {
 public:
  // kUnavailable: no driver, no device, none of this number.
  static Result<std::shared_ptr<CudaDevice>> Open(int ordinal, const CudaDeviceOptions& options = {});
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const DeviceProperties& properties() const override { return properties_; }
  // kInvalidArgument: the stream is another device's.
  Result<std::shared_ptr<Stream>> AdoptStream(void* native) override;
  Result<std::shared_ptr<Event>> AdoptEvent(void* native) override;
  Result<std::shared_ptr<Stream>> MakeStream() override;

  // Memory that another device of this process has registered already is used as it is: that device's
  // registration must outlive the copies of this one.
  Status RegisterHost(MutableBytes memory) override;
  void UnregisterHost(MutableBytes memory) override;
  Result<std::byte*> MappedAddress(std::byte* host) const override;
  Result<std::shared_ptr<std::byte>> Allocate(uint64_t bytes) override;

  Status Copy(Stream& stream, CopyDirection direction, const CopyPiece& piece) override;
  // One copy after the other where the driver has no batched copies, or refuses this batch or stream.
  Status CopyBatch(Stream& stream, CopyDirection direction, std::span<const CopyPiece> pieces) override;
  Status Run(Stream& stream, const PagedCopyArgs& args) override;

  bool has_bulk_copy() const { return has_bulk_copy_; }

 private:
  CudaDevice(const CudaContext& context, const CudaDeviceOptions& options);

  Status ReadProperties();
  Status Pin(std::byte* base, uint64_t bytes) const;
  void Unpin(std::byte* base) const;
  // The stream as this device's own kind; kInvalidArgument where it is another's.
  Result<CudaStream*> Own(Stream& stream) const;
  // Calls `copy` for the parts of a piece that lie in one registered piece each.
  template <typename Function>
  Status ForEachUncut(const CopyPiece& piece, Function copy) const;

  const CudaContext context_;
  const CudaDeviceOptions options_;
  DeviceProperties properties_;
  bool has_bulk_copy_ = false;
  int stream_priority_ = 0;
  std::shared_ptr<CudaEventPool> events_;
  HostRegistration registration_;
  std::atomic<bool> has_batched_copy_{false};  // until the driver says otherwise
};

}  // namespace terrace
