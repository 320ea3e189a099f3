// A CUDA device: every step is a kernel, one thread per item, on one stream of the engine's own, which the
// cache adopts: its copies are ordered against the engine's work by events.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "compute.h"

namespace paged_engine {
namespace {

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <typename Body>
__global__ void RunItems(Body step, uint32_t items) {
  const uint32_t item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item < items) step(item);
}

struct Launch {
  cudaStream_t stream;

  template <typename Body>
  void operator()(const Body& step, uint32_t items) const {
    constexpr uint32_t kThreads = 128;
    RunItems<<<(items + kThreads - 1) / kThreads, kThreads, 0, stream>>>(step, items);
    Check(cudaGetLastError(), "launch");
  }
};

class CudaCompute : public Compute {
 public:
  explicit CudaCompute(std::shared_ptr<terrace::Device> device) {
    Check(cudaSetDevice(device->properties().ordinal), "cudaSetDevice");
    Check(cudaStreamCreateWithFlags(&native_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    stream_ = device->AdoptStream(native_).value();
  }
  // The engine's memory was given back before; the cache is closed, and nothing holds the stream any more.
  ~CudaCompute() override {
    stream_.reset();
    cudaStreamDestroy(native_);
  }
  const std::shared_ptr<terrace::Stream>& stream() const override { return stream_; }

  std::shared_ptr<std::byte> Allocate(size_t bytes) override {
    void* memory = nullptr;
    Check(cudaMalloc(&memory, bytes), "cudaMalloc");
    return {static_cast<std::byte*>(memory), [](std::byte* held) { cudaFree(held); }};
  }
  // Pageable memory: it was read when the call returns.
  void Write(void* to, const void* from_host, size_t bytes) override {
    Check(cudaMemcpyAsync(to, from_host, bytes, cudaMemcpyHostToDevice, native_), "cudaMemcpyAsync");
  }
  void Read(void* to_host, const void* from, size_t bytes) override {
    Check(cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, native_), "cudaMemcpyAsync");
    Check(cudaStreamSynchronize(native_), "cudaStreamSynchronize");
  }
  void Fill(void* to, int value, size_t bytes) override {
    Check(cudaMemsetAsync(to, value, bytes, native_), "cudaMemsetAsync");
  }

  void Embedding(const Step& step, const float* table) override {
    RunEmbedding(Launch{native_}, step, table);
  }
  void Layer(const Step& step, const LayerWeights& weights, const LayerPages& pages) override {
    RunLayer(Launch{native_}, step, weights, pages);
  }
  void Logits(const Step& step, const float* norm, const float* head) override {
    RunLogits(Launch{native_}, step, norm, head);
  }

 private:
  cudaStream_t native_ = nullptr;
  std::shared_ptr<terrace::Stream> stream_;
};

}  // namespace

terrace::Result<std::unique_ptr<Compute>> MakeCudaCompute(int ordinal) {
  terrace::Result<std::shared_ptr<terrace::Device>> device = terrace::MakeCudaDevice(ordinal);
  if (!device.ok()) return device.status();
  return std::unique_ptr<Compute>(std::make_unique<CudaCompute>(std::move(*device)));
}

}  // namespace paged_engine
