#include "kernels/cuda/cuda_device.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/bulk_copy.h"
#include "kernels/cuda/pci_device.h"
#include "kernels/paged_copy_launch.h"

namespace terrace {
namespace {

// The oldest driver that has cudaMemcpyBatchAsync.
constexpr int kBatchedCopyDriver = 12080;
constexpr size_t kMaxBatch = 8192;
constexpr uint32_t kBulkCopyCapability = 90;

// What is missing, where the run-time sees no device.
std::string MissingPart(cudaError_t error) {
  if (error != cudaErrorInsufficientDriver) return "";
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  cudaGetLastError();
  if (driver == 0) return " (no driver is installed)";
  const auto version = [](int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); };
  return " (the driver is for CUDA " + version(driver) + ", this build is of " + version(CUDART_VERSION) +
         ")";
}

Status CheckOrdinal(int ordinal) {
  const std::string name = "CUDA device " + std::to_string(ordinal);
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    const std::string missing = MissingPart(error);
    return UnavailableError(name + ": " + std::string(CudaStatus(error, "cudaGetDeviceCount").message()) +
                            missing);
  }
  if (ordinal >= 0 && ordinal < count) return OkStatus();
  return UnavailableError(name + ": there are " + std::to_string(count) + " devices, counted from 0");
}

// A batch in the arrays that the copy engine takes.
struct BatchArrays {
  std::vector<void*> dsts;
  std::vector<const void*> srcs;
  std::vector<size_t> sizes;
};

cudaError_t EnqueueBatch(BatchArrays& batch, size_t first, size_t count, cudaStream_t stream) {
#if CUDART_VERSION >= 12080
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  size_t attributes_begin = 0;
#if CUDART_VERSION >= 13000
  return cudaMemcpyBatchAsync(batch.dsts.data() + first, batch.srcs.data() + first,
                              batch.sizes.data() + first, count, &attributes, &attributes_begin, 1, stream);
#else
  size_t failed = 0;
  return cudaMemcpyBatchAsync(batch.dsts.data() + first, const_cast<void**>(batch.srcs.data() + first),
                              batch.sizes.data() + first, count, &attributes, &attributes_begin, 1, &failed,
                              stream);
#endif
#else
  return cudaErrorNotSupported;
#endif
}

Status EnqueueCopy(void* dst, const void* src, size_t bytes, cudaStream_t stream) {
  // The side that is the host's is found by its address: one of the two may be device memory in either
  // direction.
  TERRACE_RETURN_IF_CUDA_FAILS(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream));
  return OkStatus();
}

}  // namespace

int CountCudaDevices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return std::max(count, 0);
  cudaGetLastError();
  return 0;
}

Result<std::shared_ptr<Device>> MakeCudaDevice(int ordinal) {
  Result<std::shared_ptr<CudaDevice>> device = CudaDevice::Open(ordinal);
  if (!device.ok()) return device.status();
  return std::shared_ptr<Device>(std::move(*device));
}

Result<std::shared_ptr<CudaDevice>> CudaDevice::Open(int ordinal, const CudaDeviceOptions& options) {
  const PagedCopyGrid& grid = options.grid;
  if (grid.num_blocks == 0 || grid.threads_per_block == 0 || grid.threads_per_block % 32 != 0 ||
      grid.threads_per_block > PagedCopyGrid::kMaxThreadsPerBlock) {
    return InvalidArgumentError("grid: " + std::to_string(grid.num_blocks) + " blocks of " +
                                std::to_string(grid.threads_per_block) +
                                " threads; at least one block, threads in multiples of 32 up to 1024");
  }
  if (Status s = CheckOrdinal(ordinal); !s.ok()) return s;
  Result<CudaContext> context = CudaContext::Open(ordinal);
  if (!context.ok())
    return UnavailableError("CUDA device " + std::to_string(ordinal) + ": " + context.status().ToString());
  std::shared_ptr<CudaDevice> device(new CudaDevice(*context, options));
  if (Status s = device->ReadProperties(); !s.ok()) {
    return UnavailableError("CUDA device " + std::to_string(ordinal) + ": " + s.ToString());
  }
  return device;
}

CudaDevice::CudaDevice(const CudaContext& context, const CudaDeviceOptions& options)
    : context_(context),
      options_(options),
      events_(std::make_shared<CudaEventPool>(context)),
      registration_({[this](std::byte* base, uint64_t bytes) { return Pin(base, bytes); },
                     [this](std::byte* base) { Unpin(base); }}) {}

CudaDevice::~CudaDevice() = default;

