#include <cuda_runtime.h>

#include "kernels/cuda/bulk_copy.h"
#include "kernels/cuda/paged_copy_kernels.h"
#include "kernels/paged_copy_body.h"

namespace terrace {
namespace {

template <CopyDirection kDirection>
__global__ void __launch_bounds__(PagedCopyGrid::kMaxThreadsPerBlock)
    VectorCopyKernel(const __grid_constant__ PagedCopyLaunch launch) {
  RunPagedCopy<kDirection>(launch, {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x});
}

constexpr uint32_t kWarpThreads = 32;
constexpr uint32_t kStagesPerBlock = BulkCopyShape::kWarps * BulkCopyShape::kStages;
constexpr uint32_t kBulkBufferBytes = kStagesPerBlock * BulkCopyShape::kStageBytes;
constexpr uint32_t kBulkSharedBytes = kBulkBufferBytes + kStagesPerBlock * sizeof(BulkStage);
static_assert(kBulkSharedBytes <= 99 * 1024);

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// The instructions, as one thread issues them. All of them go through the asynchronous proxy: what a load has
// written is seen by the store once the load's barrier has said so.
class BulkInstructions {
 public:
  __device__ BulkInstructions(std::byte* buffers, BulkStage* stages)
      : buffers_(SharedAddress(buffers)), barriers_(SharedAddress(stages)) {
    for (uint32_t stage = 0; stage < BulkCopyShape::kStages; ++stage) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(Barrier(stage)) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }

  __device__ void Load(uint32_t stage, const std::byte* src, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(Barrier(stage)),
                 "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            Buffer(stage)),
        "l"(__cvta_generic_to_global(src)), "r"(bytes), "r"(Barrier(stage))
        : "memory");
  }

  __device__ void WaitLoad(uint32_t stage, uint32_t parity) {
    uint32_t is_done = 0;
    while (is_done == 0) {
      asm volatile(
          "{\n\t.reg .pred done;\n\t"
          "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%1], %2;\n\t"
          "selp.u32 %0, 1, 0, done;\n\t}"
          : "=r"(is_done)
          : "r"(Barrier(stage)), "r"(parity)
          : "memory");
    }
  }

  __device__ void Store(uint32_t stage, std::byte* dst, uint32_t bytes) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(dst)),
        "r"(Buffer(stage)), "r"(bytes)
        : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }

  template <uint32_t kPending>
  __device__ void WaitStoresRead() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
  }

  __device__ void WaitStoresDone() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

 private:
  __device__ static uint32_t SharedAddress(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }
  __device__ uint32_t Buffer(uint32_t stage) const { return buffers_ + stage * BulkCopyShape::kStageBytes; }
  __device__ uint32_t Barrier(uint32_t stage) const {
    return barriers_ + stage * uint32_t{sizeof(BulkStage)};
  }

  const uint32_t buffers_;
  const uint32_t barriers_;
};
static_assert(offsetof(BulkStage, barrier) == 0);
#endif

// Each warp strides over the tiles, and its first thread runs a pipeline over their bytes.
template <CopyDirection kDirection>
__global__ void __launch_bounds__(BulkCopyShape::kWarps* kWarpThreads)
    BulkCopyKernel(const __grid_constant__ PagedCopyLaunch launch) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char shared[];
  if (threadIdx.x % kWarpThreads != 0) return;
  const uint32_t warp = threadIdx.x / kWarpThreads;
  auto* buffers =
      reinterpret_cast<std::byte*>(shared) + warp * BulkCopyShape::kStages * BulkCopyShape::kStageBytes;
  auto* stages = reinterpret_cast<BulkStage*>(shared + kBulkBufferBytes) + warp * BulkCopyShape::kStages;
  BulkInstructions instructions(buffers, stages);
  BulkPipeline<BulkInstructions> pipeline(instructions, stages);
  RunBulkCopy<kDirection>(launch, blockIdx.x * BulkCopyShape::kWarps + warp,
                          gridDim.x * BulkCopyShape::kWarps, pipeline);
#else
  __trap();  // never started on older devices
#endif
}

const void* KernelOf(PagedCopyKernelKind kind, CopyDirection direction) {
  if (kind == PagedCopyKernelKind::kBulk) {
    return direction == CopyDirection::kToHost
               ? reinterpret_cast<const void*>(&BulkCopyKernel<CopyDirection::kToHost>)
               : reinterpret_cast<const void*>(&BulkCopyKernel<CopyDirection::kToDevice>);
  }
  return direction == CopyDirection::kToHost
             ? reinterpret_cast<const void*>(&VectorCopyKernel<CopyDirection::kToHost>)
             : reinterpret_cast<const void*>(&VectorCopyKernel<CopyDirection::kToDevice>);
}

uint32_t BlocksFor(uint64_t threads, uint32_t threads_per_block, uint32_t max_blocks) {
  const uint64_t blocks = (threads + threads_per_block - 1) / threads_per_block;
  return blocks < max_blocks ? static_cast<uint32_t>(blocks) : max_blocks;
}

}  // namespace

cudaError_t LoadPagedCopyKernels(PagedCopyKernelKind kind) {
  for (const CopyDirection direction : {CopyDirection::kToHost, CopyDirection::kToDevice}) {
    const void* kernel = KernelOf(kind, direction);
    cudaFuncAttributes attributes;
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess)
      return error;
    if (kind != PagedCopyKernelKind::kBulk) continue;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(kBulkSharedBytes));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t LaunchPagedCopy(const PagedCopyLaunch& launch, PagedCopyKernelKind kind,
                            const PagedCopyGrid& grid, cudaStream_t stream) {
  const bool is_bulk = kind == PagedCopyKernelKind::kBulk;
  const uint32_t threads_per_block = is_bulk ? BulkCopyShape::kWarps * kWarpThreads : grid.threads_per_block;
  const uint64_t threads = is_bulk ? uint64_t{launch.num_tiles} * kWarpThreads : UsefulThreads(launch);
  const uint32_t blocks = BlocksFor(threads, threads_per_block, grid.num_blocks);
  if (blocks == 0) return cudaSuccess;
  void* parameters[] = {const_cast<PagedCopyLaunch*>(&launch)};  // copied by the call
  return cudaLaunchKernel(KernelOf(kind, launch.direction), dim3(blocks), dim3(threads_per_block), parameters,
                          is_bulk ? kBulkSharedBytes : 0, stream);
}

}  // namespace terrace
