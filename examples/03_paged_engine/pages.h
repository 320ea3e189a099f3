// KvPages: the engine's paged KV memory in one of two layouts, its blocks, and what it tells of them: to the
// attention (LayerPages) and to the cache (PagedKvView), from the same numbers.
//
//   kPerLayer     K and V apart, a region per layer     k[layer] + block | token | head | dim      ("NHD")
//   kCrossLayer   one region, all of a block together   block | layer | K, V | head | token | dim  ("HND")
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "compute.h"
#include "model.h"
#include "terrace/paged_kv_view.h"
#include "terrace/tokens.h"

namespace paged_engine {

enum class PageLayout { kPerLayer, kCrossLayer };

// A request: its tokens, and which blocks hold their KV.
struct Sequence {
  std::vector<terrace::Token> tokens;
  std::vector<int64_t> blocks;  // in the order of the tokens
};

class KvPages {
 public:
  static constexpr uint32_t kTokensPerBlock = 16;

  KvPages(const ModelShape& shape, PageLayout layout, uint32_t num_blocks, Compute& compute);

  // Enough blocks for `tokens` more tokens of the sequence than it has blocks for; false: there are not so
  // many free ones. The lowest ones, ascending, or the highest ones, descending.
  bool Reserve(Sequence& sequence, uint64_t tokens, bool descending);
  // Gives the blocks back, and fills them with NaN: nobody may read them any more. Enqueued on the stream.
  void Free(Sequence& sequence);

  // `blocks`: the sequence's table, where the layer is computed.
  LayerPages Layer(uint32_t layer, const int64_t* blocks) const;
  // Valid while this and the sequence are, and the sequence's blocks stay as they are.
  terrace::PagedKvView ViewOf(const Sequence& sequence) const;

 private:
  std::byte* AddRegion();  // of NaN

  const ModelShape shape_;
  const PageLayout layout_;
  Compute& compute_;
  std::vector<bool> used_;
  std::vector<std::shared_ptr<std::byte>> regions_;
  uint64_t block_bytes_;  // of a block in one region
  std::vector<std::byte*> k_bases_, v_bases_;
  std::vector<terrace::PlaneView> planes_;
};

}  // namespace paged_engine