Status CudaDevice::ReadProperties() {
  const CudaContextScope scope(context_);
  cudaDeviceProp device;
  TERRACE_RETURN_IF_CUDA_FAILS(cudaGetDeviceProperties(&device, context_.ordinal()));
  char bus_id[32] = "";
  if (cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), context_.ordinal()) != cudaSuccess) bus_id[0] = 0;
  int driver = 0;
  TERRACE_RETURN_IF_CUDA_FAILS(cudaDriverGetVersion(&driver));
  int least_priority = 0;
  int greatest_priority = 0;
  TERRACE_RETURN_IF_CUDA_FAILS(cudaDeviceGetStreamPriorityRange(&least_priority, &greatest_priority));

  properties_.kind = DeviceKind::kCuda;
  properties_.ordinal = context_.ordinal();
  properties_.name = device.name;
  properties_.numa_node = NumaNodeOfPciDevice(bus_id);
  properties_.memory_bytes = device.totalGlobalMem;
  properties_.compute_capability = static_cast<uint32_t>(device.major * 10 + device.minor);
  properties_.has_kernels = LoadPagedCopyKernels(PagedCopyKernelKind::kVector) == cudaSuccess;
  properties_.has_batched_copy = CUDART_VERSION >= kBatchedCopyDriver && driver >= kBatchedCopyDriver;
  has_bulk_copy_ = options_.use_bulk_copy && properties_.has_kernels &&
                   properties_.compute_capability >= kBulkCopyCapability &&
                   LoadPagedCopyKernels(PagedCopyKernelKind::kBulk) == cudaSuccess;
  cudaGetLastError();
  stream_priority_ = least_priority;
  has_batched_copy_ = properties_.has_batched_copy;
  return OkStatus();
}

Result<std::shared_ptr<Stream>> CudaDevice::AdoptStream(void* native) {
  auto* stream = static_cast<cudaStream_t>(native);
#if CUDART_VERSION >= 12080
  if (stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread) {
    const CudaContextScope scope(context_);
    int ordinal = -1;
    TERRACE_RETURN_IF_CUDA_FAILS(cudaStreamGetDevice(stream, &ordinal));
    if (ordinal != context_.ordinal()) {
      return InvalidArgumentError("the stream is one of CUDA device " + std::to_string(ordinal) +
                                  ", not of " + std::to_string(context_.ordinal()));
    }
  }
#endif
  return std::shared_ptr<Stream>(
      std::make_shared<CudaStream>(shared_from_this(), events_, stream, CudaStream::Owner::kEngine));
}

Result<std::shared_ptr<Event>> CudaDevice::AdoptEvent(void* native) {
  if (native == nullptr) return InvalidArgumentError("a null event");
  return std::shared_ptr<Event>(
      std::make_shared<CudaEvent>(events_, static_cast<cudaEvent_t>(native), CudaEvent::Owner::kEngine));
}

Result<std::shared_ptr<Stream>> CudaDevice::MakeStream() {
  const CudaContextScope scope(context_);
  cudaStream_t stream = nullptr;
  TERRACE_RETURN_IF_CUDA_FAILS(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, stream_priority_));
  return std::shared_ptr<Stream>(
      std::make_shared<CudaStream>(shared_from_this(), events_, stream, CudaStream::Owner::kTerrace));
}

