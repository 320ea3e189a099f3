// Every layout of the engines as a filling of PagedKvView, beside its index formula written by hand; Pages is
// an engine's memory in one of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "lib/codec/paged_copy.h"
#include "terrace/paged_kv_view.h"

namespace terrace {

inline constexpr std::byte kUntouched{0xa5};

// Sizes of an engine's memory, in bytes where the engines' formulas have elements.
struct Geometry {
  int64_t layers = 3;
  int64_t blocks = 7;
  int64_t block_tokens = 16;
  int64_t heads = 2;
  int64_t head_bytes = 128;
  int64_t kv = 2;  // planes: K and V, or one latent
  int64_t S() const { return block_tokens * heads * head_bytes; }
};

// Byte 0 of one head of one token, by hand: which allocation, and where in it.
struct Place {
  int64_t allocation;
  int64_t offset;
};

struct Index {
  int64_t layer, kv, block, token, head;
};

// A row of the engines' layouts: allocations, the formula, and the strides that describe it.
struct Layout {
  const char* name;
  bool latent;
  int64_t (*allocations)(const Geometry&);
  int64_t (*allocation_bytes)(const Geometry&);
  Place (*place)(const Geometry&, const Index&);
  // Strides of plane `kv`, all but the bases.
  PlaneView (*strides)(const Geometry&);
  // Its base in layer `l`.
  Place (*base)(const Geometry&, int64_t layer, int64_t kv);
};

inline int64_t OnePerLayer(const Geometry& g) { return g.layers; }
inline int64_t OneInAll(const Geometry&) { return 1; }
inline int64_t TwoPerLayer(const Geometry& g) { return 2 * g.layers; }
inline int64_t BothPlanes(const Geometry& g) { return 2 * g.blocks * g.S(); }
inline int64_t OnePlane(const Geometry& g) { return g.blocks * g.S(); }
inline int64_t AllLayers(const Geometry& g) { return 2 * g.blocks * g.S() * g.layers; }

inline int64_t Nhd(const Geometry& g, const Index& i) {
  return i.token * g.heads * g.head_bytes + i.head * g.head_bytes;
}
inline int64_t Hnd(const Geometry& g, const Index& i) {
  return i.head * g.block_tokens * g.head_bytes + i.token * g.head_bytes;
}
inline PlaneView NhdStrides(const Geometry& g, int64_t block_stride) {
  return {.block_stride = block_stride,
          .token_stride = g.heads * g.head_bytes,
          .head_stride = g.head_bytes,
          .num_heads = static_cast<uint32_t>(g.heads),
          .run_bytes = static_cast<uint32_t>(g.head_bytes)};
}
inline PlaneView HndStrides(const Geometry& g, int64_t block_stride) {
  PlaneView view = NhdStrides(g, block_stride);
  view.token_stride = g.head_bytes;
  view.head_stride = g.block_tokens * g.head_bytes;
  return view;
}

inline const Layout kLayouts[] = {
    {"flash_attention_nhd", false, OnePerLayer, BothPlanes,
     [](const Geometry& g, const Index& i) {
       return Place{i.layer, i.kv * g.blocks * g.S() + i.block * g.S() + Nhd(g, i)};
     },
     [](const Geometry& g) { return NhdStrides(g, g.S()); },
     [](const Geometry& g, int64_t l, int64_t kv) {
       return Place{l, kv * g.blocks * g.S()};
     }},
    {"flash_attention_hnd", false, OnePerLayer, BothPlanes,
     [](const Geometry& g, const Index& i) {
       return Place{i.layer, i.kv * g.blocks * g.S() + i.block * g.S() + Hnd(g, i)};
     },
     [](const Geometry& g) { return HndStrides(g, g.S()); },
     [](const Geometry& g, int64_t l, int64_t kv) {
       return Place{l, kv * g.blocks * g.S()};
     }},
    {"flash_infer_nhd", false, OnePerLayer, BothPlanes,
     [](const Geometry& g, const Index& i) {
       return Place{i.layer, i.block * 2 * g.S() + i.kv * g.S() + Nhd(g, i)};
     },
     [](const Geometry& g) { return NhdStrides(g, 2 * g.S()); },
     [](const Geometry& g, int64_t l, int64_t kv) {
       return Place{l, kv * g.S()};
     }},
    {"flash_infer_hnd", false, OnePerLayer, BothPlanes,
     [](const Geometry& g, const Index& i) {
       return Place{i.layer, i.block * 2 * g.S() + i.kv * g.S() + Hnd(g, i)};
     },
     [](const Geometry& g) { return HndStrides(g, 2 * g.S()); },
     [](const Geometry& g, int64_t l, int64_t kv) {
       return Place{l, kv * g.S()};
     }},
    {"cross_layer_nhd", false, OneInAll, AllLayers,
     [](const Geometry& g, const Index& i) {
       return Place{0, i.block * 2 * g.S() * g.layers + i.layer * 2 * g.S() + i.kv * g.S() + Nhd(g, i)};
     },
     [](const Geometry& g) { return NhdStrides(g, 2 * g.S() * g.layers); },
     [](const Geometry& g, int64_t l, int64_t kv) {
       return Place{0, l * 2 * g.S() + kv * g.S()};
     }},
    {"fused_k_and_v", false, OnePerLayer, BothPlanes,
     [](const Geometry& g, const Index& i) {
       return Place{i.layer, i.block * 2 * g.S() + i.head * g.block_tokens * 2 * g.head_bytes +
                                 i.token * 2 * g.head_bytes + i.kv * g.head_bytes};
     },
     [](const Geometry& g) {
       PlaneView view = HndStrides(g, 2 * g.S());
       view.token_stride = 2 * g.head_bytes;
       view.head_stride = g.block_tokens * 2 * g.head_bytes;
       return view;
     },
     [](const Geometry& g, int64_t l, int64_t kv) {
       return Place{l, kv * g.head_bytes};
     }},
    {"latent", true, OnePerLayer, OnePlane,
     [](const Geometry& g, const Index& i) {
       return Place{i.layer, i.block * g.block_tokens * g.head_bytes + i.token * g.head_bytes};
     },
     [](const Geometry& g) { return NhdStrides(g, g.block_tokens * g.head_bytes); },
     [](const Geometry&, int64_t l, int64_t) {
       return Place{l, 0};
     }},
    {"k_and_v_apart", false, TwoPerLayer, OnePlane,
     [](const Geometry& g, const Index& i) {
       return Place{i.kv * g.layers + i.layer, i.block * g.S() + Nhd(g, i)};
     },
     [](const Geometry& g) { return NhdStrides(g, g.S()); },
     [](const Geometry& g, int64_t l, int64_t kv) {
       return Place{kv * g.layers + l, 0};
     }},
    {"cross_layer_hnd", false, OneInAll, AllLayers,
     [](const Geometry& g, const Index& i) {
       return Place{0, i.block * 2 * g.S() * g.layers + i.layer * 2 * g.S() + i.kv * g.S() + Hnd(g, i)};
     },
     [](const Geometry& g) { return HndStrides(g, 2 * g.S() * g.layers); },
     [](const Geometry& g, int64_t l, int64_t kv) {
       return Place{0, l * 2 * g.S() + kv * g.S()};
     }},
};

inline KvSpec SpecOf(const Geometry& g) {
  KvSpec spec;
  spec.model_id = "m";
  spec.payload_form = PayloadForm::kCanonical;
  LayerSpec layer;
  for (int64_t kv = 0; kv < g.kv; ++kv) {
    const PlaneKind kind = g.kv == 1 ? PlaneKind::kLatent : kv == 0 ? PlaneKind::kK : PlaneKind::kV;
    layer.planes.push_back({kind, DType::kU8, static_cast<uint32_t>(g.heads),
                            static_cast<uint32_t>(g.head_bytes),
                            static_cast<uint32_t>(g.heads * g.head_bytes)});
  }
  spec.layers.assign(static_cast<size_t>(g.layers), layer);
  return spec;
}

inline void FillRandom(std::vector<std::byte>& bytes, std::mt19937_64& random) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), bytes.size() - at));
  }
}

