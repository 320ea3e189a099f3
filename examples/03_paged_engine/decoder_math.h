// The decoder's arithmetic: one struct per step, whose operator() computes one item of it; the items of a
// step do not depend on each other. The host runs them in a loop, CUDA one per thread (forward.h): one body
// for both.
//
// What an item computes never depends on how many tokens are computed together: each sum has one order. A
// prompt whose prefix is loaded therefore gives the same logits as one that is computed, bit by bit.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define PAGED_ENGINE_HOST_DEVICE __host__ __device__
#else
#define PAGED_ENGINE_HOST_DEVICE
#endif

namespace paged_engine {

inline constexpr uint32_t kHeadDim = 32;
inline constexpr uint32_t kTile = 16;  // columns that one item of a MatMul computes

// KV is kept as bf16: the upper half of a float, rounded to nearest even.
PAGED_ENGINE_HOST_DEVICE inline float FromBf16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  memcpy(&result, &bits, sizeof(result));
  return result;
}

PAGED_ENGINE_HOST_DEVICE inline uint16_t ToBf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Where one layer's K and V of a sequence lie: the strides of the PagedKvView that the cache is given.
struct LayerPages {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int64_t block_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  const int64_t* blocks = nullptr;
  uint32_t tokens_per_block = 0;

  PAGED_ENGINE_HOST_DEVICE int64_t OffsetOf(uint32_t position, uint32_t head) const {
    return blocks[position / tokens_per_block] * block_stride +
           static_cast<int64_t>(position % tokens_per_block) * token_stride +
           static_cast<int64_t>(head) * head_stride;
  }
  PAGED_ENGINE_HOST_DEVICE uint16_t* K(uint32_t position, uint32_t head) const {
    return reinterpret_cast<uint16_t*>(k + OffsetOf(position, head));
  }
  PAGED_ENGINE_HOST_DEVICE uint16_t* V(uint32_t position, uint32_t head) const {
    return reinterpret_cast<uint16_t*>(v + OffsetOf(position, head));
  }
};

struct Embed {  // item: an element of a token's row
  const uint32_t* tokens;
  const float* table;
  float* out;
  uint32_t width;

  PAGED_ENGINE_HOST_DEVICE void operator()(uint32_t item) const {
    out[item] = table[static_cast<size_t>(tokens[item / width]) * width + item % width];
  }
};

struct RmsNorm {  // item: a token
  const float* in;
  const float* weight;
  float* out;
  uint32_t width;

  PAGED_ENGINE_HOST_DEVICE void operator()(uint32_t item) const {
    const float* row = in + static_cast<size_t>(item) * width;
    float squares = 0;
    for (uint32_t i = 0; i < width; ++i) squares += row[i] * row[i];
    const float scale = 1.0f / sqrtf(squares / static_cast<float>(width) + 1e-5f);
    for (uint32_t i = 0; i < width; ++i)
      out[static_cast<size_t>(item) * width + i] = row[i] * scale * weight[i];
  }
};

// out = in x weight, or out += it (the residual). Weights lie [in][out], `columns` a multiple of kTile.
struct MatMul {  // item: kTile columns of a token; the tokens of a tile are neighbours
  const float* in;
  const float* weight;
  float* out;
  uint32_t tokens;
  uint32_t rows;
  uint32_t columns;
  bool add;

  PAGED_ENGINE_HOST_DEVICE void operator()(uint32_t item) const {
    const uint32_t token = item % tokens;
    const uint32_t column = item / tokens * kTile;
    const float* row = in + static_cast<size_t>(token) * rows;
    float sums[kTile] = {};
    for (uint32_t r = 0; r < rows; ++r) {
      const float* w = weight + static_cast<size_t>(r) * columns + column;
      for (uint32_t c = 0; c < kTile; ++c) sums[c] += row[r] * w[c];
    }
    float* to = out + static_cast<size_t>(token) * columns + column;
    for (uint32_t c = 0; c < kTile; ++c) to[c] = add ? to[c] + sums[c] : sums[c];
  }
};

