#include "tests/gpu/fake_cuda.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/cuda/bulk_copy.h"
#include "kernels/cuda/paged_copy_kernels.h"
#include "kernels/emulated_launch.h"

namespace terrace {
namespace {

thread_local uintptr_t current_context = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;

// A stream or event knows its device.
struct Handle {
  int ordinal;
};

int OrdinalOf(const void* handle) {
  const bool is_special = handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread;
  return is_special ? -1 : static_cast<const Handle*>(handle)->ordinal;
}

// Counts a call; what it answers, unless it is to fail. `ordinal` >= 0: the device whose context has to be
// current.
cudaError_t Begin(FakeCuda& cuda, const char* name, int ordinal = -1) {
  ++cuda.calls[name];
  if (ordinal >= 0 && current_context != static_cast<uintptr_t>(ordinal) + 1) ++cuda.wrong_contexts;
  const auto failure = cuda.failures.find(name);
  return last_error = failure == cuda.failures.end() ? cudaSuccess : failure->second;
}

int GetCurrent(void** context) {
  *context = reinterpret_cast<void*>(current_context);
  return 0;
}
int SetCurrent(void* context) {
  current_context = reinterpret_cast<uintptr_t>(context);
  return 0;
}

}  // namespace

FakeCuda& FakeCuda::Get() {
  static FakeCuda cuda;
  return cuda;
}

void FakeCuda::Reset() {
  const FakeCuda fresh{};
  num_devices = fresh.num_devices, driver_version = fresh.driver_version;
  compute_capability = fresh.compute_capability, device_bytes = fresh.device_bytes;
  failures.clear(), calls.clear(), copies.clear(), batches.clear(), kernel_kinds.clear();
  registered.clear(), allocated.clear(), streams.clear(), events.clear();
  held.clear(), captured.clear(), recorded_on.clear(), waits.clear();
  wrong_contexts = 0;
  is_captured_globally = false;
  current_context = 0;
}

uintptr_t FakeCuda::CurrentContext() { return current_context; }
void FakeCuda::SetCurrentContext(uintptr_t context) { current_context = context; }

// The kernels, as the host runs them.
cudaError_t LoadPagedCopyKernels(PagedCopyKernelKind kind) {
  FakeCuda& cuda = FakeCuda::Get();
  const std::lock_guard<std::mutex> lock(cuda.mutex);
  return Begin(cuda, kind == PagedCopyKernelKind::kBulk ? "load bulk" : "load vectors");
}

cudaError_t LaunchPagedCopy(const PagedCopyLaunch& launch, PagedCopyKernelKind kind,
                            const PagedCopyGrid& grid, cudaStream_t stream) {
  FakeCuda& cuda = FakeCuda::Get();
  const std::lock_guard<std::mutex> lock(cuda.mutex);
  if (const cudaError_t error = Begin(cuda, "cudaLaunchKernel", OrdinalOf(stream)); error != cudaSuccess)
    return error;
  cuda.kernel_kinds.push_back(static_cast<int>(kind));
  EmulateLaunch(launch, {grid.num_blocks, 64, 0}, SameForm{});
  return cudaSuccess;
}

}  // namespace terrace

using terrace::FakeCuda;