using Memory = std::vector<std::vector<std::byte>>;

// An engine's memory of one layout, its view, and the payload's index formula.
class Pages {
 public:
  Pages(const Layout& of_layout, const Geometry& of_geometry, std::vector<int64_t> blocks)
      : layout(of_layout),
        g(of_geometry),
        spec(SpecOf(g)),
        payload_layout(spec, {}),
        table(std::move(blocks)) {
    memory.assign(static_cast<size_t>(layout.allocations(g)),
                  std::vector<std::byte>(static_cast<size_t>(layout.allocation_bytes(g)), kUntouched));
    for (int64_t kv = 0; kv < g.kv; ++kv) {
      PlaneView& plane = planes.emplace_back(layout.strides(g));
      const Place first = layout.base(g, 0, kv);
      plane.base = memory[static_cast<size_t>(first.allocation)].data() + first.offset;
      if (layout.allocations(g) == 1) {
        plane.layer_stride = layout.base(g, 1, kv).offset - first.offset;
        continue;
      }
      std::vector<std::byte*>& of_layers = bases.emplace_back();
      for (int64_t l = 0; l < g.layers; ++l) {
        const Place base = layout.base(g, l, kv);
        of_layers.push_back(memory[static_cast<size_t>(base.allocation)].data() + base.offset);
      }
    }
    for (size_t kv = 0; kv < bases.size(); ++kv) planes[kv].layer_bases = bases[kv];
    view.planes = planes;
    view.block_table = table;
    view.tokens_per_block = static_cast<uint32_t>(g.block_tokens);
    view.first_token = 32;
    view.num_tokens = table.size() * static_cast<uint64_t>(g.block_tokens);
  }