Status CudaDevice::Pin(std::byte* base, uint64_t bytes) const {
  const CudaContextScope scope(context_);
  const cudaError_t error = cudaHostRegister(base, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (error == cudaSuccess) return OkStatus();
  Status status = CudaStatus(error, "cudaHostRegister");
  if (error == cudaErrorHostMemoryAlreadyRegistered) {
    void* mapped = nullptr;
    if (cudaHostGetDevicePointer(&mapped, base, 0) == cudaSuccess &&
        cudaHostGetDevicePointer(&mapped, base + bytes - 1, 0) == cudaSuccess) {
      return AlreadyExistsError(std::string(status.message()));
    }
    cudaGetLastError();
  }
  return UnavailableError("pinning " + std::to_string(bytes) + " bytes: " + std::string(status.message()));
}

void CudaDevice::Unpin(std::byte* base) const {
  const CudaContextScope scope(context_);
  if (cudaHostUnregister(base) != cudaSuccess) cudaGetLastError();  // the process may be ending
}

Status CudaDevice::RegisterHost(MutableBytes memory) { return registration_.Add(memory); }

void CudaDevice::UnregisterHost(MutableBytes memory) { registration_.Remove(memory); }

Result<std::byte*> CudaDevice::MappedAddress(std::byte* host) const {
  std::byte* piece = registration_.PieceOf(host);
  if (piece == nullptr) piece = host;  // the engine may have registered it
  const CudaContextScope scope(context_);
  void* mapped = nullptr;
  if (const cudaError_t error = cudaHostGetDevicePointer(&mapped, piece, 0); error != cudaSuccess) {
    return FailedPreconditionError("host memory that is not registered: " +
                                   std::string(CudaStatus(error, "cudaHostGetDevicePointer").message()));
  }
  return static_cast<std::byte*>(mapped) + (host - piece);
}

Result<std::shared_ptr<std::byte>> CudaDevice::Allocate(uint64_t bytes) {
  const CudaContextScope scope(context_);
  void* memory = nullptr;
  if (const cudaError_t error = cudaMalloc(&memory, std::max<uint64_t>(bytes, 1)); error != cudaSuccess) {
    return CudaStatus(error, "cudaMalloc").WithContext(std::to_string(bytes) + " bytes of device memory");
  }
  return std::shared_ptr<std::byte>(
      static_cast<std::byte*>(memory), [context = context_](std::byte* allocated) {
        const CudaContextScope of_the_device(context);
        if (cudaFree(allocated) != cudaSuccess)
          cudaGetLastError();  // cudaErrorCudartUnloading: the process is ending
      });
}

Result<CudaStream*> CudaDevice::Own(Stream& stream) const {
  auto* own = dynamic_cast<CudaStream*>(&stream);
  if (own == nullptr || own->device().get() != this)
    return InvalidArgumentError("a stream of another device");
  return own;
}

template <typename Function>
Status CudaDevice::ForEachUncut(const CopyPiece& piece, Function copy) const {
  for (uint64_t done = 0; done < piece.bytes;) {
    uint64_t bytes = registration_.UncutBytes(piece.dst + done, piece.bytes - done);
    bytes = registration_.UncutBytes(piece.src + done, bytes);
    if (Status s = copy(CopyPiece{piece.dst + done, piece.src + done, bytes}); !s.ok()) return s;
    done += bytes;
  }
  return OkStatus();
}

Status CudaDevice::Copy(Stream& stream, CopyDirection /*direction*/, const CopyPiece& piece) {
  Result<CudaStream*> own = Own(stream);
  if (!own.ok()) return own.status();
  const CudaContextScope scope(context_);
  return ForEachUncut(piece, [&](const CopyPiece& part) {
    return EnqueueCopy(part.dst, part.src, part.bytes, (*own)->stream());
  });
}

Status CudaDevice::CopyBatch(Stream& stream, CopyDirection /*direction*/, std::span<const CopyPiece> pieces) {
  Result<CudaStream*> own = Own(stream);
  if (!own.ok()) return own.status();
  BatchArrays batch;
  batch.dsts.reserve(pieces.size());
  batch.srcs.reserve(pieces.size());
  batch.sizes.reserve(pieces.size());
  for (const CopyPiece& piece : pieces) {
    const Status added = ForEachUncut(piece, [&](const CopyPiece& part) {
      batch.dsts.push_back(part.dst);
      batch.srcs.push_back(part.src);
      batch.sizes.push_back(part.bytes);
      return OkStatus();
    });
    if (!added.ok()) return added;
  }
  const CudaContextScope scope(context_);
  for (size_t first = 0; first < batch.sizes.size(); first += kMaxBatch) {
    const size_t count = std::min(kMaxBatch, batch.sizes.size() - first);
    if (has_batched_copy_.load(std::memory_order_relaxed) && !(*own)->is_legacy_default()) {
      const cudaError_t error = EnqueueBatch(batch, first, count, (*own)->stream());
      if (error == cudaSuccess) continue;
      cudaGetLastError();
      if (error == cudaErrorNotSupported || error == cudaErrorCallRequiresNewerDriver) {
        has_batched_copy_.store(false, std::memory_order_relaxed);
      }
    }
    // Pieces that a refused batch has copied already are copied once more, to the same effect.
    for (size_t i = first; i < first + count; ++i) {
      if (Status s = EnqueueCopy(batch.dsts[i], batch.srcs[i], batch.sizes[i], (*own)->stream()); !s.ok())
        return s;
    }
  }
  return OkStatus();
}

Status CudaDevice::Run(Stream& stream, const PagedCopyArgs& args) {
  Result<CudaStream*> own = Own(stream);
  if (!own.ok()) return own.status();
  if (!properties_.has_kernels)
    return UnimplementedError("this build has no kernels for " + properties_.name);
  const CudaContextScope scope(context_);
  return ForEachLaunch(args, [&](const PagedCopyLaunch& launch) {
    const auto kind =
        has_bulk_copy_ && IsForBulkCopy(launch) ? PagedCopyKernelKind::kBulk : PagedCopyKernelKind::kVector;
    return CudaStatus(LaunchPagedCopy(launch, kind, options_.grid, (*own)->stream()), "cudaLaunchKernel");
  });
}

}  // namespace terrace