#define FAKE_BEGIN(name, ordinal)                                    \
  FakeCuda& cuda = FakeCuda::Get();                                  \
  const std::lock_guard<std::mutex> lock(cuda.mutex);                \
  {                                                                  \
    const cudaError_t failure = terrace::Begin(cuda, name, ordinal); \
    if (failure != cudaSuccess) return failure;                      \
  }

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(terrace::last_error, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorInsufficientDriver ? "cudaErrorInsufficientDriver" : "cudaErrorOfTheFake";
}
const char* cudaGetErrorString(cudaError_t) { return "as the test wants it"; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int,
                                             unsigned long long, cudaDriverEntryPointQueryResult* found) {
  FAKE_BEGIN("cudaGetDriverEntryPointByVersion", -1);
  const bool is_get = std::strcmp(symbol, "cuCtxGetCurrent") == 0;
  *function =
      is_get ? reinterpret_cast<void*>(&terrace::GetCurrent) : reinterpret_cast<void*>(&terrace::SetCurrent);
  *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  FAKE_BEGIN("cudaDriverGetVersion", -1);
  *version = cuda.driver_version;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  FAKE_BEGIN("cudaGetDeviceCount", -1);
  *count = cuda.num_devices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int ordinal) {
  FAKE_BEGIN("cudaSetDevice", -1);
  terrace::current_context = static_cast<uintptr_t>(ordinal) + 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  FAKE_BEGIN("cudaGetDeviceProperties", ordinal);
  std::memset(properties, 0, sizeof(*properties));
  std::strcpy(properties->name, "fake");
  properties->totalGlobalMem = cuda.device_bytes;
  properties->major = cuda.compute_capability / 10;
  properties->minor = cuda.compute_capability % 10;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* bus_id, int bytes, int) {
  FAKE_BEGIN("cudaDeviceGetPCIBusId", -1);
  std::strncpy(bus_id, "FFFF:FF:1F.7", static_cast<size_t>(bytes));
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_BEGIN("cudaDeviceGetStreamPriorityRange", -1);
  *least = terrace::kLeastPriority;
  *greatest = terrace::kGreatestPriority;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  FAKE_BEGIN("cudaStreamCreateWithPriority", -1);
  cuda.stream_flags = flags;
  cuda.stream_priority = priority;
  *stream =
      reinterpret_cast<cudaStream_t>(new terrace::Handle{static_cast<int>(terrace::current_context) - 1});
  cuda.streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  FAKE_BEGIN("cudaStreamDestroy", terrace::OrdinalOf(stream));
  cuda.streams.erase(stream);
  delete reinterpret_cast<terrace::Handle*>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* ordinal) {
  FAKE_BEGIN("cudaStreamGetDevice", -1);
  *ordinal = terrace::OrdinalOf(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  FAKE_BEGIN("cudaStreamIsCapturing", terrace::OrdinalOf(stream));
  *status = cuda.captured.count(stream) > 0 ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  FAKE_BEGIN("cudaStreamWaitEvent", terrace::OrdinalOf(stream));
  cuda.waits.emplace_back(stream, event);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  FAKE_BEGIN("cudaEventCreateWithFlags", -1);
  cuda.event_flags = flags;
  *event = reinterpret_cast<cudaEvent_t>(new terrace::Handle{static_cast<int>(terrace::current_context) - 1});
  cuda.events.insert(*event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  FAKE_BEGIN("cudaEventDestroy", terrace::OrdinalOf(event));
  cuda.events.erase(event);
  delete reinterpret_cast<terrace::Handle*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  FAKE_BEGIN("cudaEventRecord", terrace::OrdinalOf(event));
  cuda.recorded_on[event] = stream;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, terrace::capture_mode);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  FAKE_BEGIN("cudaEventQuery", terrace::OrdinalOf(event));
  if (cuda.is_captured_globally && terrace::capture_mode != cudaStreamCaptureModeRelaxed)
    return terrace::last_error = cudaErrorStreamCaptureUnsupported;
  const auto stream = cuda.recorded_on.find(event);
  const bool is_held = stream != cuda.recorded_on.end() && cuda.held.count(stream->second) > 0;
  return terrace::last_error = is_held ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  FAKE_BEGIN("cudaMalloc", -1);
  if (bytes > cuda.device_bytes) return terrace::last_error = cudaErrorMemoryAllocation;
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  cuda.allocated[*memory] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  FAKE_BEGIN("cudaFree", -1);
  if (memory == nullptr) return cudaSuccess;
  cuda.allocated.erase(memory);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned int flags) {
  FAKE_BEGIN("cudaHostRegister", -1);
  if (flags != (cudaHostRegisterPortable | cudaHostRegisterMapped))
    return terrace::last_error = cudaErrorInvalidValue;
  const bool is_new = cuda.registered.emplace(static_cast<std::byte*>(memory), bytes).second;
  return terrace::last_error = is_new ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
}
cudaError_t cudaHostUnregister(void* memory) {
  FAKE_BEGIN("cudaHostUnregister", -1);
  const bool was_there = cuda.registered.erase(static_cast<std::byte*>(memory)) > 0;
  return terrace::last_error = was_there ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}
cudaError_t cudaHostGetDevicePointer(void** mapped, void* memory, unsigned int) {
  FAKE_BEGIN("cudaHostGetDevicePointer", -1);
  auto* const byte = static_cast<std::byte*>(memory);
  for (const auto& [begin, bytes] : cuda.registered) {
    if (byte < begin || byte >= begin + bytes) continue;
    *mapped = memory;
    return cudaSuccess;
  }
  return terrace::last_error = cudaErrorInvalidValue;
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  FAKE_BEGIN("cudaMemcpyAsync", terrace::OrdinalOf(stream));
  if (kind != cudaMemcpyDefault) return terrace::last_error = cudaErrorInvalidMemcpyDirection;
  cuda.copies.emplace_back(src, bytes);
  std::memcpy(dst, src, bytes);
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpyBatchAsync(void* const* dsts, const void* const* srcs, const size_t* sizes,
                                 size_t count, cudaMemcpyAttributes* attributes, size_t* attributes_begin,
                                 size_t num_attributes, cudaStream_t stream) {
#else
cudaError_t cudaMemcpyBatchAsync(void** dsts, void** srcs, size_t* sizes, size_t count,
                                 cudaMemcpyAttributes* attributes, size_t* attributes_begin,
                                 size_t num_attributes, size_t* /*failed*/, cudaStream_t stream) {
#endif
  FAKE_BEGIN("cudaMemcpyBatchAsync", terrace::OrdinalOf(stream));
  const bool is_legacy = stream == nullptr || stream == cudaStreamLegacy;
  if (is_legacy || count == 0 || num_attributes != 1 || attributes_begin[0] != 0 ||
      attributes[0].srcAccessOrder != cudaMemcpySrcAccessOrderStream ||
      std::count(sizes, sizes + count, 0u) > 0) {
    return terrace::last_error = cudaErrorInvalidValue;
  }
  cuda.batches.push_back(count);
  for (size_t i = count; i-- > 0;) std::memcpy(dsts[i], srcs[i], sizes[i]);
  return cudaSuccess;
}
}
