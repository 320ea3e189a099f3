// CudaContext: a device's primary context, and the way of a call into it and back. A thread comes with
// whatever context the engine has made current there, or with none, and leaves with just that: cudaSetDevice
// would not do, because putting device 0 "back" on a thread that never used it makes a context there (some
// hundred MiB).
//
// Threads: CudaContext from every thread; a scope is of the thread that made it.
#pragma once

#include "kernels/cuda/cuda_status.h"
#include "terrace/status.h"

namespace terrace {

class CudaContext {
 public:
  // Makes the primary context of the device where there is none yet; the thread's own stays current.
  static Result<CudaContext> Open(int ordinal);
  int ordinal() const { return ordinal_; }

 private:
  friend class CudaContextScope;
  using GetCurrent = int (*)(void** context);  // cuCtxGetCurrent, of the driver that was found
  using SetCurrent = int (*)(void* context);   // cuCtxSetCurrent

  int ordinal_ = 0;
  void* context_ = nullptr;
  GetCurrent get_current_ = nullptr;
  SetCurrent set_current_ = nullptr;
};

// Calls of this thread go to the device while it lives. Where the driver refuses (the process ends), so do
// the calls themselves. They are allowed while another thread captures a graph in the global mode, which they
// would end otherwise: none of them is to be captured.
class CudaContextScope {
 public:
  explicit CudaContextScope(const CudaContext& context);
  ~CudaContextScope();
  CudaContextScope(const CudaContextScope&) = delete;
  CudaContextScope& operator=(const CudaContextScope&) = delete;

 private:
  const CudaContext& context_;
  void* before_ = nullptr;
  bool is_changed_ = false;
  cudaStreamCaptureMode mode_before_ = cudaStreamCaptureModeRelaxed;
  bool is_mode_changed_ = false;
};

}  // namespace terrace
