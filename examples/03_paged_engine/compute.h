// Compute: where the engine computes - the host, or a CUDA device - and the memory there. Work is done in the
// order of the calls, on one stream: the same that the cache's copies are ordered against.
#pragma once

#include <cstddef>
#include <memory>

#include "forward.h"
#include "terrace/device.h"
#include "terrace/status.h"

namespace paged_engine {

class Compute {
 public:
  virtual ~Compute() = default;
  virtual const std::shared_ptr<terrace::Stream>& stream() const = 0;

  virtual std::shared_ptr<std::byte> Allocate(size_t bytes) = 0;
  virtual void Write(void* to, const void* from_host, size_t bytes) = 0;
  virtual void Read(void* to_host, const void* from, size_t bytes) = 0;  // waits for everything before it
  virtual void Fill(void* to, int value, size_t bytes) = 0;

  virtual void Embedding(const Step& step, const float* table) = 0;
  virtual void Layer(const Step& step, const LayerWeights& weights, const LayerPages& pages) = 0;
  virtual void Logits(const Step& step, const float* norm, const float* head) = 0;
};

std::unique_ptr<Compute> MakeHostCompute();
// kUnavailable: this program was built without CUDA, or there is no such device; the text says which.
terrace::Result<std::unique_ptr<Compute>> MakeCudaCompute(int ordinal);

}  // namespace paged_engine
