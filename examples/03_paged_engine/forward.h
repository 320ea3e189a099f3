// One layer, and the logits behind the last one, as launches of the steps of decoder_math.h. `launch(step,
// n)` runs step(0) to step(n - 1), in any order, before the next launch begins: a loop on the host, a kernel
// on a device.
#pragma once

#include "decoder_math.h"
#include "model.h"

namespace paged_engine {

// Rows of `tokens` tokens each, in the memory that is computed in.
struct Activations {
  float* hidden = nullptr;        // [tokens][hidden]: the residual stream
  float* normed = nullptr;        // [tokens][hidden]
  float* q = nullptr;             // [tokens][heads * kHeadDim]
  float* k = nullptr;             // [tokens][kv_heads * kHeadDim]
  float* v = nullptr;             // the same
  float* attended = nullptr;      // as q
  float* gate = nullptr;          // [tokens][mlp]
  float* up = nullptr;            // the same
  float* logits = nullptr;        // [vocab], of one token
  uint32_t* token_ids = nullptr;  // [tokens]
};

struct Step {
  ModelShape shape;
  Activations rows;
  uint32_t first_position = 0;
  uint32_t tokens = 0;
};

template <typename Launch>
void RunEmbedding(const Launch& launch, const Step& step, const float* table) {
  launch(Embed{step.rows.token_ids, table, step.rows.hidden, step.shape.hidden},
         step.tokens * step.shape.hidden);
}

template <typename Launch>
void RunLayer(const Launch& launch, const Step& step, const LayerWeights& weights, const LayerPages& pages) {
  const ModelShape& shape = step.shape;
  const Activations& rows = step.rows;
  const uint32_t n = step.tokens;
  const auto multiply = [&](const float* in, const float* weight, float* out, uint32_t from, uint32_t to,
                            bool add) {
    launch(MatMul{in, weight, out, n, from, to, add}, n * (to / kTile));
  };
  launch(RmsNorm{rows.hidden, weights.attention_norm, rows.normed, shape.hidden}, n);
  multiply(rows.normed, weights.q, rows.q, shape.hidden, shape.q_width(), false);
  multiply(rows.normed, weights.k, rows.k, shape.hidden, shape.kv_width(), false);
  multiply(rows.normed, weights.v, rows.v, shape.hidden, shape.kv_width(), false);
  launch(RotateAndKeep{rows.q, rows.k, rows.v, pages, step.first_position, shape.heads, shape.kv_heads},
         n * (shape.heads + shape.kv_heads));
  launch(Attend{rows.q, rows.attended, pages, step.first_position, shape.heads, shape.kv_heads},
         n * shape.heads);
  multiply(rows.attended, weights.o, rows.hidden, shape.q_width(), shape.hidden, true);

  launch(RmsNorm{rows.hidden, weights.mlp_norm, rows.normed, shape.hidden}, n);
  multiply(rows.normed, weights.gate, rows.gate, shape.hidden, shape.mlp, false);
  multiply(rows.normed, weights.up, rows.up, shape.hidden, shape.mlp, false);
  launch(SwiGlu{rows.gate, rows.up}, n * shape.mlp);
  multiply(rows.gate, weights.down, rows.hidden, shape.mlp, shape.hidden, true);
}

// Of the step's last token.
template <typename Launch>
void RunLogits(const Launch& launch, const Step& step, const float* norm, const float* head) {
  const float* last = step.rows.hidden + static_cast<size_t>(step.tokens - 1) * step.shape.hidden;
  launch(RmsNorm{last, norm, step.rows.normed, step.shape.hidden}, 1);
  launch(MatMul{step.rows.normed, head, step.rows.logits, 1, step.shape.hidden, step.shape.vocab, false},
         step.shape.vocab / kTile);
}

}  // namespace paged_engine
