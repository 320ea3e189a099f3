#include "kernels/cuda/cuda_context.h"

#include <string>

namespace terrace {
namespace {

// The oldest driver interface that these calls are taken from.
constexpr unsigned int kDriverInterface = 12000;

template <typename Function>
Status FindInDriver(const char* name, Function* function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  TERRACE_RETURN_IF_CUDA_FAILS(
      cudaGetDriverEntryPointByVersion(name, &address, kDriverInterface, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || address == nullptr) {
    return UnavailableError(std::string("the CUDA driver has no ") + name);
  }
  *function = reinterpret_cast<Function>(address);
  return OkStatus();
}

}  // namespace

Result<CudaContext> CudaContext::Open(int ordinal) {
  CudaContext context;
  context.ordinal_ = ordinal;
  if (Status s = FindInDriver("cuCtxGetCurrent", &context.get_current_); !s.ok()) return s;
  if (Status s = FindInDriver("cuCtxSetCurrent", &context.set_current_); !s.ok()) return s;
  void* before = nullptr;
  if (context.get_current_(&before) != 0) return UnavailableError("cuCtxGetCurrent failed");
  cudaError_t error = cudaSetDevice(ordinal);
  if (error == cudaSuccess) error = cudaFree(nullptr);  // from here on there is a context
  if (error == cudaSuccess && (context.get_current_(&context.context_) != 0 || !context.context_)) {
    error = cudaErrorDeviceUninitialized;
  }
  context.set_current_(before);
  if (error != cudaSuccess) return CudaStatus(error, "cudaSetDevice");
  return context;
}

CudaContextScope::CudaContextScope(const CudaContext& context) : context_(context) {
  const bool is_other = context_.get_current_(&before_) == 0 && before_ != context_.context_;
  if (is_other) is_changed_ = context_.set_current_(context_.context_) == 0;
  is_mode_changed_ = cudaThreadExchangeStreamCaptureMode(&mode_before_) == cudaSuccess;
}

CudaContextScope::~CudaContextScope() {
  if (is_mode_changed_) cudaThreadExchangeStreamCaptureMode(&mode_before_);
  if (is_changed_) context_.set_current_(before_);
}

}  // namespace terrace
