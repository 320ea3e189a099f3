// Every error of a CUDA call becomes a Status with the error's name and number, its text, and the call.
//
// Threads: no state of ours. Clears what the run-time remembers as the thread's last error, so that a failed
// call is never blamed on a later one.
#pragma once

#include <cuda_runtime_api.h>

#include "terrace/status.h"

namespace terrace {

// Neither a driver nor a device: nothing is broken, there is nothing to use. 35: no driver, or one that is
// older than the run-time; 100: a driver that sees no device.
inline bool IsWithoutDevice(cudaError_t error) {
  return error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice;
}

// "cudaMalloc: cudaErrorMemoryAllocation (2): out of memory". kResourceExhausted: no memory.
// kInvalidArgument: a bad argument or handle. kUnimplemented: not on this device or driver. kUnavailable:
// everything else, the errors included after which the device's context is lost.
Status CudaStatus(cudaError_t error, const char* call);

}  // namespace terrace

// Returns the Status of a CUDA call that failed from a function that returns a Status or a Result.
#define TERRACE_RETURN_IF_CUDA_FAILS(call)                     \
  do {                                                         \
    const cudaError_t terrace_cuda_error = (call);             \
    if (terrace_cuda_error != cudaSuccess) {                   \
      return ::terrace::CudaStatus(terrace_cuda_error, #call); \
    }                                                          \
  } while (false)
