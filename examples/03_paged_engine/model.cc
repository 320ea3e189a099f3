#include "model.h"

#include <cmath>
#include <string>

#include "compute.h"

namespace paged_engine {
namespace {

// splitmix64; in [-1, 1).
float NextRandom(uint64_t& state) {
  uint64_t value = state += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return static_cast<float>((value ^ (value >> 31)) >> 40) * 0x1p-23f - 1.0f;
}

}  // namespace

// [readme:begin]
// What the cache is told of a model, once: all that the KV's bytes depend on, and no layout of any engine.
terrace::KvSpec SpecOf(const ModelShape& shape) {
  const terrace::PlaneSpec k{.kind = terrace::PlaneKind::kK,
                             .dtype = terrace::DType::kBF16,
                             .heads = shape.kv_heads,
                             .head_dim = kHeadDim,
                             .bytes_per_token = shape.kv_width() * 2};
  terrace::PlaneSpec v = k;
  v.kind = terrace::PlaneKind::kV;
  terrace::KvSpec spec;
  spec.model_id = "paged-engine, weights " + std::to_string(shape.seed);  // a real one: its weights' digest
  spec.payload_form = terrace::PayloadForm::kCanonical;
  spec.cut = terrace::Cut::kRanged;
  spec.layers.assign(shape.layers, terrace::LayerSpec{.planes = {k, v}});
  return spec;
}
// [readme:end]

Model::Model(const ModelShape& shape, Compute& compute)
    : shape_(shape), compute_(compute), random_state_(shape.seed) {
  embedding_ = Matrix(shape.vocab, shape.hidden);
  for (uint32_t i = 0; i < shape.layers; ++i) {
    LayerWeights& weights = layers_.emplace_back();
    weights.attention_norm = Norm(shape.hidden);
    weights.q = Matrix(shape.hidden, shape.q_width());
    weights.k = Matrix(shape.hidden, shape.kv_width());
    weights.v = Matrix(shape.hidden, shape.kv_width());
    weights.o = Matrix(shape.q_width(), shape.hidden);
    weights.mlp_norm = Norm(shape.hidden);
    weights.gate = Matrix(shape.hidden, shape.mlp);
    weights.up = Matrix(shape.hidden, shape.mlp);
    weights.down = Matrix(shape.mlp, shape.hidden);
  }
  final_norm_ = Norm(shape.hidden);
  head_ = Matrix(shape.hidden, shape.vocab);
}

const float* Model::Norm(size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = 1.0f + 0.1f * NextRandom(random_state_);
  return Keep(values);
}

const float* Model::Matrix(size_t rows, size_t columns) {
  std::vector<float> values(rows * columns);
  const float scale = 1.7f / std::sqrt(static_cast<float>(rows));
  for (float& value : values) value = scale * NextRandom(random_state_);
  return Keep(values);
}

const float* Model::Keep(const std::vector<float>& values) {
  memory_.push_back(compute_.Allocate(values.size() * sizeof(float)));
  compute_.Write(memory_.back().get(), values.data(), values.size() * sizeof(float));
  return reinterpret_cast<const float*>(memory_.back().get());
}

}  // namespace paged_engine
