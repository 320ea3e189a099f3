// EnginePages: memory in the layouts of engines, with the KV of chunks in shuffled blocks, for measurements
// of gathers and scatters. K and V of 2 bytes x 128 a head; a layer of a chunk is 1 MiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/codec/payload_layout.h"
#include "terrace/kv_spec.h"
#include "terrace/paged_kv_view.h"
#include "terrace/tokens.h"

namespace terrace::bench {

// Where a block's bytes lie; T tokens of H heads, S = T x H x head.
enum class EngineLayout : uint8_t {
  kVllmFlashAttention,  // a tensor per layer    [K, V][block][T][H][head]
  kVllmCrossLayer,      // one                   [block][layer][K, V][T][H][head]
  kSglangMha,           // per layer, K and V    [block][T][H][head]
  kTrtllmCrossLayer,    // one                   [block][layer][K, V][H][T][head]
};
const char* EngineLayoutName(EngineLayout layout);

// A shape whose contiguous pieces, beside a payload, are `piece_bytes` long.
struct EngineShape {
  EngineLayout layout = EngineLayout::kVllmFlashAttention;
  uint32_t heads = 8;
  uint32_t tokens_per_block = 16;
  uint64_t piece_bytes = 0;
};
// The heads of a block lie apart in kTrtllmCrossLayer: one head per rank (a block is a piece), or eight of
// 256 bytes each. kInvalidArgument: a piece that is no multiple of a token.
Result<EngineShape> ShapeOfPieces(EngineLayout layout, uint64_t piece_bytes);

class EnginePages {
 public:
  // Room for as many chunks of `chunk_bytes` (a multiple of 1 MiB) as fit into `memory_bytes`.
  EnginePages(const EngineShape& shape, uint64_t memory_bytes, uint64_t chunk_bytes);

  const KvSpec& spec() const { return spec_; }
  const PayloadLayout& layout() const { return payload_layout_; }
  uint64_t num_chunks() const { return num_chunks_; }
  TokenRange TokensOf(uint64_t chunk) const {
    return {chunk * tokens_per_chunk_, (chunk + 1) * tokens_per_chunk_};
  }

  // Of all chunks, one behind the other, in memory of memory_bytes; `planes` is what it points to.
  PagedKvView ViewOf(std::byte* memory, std::vector<PlaneView>& planes) const;

 private:
  const EngineShape shape_;
  const uint32_t num_layers_;
  const uint64_t tokens_per_chunk_;
  const uint64_t num_chunks_;
  std::vector<int64_t> block_table_;
  const KvSpec spec_;
  const PayloadLayout payload_layout_;
};

}  // namespace terrace::bench
