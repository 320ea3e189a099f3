// The host: every step is a loop, every call is done when it returns.
#include <cstring>
#include <new>

#include "compute.h"

namespace paged_engine {
namespace {

constexpr auto kLoop = [](const auto& step, uint32_t items) {
  for (uint32_t item = 0; item < items; ++item) step(item);
};

class HostCompute : public Compute {
 public:
  HostCompute() : stream_(terrace::MakeHostDevice()->MakeStream().value()) {}
  const std::shared_ptr<terrace::Stream>& stream() const override { return stream_; }

  std::shared_ptr<std::byte> Allocate(size_t bytes) override {
    constexpr std::align_val_t kAlignment{4096};
    return {static_cast<std::byte*>(::operator new(bytes, kAlignment)),
            [](std::byte* memory) { ::operator delete(memory, kAlignment); }};
  }
  void Write(void* to, const void* from_host, size_t bytes) override { std::memcpy(to, from_host, bytes); }
  void Read(void* to_host, const void* from, size_t bytes) override { std::memcpy(to_host, from, bytes); }
  void Fill(void* to, int value, size_t bytes) override { std::memset(to, value, bytes); }

  void Embedding(const Step& step, const float* table) override { RunEmbedding(kLoop, step, table); }
  void Layer(const Step& step, const LayerWeights& weights, const LayerPages& pages) override {
    RunLayer(kLoop, step, weights, pages);
  }
  void Logits(const Step& step, const float* norm, const float* head) override {
    RunLogits(kLoop, step, norm, head);
  }

 private:
  std::shared_ptr<terrace::Stream> stream_;
};

}  // namespace

std::unique_ptr<Compute> MakeHostCompute() { return std::make_unique<HostCompute>(); }

#ifndef PAGED_ENGINE_CUDA
terrace::Result<std::unique_ptr<Compute>> MakeCudaCompute(int) {
  return terrace::UnavailableError("this program was built without CUDA");
}
#endif

}  // namespace paged_engine
