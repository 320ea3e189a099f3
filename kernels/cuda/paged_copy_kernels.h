// The kernels as the host starts them. Two kinds for each direction: vectors (all devices, all layouts), and
// the bulk engine (sm_90 and newer, for launches of contiguous pieces).
//
// Threads: no state. The device's context is current in the calling thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/paged_copy_launch.h"

namespace terrace {

// Few blocks saturate the bus; more of them take the device from the model.
struct PagedCopyGrid {
  static constexpr uint32_t kMaxThreadsPerBlock = 1024;

  uint32_t num_blocks = 4;
  uint32_t threads_per_block = kMaxThreadsPerBlock;  // of the vector kernels; a multiple of 32
};

enum class PagedCopyKernelKind : uint8_t { kVector = 1, kBulk = 2 };

// Loads the code of one kind. Fails where the build has none for this device.
cudaError_t LoadPagedCopyKernels(PagedCopyKernelKind kind);

// Enqueues one launch, which may go when the call returns. kBulk: IsForBulkCopy(launch).
cudaError_t LaunchPagedCopy(const PagedCopyLaunch& launch, PagedCopyKernelKind kind,
                            const PagedCopyGrid& grid, cudaStream_t stream);

}  // namespace terrace