  void Fill(std::mt19937_64& random) {
    for (auto& allocation : memory) FillRandom(allocation, random);
  }

  PagedCopy CopyOf(TokenRange payload_tokens) const { return {payload_layout, view, payload_tokens}; }
  size_t PayloadBytes(TokenRange tokens) const {
    return payload_layout.bytes_per_token() * (tokens.end - tokens.begin);
  }

  // Calls `run(place in memory, offset in the payload)` for every run of `tokens` and `layers`, by hand.
  template <typename Run>
  void ForEachRun(TokenRange payload_tokens, TokenRange tokens, LayerSpan layers, const Run& run) const {
    const auto n = static_cast<int64_t>(payload_tokens.end - payload_tokens.begin);
    for (int64_t l = layers.begin; l < layers.end; ++l) {
      for (int64_t kv = 0; kv < g.kv; ++kv) {
        for (uint64_t token = tokens.begin; token < tokens.end; ++token) {
          const auto slot = static_cast<int64_t>(token - view.first_token);
          const int64_t block = table[static_cast<size_t>(slot / g.block_tokens)];
          if (block < 0) continue;
          for (int64_t h = 0; h < g.heads; ++h) {
            const Place place = layout.place(g, {l, kv, block, slot % g.block_tokens, h});
            const auto in_payload = static_cast<int64_t>(token - payload_tokens.begin);
            run(place, (((l * g.kv + kv) * n + in_payload) * g.heads + h) * g.head_bytes);
          }
        }
      }
    }
  }

  const Layout& layout;
  const Geometry g;
  const KvSpec spec;
  const PayloadLayout payload_layout;
  Memory memory;
  std::vector<PlaneView> planes;
  std::vector<std::vector<std::byte*>> bases;
  std::vector<int64_t> table;
  PagedKvView view;
};

}  // namespace terrace