// Rotates Q and K by their positions, and keeps K and V in the pages.
struct RotateAndKeep {  // item: a head of a token, the query heads first
  float* q;
  const float* k;
  const float* v;
  LayerPages pages;
  uint32_t first_position;
  uint32_t heads;
  uint32_t kv_heads;

  PAGED_ENGINE_HOST_DEVICE void operator()(uint32_t item) const {
    const uint32_t token = item / (heads + kv_heads);
    const uint32_t head = item % (heads + kv_heads);
    const uint32_t position = first_position + token;
    if (head < heads) {
      float* row = q + (static_cast<size_t>(token) * heads + head) * kHeadDim;
      for (uint32_t i = 0; i < kHeadDim / 2; ++i) Rotate(row, i, position, &row[i], &row[i + kHeadDim / 2]);
      return;
    }
    const uint32_t kv_head = head - heads;
    const size_t at = (static_cast<size_t>(token) * kv_heads + kv_head) * kHeadDim;
    uint16_t* k_page = pages.K(position, kv_head);
    uint16_t* v_page = pages.V(position, kv_head);
    for (uint32_t i = 0; i < kHeadDim / 2; ++i) {
      float low, high;
      Rotate(k + at, i, position, &low, &high);
      k_page[i] = ToBf16(low);
      k_page[i + kHeadDim / 2] = ToBf16(high);
    }
    for (uint32_t i = 0; i < kHeadDim; ++i) v_page[i] = ToBf16(v[at + i]);
  }

 private:
  PAGED_ENGINE_HOST_DEVICE static void Rotate(const float* row, uint32_t i, uint32_t position, float* low,
                                              float* high) {
    const float frequency = powf(10000.0f, -2.0f * static_cast<float>(i) / kHeadDim);
    const float angle = static_cast<float>(position) * frequency;
    const float c = cosf(angle), s = sinf(angle);
    const float x = row[i], y = row[i + kHeadDim / 2];
    *low = x * c - y * s;
    *high = x * s + y * c;
  }
};

// softmax(Q K / sqrt(d)) V over all positions up to the token's own, out of the pages, in one pass.
struct Attend {  // item: a query head of a token
  const float* q;
  float* out;
  LayerPages pages;
  uint32_t first_position;
  uint32_t heads;
  uint32_t kv_heads;

  PAGED_ENGINE_HOST_DEVICE void operator()(uint32_t item) const {
    const uint32_t position = first_position + item / heads;
    const uint32_t kv_head = item % heads / (heads / kv_heads);
    const float* row = q + static_cast<size_t>(item) * kHeadDim;
    const float scale = 1.0f / sqrtf(static_cast<float>(kHeadDim));
    float best = -INFINITY, sum = 0;
    float mixed[kHeadDim] = {};
    for (uint32_t p = 0; p <= position; ++p) {
      const uint16_t* key = pages.K(p, kv_head);
      float products[4] = {};
      for (uint32_t i = 0; i < kHeadDim; i += 4) {
        for (uint32_t j = 0; j < 4; ++j) products[j] += row[i + j] * FromBf16(key[i + j]);
      }
      const float score = ((products[0] + products[1]) + (products[2] + products[3])) * scale;
      if (!(score <= best)) {  // a NaN too: it must be seen in the logits
        const float shrink = expf(best - score);
        for (uint32_t i = 0; i < kHeadDim; ++i) mixed[i] *= shrink;
        sum *= shrink;
        best = score;
      }
      const float weight = expf(score - best);
      const uint16_t* value = pages.V(p, kv_head);
      for (uint32_t i = 0; i < kHeadDim; ++i) mixed[i] += weight * FromBf16(value[i]);
      sum += weight;
    }
    float* to = out + static_cast<size_t>(item) * kHeadDim;
    for (uint32_t i = 0; i < kHeadDim; ++i) to[i] = mixed[i] / sum;
  }
};

struct SwiGlu {  // item: an element
  float* gate;   // becomes silu(gate) * up
  const float* up;

  PAGED_ENGINE_HOST_DEVICE void operator()(uint32_t item) const {
    gate[item] = gate[item] / (1.0f + expf(-gate[item])) * up[item];
  }
};

}  // namespace paged_engine
