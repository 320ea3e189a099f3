// Fillings of PagedKvView for the engines' layouts: each function says which strides one layout has. Nothing
// is guessed from shapes; the caller says which layout its engine uses, and what it is given is checked as
// far as numbers can be.
//
//   Result<PagedPlanes> planes = FlashInferPlanes(geometry, tensors, HeadOrder::kTokensFirst);
//   PagedKvView view{.part = part, .planes = planes->planes(), .block_table = table,
//                    .tokens_per_block = geometry.tokens_per_block, ...};
//
// In the drawings: NL layers, NB blocks, T tokens per block, H heads, one layer's memory from its first byte
// on, the last dimension contiguous bytes. Memory is the caller's, of any device: its bytes are not touched.
// Plain functions; every thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "terrace/bytes.h"
#include "terrace/export.h"
#include "terrace/paged_kv_view.h"
#include "terrace/status.h"

namespace terrace {

// Sizes of one part (group, shard) in an engine's memory. Heads are those of the part: a rank's.
struct PagedGeometry {
  uint32_t num_layers = 0;
  uint64_t num_blocks = 0;
  uint32_t tokens_per_block = 0;
  uint32_t num_heads = 0;      // KV heads; 1 of latents
  uint32_t head_bytes = 0;     // of K, or of the latent: one head of one token
  uint32_t v_head_bytes = 0;   // 0 = as K. Another size only where the function says so
  uint32_t element_bytes = 1;  // 1, 2, 4 or 8: memory and heads are multiples of it
};

// Order inside a block.
enum class HeadOrder : uint8_t {
  kTokensFirst = 1,  // "NHD": [T][H][head_bytes]
  kHeadsFirst = 2,   // "HND": [H][T][head_bytes]
};

// What a view's `planes` points to: owner of the entries and of their layer_bases. Moving it leaves both
// where they are; a view made from it is good until it is destroyed, assigned to or appended to.
class TERRACE_API PagedPlanes {
 public:
  PagedPlanes() = default;
  PagedPlanes(PagedPlanes&&) noexcept = default;
  PagedPlanes& operator=(PagedPlanes&&) noexcept = default;
  PagedPlanes(const PagedPlanes&) = delete;
  PagedPlanes& operator=(const PagedPlanes&) = delete;

  std::span<const PlaneView> planes() const { return planes_; }
  // A plane whose layers have a base each, or (one base) one distance.
  void Add(const PlaneView& strides, std::vector<std::byte*> layer_bases);
  void Add(const PlaneView& plane);
  // Behind the planes here: scales behind K and V, as the spec has them.
  void Append(PagedPlanes more);

 private:
  std::vector<PlaneView> planes_;
  std::vector<std::vector<std::byte*>> layer_bases_;  // of the planes that have any
};

// All functions: planes in the order K, V. kInvalidArgument names what is wrong: a size of 0, a product
// beyond 63 bits, heads or memory that are no multiples of element_bytes, another number of memories than
// layers, memory that is null, too short for the geometry, or overlaps another layer's. Memory may be longer
// than needed.
//
// Scales (fp8 with one per token and head, say) lie in arrays of their own: the same functions describe them,
// with the bytes of a scale as head_bytes, and Append puts them behind K and V.

// vLLM, FlashAttention: one tensor per layer [K, V][NB][T][H][head_bytes], or [..][H][T][..].
TERRACE_API Result<PagedPlanes> FlashAttentionPlanes(const PagedGeometry& geometry,
                                                     std::span<const MutableBytes> layers, HeadOrder order);

// vLLM, FlashInfer: one tensor per layer [NB][K, V][T][H][head_bytes], or [..][H][T][..].
TERRACE_API Result<PagedPlanes> FlashInferPlanes(const PagedGeometry& geometry,
                                                 std::span<const MutableBytes> layers, HeadOrder order);

// vLLM, cross-layer blocks (kTokensFirst), TensorRT-LLM (kHeadsFirst): one tensor for all layers
// [NB][NL][K, V][T][H][head_bytes], or [..][H][T][..].
TERRACE_API Result<PagedPlanes> CrossLayerPlanes(const PagedGeometry& geometry, MutableBytes memory,
                                                 HeadOrder order);

// vLLM, K and V fused in the last dimension: one tensor per layer [NB][H][T][K bytes, V bytes]. V may have a
// size of its own.
TERRACE_API Result<PagedPlanes> FusedPlanes(const PagedGeometry& geometry,
                                            std::span<const MutableBytes> layers);

// SGLang, MHA: a tensor of K and one of V per layer, each [NB][T][H][head_bytes] (its token slots are
// NB * T rows; a page is a block, 1 token long by default). V may have a size of its own. Scales of each lie
// like this too.
TERRACE_API Result<PagedPlanes> KAndVApartPlanes(const PagedGeometry& geometry,
                                                 std::span<const MutableBytes> k_layers,
                                                 std::span<const MutableBytes> v_layers);

// vLLM MLA, SGLang MLA: one tensor per layer [NB][T][head_bytes], one plane of latents for all heads.
// num_heads must be 1; there is no V.
TERRACE_API Result<PagedPlanes> LatentPlanes(const PagedGeometry& geometry,
                                             std::span<const MutableBytes> layers);

}  // namespace terrace
