#include "engine.h"

#include <algorithm>

namespace paged_engine {

using terrace::Result;
using terrace::Status;

Engine::Engine(const ModelShape& shape, PageLayout layout, uint32_t num_blocks, Compute& compute)
    : compute_(compute),
      model_(shape, compute),
      pages_(shape, layout, num_blocks, compute),
      block_table_(compute.Allocate(num_blocks * sizeof(int64_t))) {
  const size_t floats = size_t{kTokensPerStep} * (2 * shape.hidden + 2 * shape.q_width() +
                                                  2 * shape.kv_width() + 2 * shape.mlp + 1) +
                        shape.vocab;
  memory_ = compute.Allocate(floats * sizeof(float));
  auto* next = reinterpret_cast<float*>(memory_.get());
  const auto take = [&](size_t width) {
    float* rows = next;
    next += kTokensPerStep * width;
    return rows;
  };
  rows_ = {.hidden = take(shape.hidden),
           .normed = take(shape.hidden),
           .q = take(shape.q_width()),
           .k = take(shape.kv_width()),
           .v = take(shape.kv_width()),
           .attended = take(shape.q_width()),
           .gate = take(shape.mlp),
           .up = take(shape.mlp)};
  rows_.token_ids = reinterpret_cast<uint32_t*>(take(1));
  rows_.logits = next;
}

Result<Logits> Engine::Forward(const Sequence& sequence, uint64_t first, const BeforeLayer& before_layer) {
  const ModelShape& shape = model_.shape();
  const auto* blocks = reinterpret_cast<const int64_t*>(block_table_.get());
  compute_.Write(block_table_.get(), sequence.blocks.data(), sequence.blocks.size() * sizeof(int64_t));
  Step step{.shape = shape, .rows = rows_};
  for (uint64_t at = first; at < sequence.tokens.size(); at += step.tokens) {
    step.first_position = static_cast<uint32_t>(at);
    step.tokens = static_cast<uint32_t>(std::min<uint64_t>(kTokensPerStep, sequence.tokens.size() - at));
    compute_.Write(rows_.token_ids, sequence.tokens.data() + at, step.tokens * sizeof(uint32_t));
    compute_.Embedding(step, model_.embedding());
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
      if (at == first && before_layer) {
        if (Status ready = before_layer(layer); !ready.ok()) return ready;
      }
      compute_.Layer(step, model_.layer(layer), pages_.Layer(layer, blocks));
    }
  }
  compute_.Logits(step, model_.final_norm(), model_.head());
  Logits logits(shape.vocab);
  compute_.Read(logits.data(), rows_.logits, logits.size() * sizeof(float));
  return logits;
}

}  // namespace paged_engine
