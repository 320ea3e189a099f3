#include "kernels/cuda/cuda_status.h"

#include <cstring>
#include <string>

namespace terrace {
namespace {

StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return StatusCode::kResourceExhausted;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidPitchValue:
    case cudaErrorInvalidMemcpyDirection:
      return StatusCode::kInvalidArgument;
    case cudaErrorHostMemoryNotRegistered:
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorCapturedEvent:
      return StatusCode::kFailedPrecondition;
    case cudaErrorNotSupported:
    case cudaErrorCallRequiresNewerDriver:
      return StatusCode::kUnimplemented;
    default:
      return StatusCode::kUnavailable;
  }
}

}  // namespace

Status CudaStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return OkStatus();
  cudaGetLastError();
  const char* arguments = std::strchr(call, '(');
  std::string text = arguments ? std::string(call, arguments) : std::string(call);
  text += ": ";
  text += cudaGetErrorName(error);
  text += " (" + std::to_string(static_cast<int>(error)) + "): ";
  text += cudaGetErrorString(error);
  return Status(CodeOf(error), std::move(text));
}

}  // namespace terrace
