// The decoder: its shape, and weights that a seed makes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "decoder_math.h"
#include "terrace/kv_spec.h"

namespace paged_engine {

class Compute;

// Widths are multiples of kTile, `heads` one of `kv_heads`.
struct ModelShape {
  uint32_t layers = 4;
  uint32_t hidden = 256;
  uint32_t heads = 8;
  uint32_t kv_heads = 4;
  uint32_t mlp = 512;
  uint32_t vocab = 512;
  uint64_t seed = 1;  // of the weights

  uint32_t q_width() const { return heads * kHeadDim; }
  uint32_t kv_width() const { return kv_heads * kHeadDim; }
};

// Everything that the KV's bytes depend on: the shape and the weights. Not the layout of the pages: payloads
// are canonical, so that an engine with another layout takes the same ones.
terrace::KvSpec SpecOf(const ModelShape& shape);

struct LayerWeights {
  const float* attention_norm;
  const float* q;
  const float* k;
  const float* v;
  const float* o;
  const float* mlp_norm;
  const float* gate;
  const float* up;
  const float* down;
};

class Model {
 public:
  // In memory of `compute`, which outlives it.
  Model(const ModelShape& shape, Compute& compute);

  const ModelShape& shape() const { return shape_; }
  const LayerWeights& layer(uint32_t i) const { return layers_[i]; }
  const float* embedding() const { return embedding_; }
  const float* final_norm() const { return final_norm_; }
  const float* head() const { return head_; }

 private:
  const float* Norm(size_t count);
  // Values of about +-1 / sqrt(rows), so that activations keep their size.
  const float* Matrix(size_t rows, size_t columns);
  const float* Keep(const std::vector<float>& values);

  const ModelShape shape_;
  Compute& compute_;
  uint64_t random_state_;
  std::vector<std::shared_ptr<std::byte>> memory_;
  std::vector<LayerWeights> layers_;
  const float* embedding_;
  const float* final_norm_;
  const float* head_;
};

}  // namespace paged_engine
