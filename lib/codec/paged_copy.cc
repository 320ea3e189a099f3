#include "lib/codec/paged_copy.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "lib/base/check.h"
#include "lib/memory/stream_copy.h"

namespace terrace {
namespace {

// One plane of one layer in the engine's memory, its runs as long as the strides allow.
struct PlaneRuns {
  std::byte* base = nullptr;
  int64_t block_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t num_heads = 1;
  int64_t run_bytes = 0;
  bool tokens_are_contiguous = false;  // within a block
};

// Planes of the view are one per plane of a layer, or one per (layer, plane); see PagedKvView.
PlaneRuns RunsOf(const PagedCopy& copy, uint32_t layer, uint32_t plane) {
  const std::span<const PlanePlace> places = copy.layout.planes(layer);
  const bool shared = copy.view.planes.size() == places.size();
  const auto before = static_cast<size_t>(places.data() - copy.layout.all_planes().data());
  const PlaneView& from = copy.view.planes[shared ? plane : before + plane];
  const uint32_t l = shared ? layer : 0;
  PlaneRuns runs;
  runs.base = from.layer_bases.empty() ? from.base + int64_t{l} * from.layer_stride : from.layer_bases[l];
  runs.block_stride = from.block_stride;
  runs.token_stride = from.token_stride;
  runs.head_stride = from.head_stride;
  runs.num_heads = from.num_heads;
  runs.run_bytes = from.run_bytes;
  if (runs.num_heads == 1 || runs.head_stride == runs.run_bytes) {
    runs.run_bytes *= runs.num_heads;
    runs.num_heads = 1;
    runs.tokens_are_contiguous = runs.token_stride == runs.run_bytes;
  }
  return runs;
}

// In which order runs are copied: the source's, whose reading is what takes time. Streaming stores go to any
// place, but a line that is written in two parts with much between them costs twice.
enum class RunOrder { kPayload, kEngine };

// Tokens or heads, as steps on both sides.
struct Axis {
  int64_t count;
  int64_t engine_stride;
  int64_t payload_stride;
};

// Calls `piece(engine, at, bytes)` for tokens [first, first + n) of one block, `at` counted from the first
// token's place in the payload's plane.
template <typename Piece>
void ForEachPiece(const PlaneRuns& runs, RunOrder order, std::byte* first, int64_t n, const Piece& piece) {
  if (runs.tokens_are_contiguous) {
    piece(first, int64_t{0}, n * runs.run_bytes);
    return;
  }
  Axis outer = {n, runs.token_stride, runs.num_heads * runs.run_bytes};
  Axis inner = {runs.num_heads, runs.head_stride, runs.run_bytes};
  if (order == RunOrder::kEngine && std::abs(inner.engine_stride) > std::abs(outer.engine_stride)) {
    std::swap(outer, inner);
  }
  for (int64_t i = 0; i < outer.count; ++i) {
    for (int64_t j = 0; j < inner.count; ++j) {
      piece(first + i * outer.engine_stride + j * inner.engine_stride,
            i * outer.payload_stride + j * inner.payload_stride, runs.run_bytes);
    }
  }
}

// Calls `run(first_token, n, block)` for the parts of `tokens` that lie in one block each.
template <typename Run>
void ForEachBlock(const PagedKvView& view, TokenRange tokens, const Run& run) {
  const uint64_t per_block = view.tokens_per_block;
  for (uint64_t token = tokens.begin; token < tokens.end;) {
    const uint64_t slot = token - view.first_token;
    const uint64_t n = std::min(tokens.end - token, per_block - slot % per_block);
    run(token, n, view.block_table[slot / per_block]);
    token += n;
  }
}

TokenRange TokensOf(const PagedKvView& view) {
  return {view.first_token, view.first_token + view.num_tokens};
}

void CheckCall(const PagedCopy& copy, TokenRange tokens, LayerSpan layers, size_t payload_bytes) {
  const TokenRange held = copy.payload_tokens;
  TERRACE_CHECK(held.begin <= tokens.begin && tokens.begin <= tokens.end && tokens.end <= held.end)
      << "[" << tokens.begin << ", " << tokens.end << ") of [" << held.begin << ", " << held.end << ")";
  TERRACE_CHECK(layers.begin <= layers.end && layers.end <= copy.layout.num_layers())
      << "[" << layers.begin << ", " << layers.end << ") of " << copy.layout.num_layers();
  TERRACE_CHECK(payload_bytes >= copy.layout.bytes_per_token() * (held.end - held.begin)) << payload_bytes;
}

// Calls `piece(engine, offset in the payload, bytes)` for all runs of `tokens`, which the view holds, but for
// those in negative blocks.
template <typename Piece>
void ForEachRun(const PagedCopy& copy, TokenRange tokens, LayerSpan layers, RunOrder order,
                const Piece& piece) {
  const uint64_t payload_tokens = copy.payload_tokens.end - copy.payload_tokens.begin;
  for (uint32_t layer = layers.begin; layer < layers.end; ++layer) {
    const std::span<const PlanePlace> places = copy.layout.planes(layer);
    for (uint32_t plane = 0; plane < places.size(); ++plane) {
      const PlaneRuns runs = RunsOf(copy, layer, plane);
      const PlanePlace place = places[plane];
      ForEachBlock(copy.view, tokens, [&](uint64_t token, uint64_t n, int64_t block) {
        if (block < 0) return;
        const auto slot = static_cast<int64_t>((token - copy.view.first_token) % copy.view.tokens_per_block);
        const uint64_t offset = payload_tokens * place.begin_per_token +
                                (token - copy.payload_tokens.begin) * place.bytes_per_token;
        ForEachPiece(runs, order, runs.base + block * runs.block_stride + slot * runs.token_stride,
                     static_cast<int64_t>(n), [&](std::byte* engine, int64_t at, int64_t bytes) {
                       piece(engine, offset + static_cast<uint64_t>(at), static_cast<size_t>(bytes));
                     });
      });
    }
  }
}

}  // namespace

Status GatherLayers(const PagedCopy& copy, TokenRange tokens, LayerSpan layers, MutableBytes payload) {
  CheckCall(copy, tokens, layers, payload.size());
  if (tokens.begin == tokens.end) return OkStatus();
  const TokenRange held = TokensOf(copy.view);
  if (tokens.begin < held.begin || tokens.end > held.end) {
    return InvalidArgumentError("tokens [" + std::to_string(tokens.begin) + ", " +
                                std::to_string(tokens.end) + ") of a view that holds [" +
                                std::to_string(held.begin) + ", " + std::to_string(held.end) + ")");
  }
  Status status;
  ForEachBlock(copy.view, tokens, [&](uint64_t token, uint64_t, int64_t block) {
    if (block >= 0 || !status.ok()) return;
    status = InvalidArgumentError("token " + std::to_string(token) + " is in block " + std::to_string(block) +
                                  " of the view; allowed for a source: 0 and above");
  });
  if (!status.ok()) return status;
  StreamCopier copier(PieceSources::kScattered);
  ForEachRun(copy, tokens, layers, RunOrder::kEngine,
             [&](const std::byte* engine, uint64_t offset, size_t bytes) {
               copier.Copy(payload.data() + offset, engine, bytes);
             });
  copier.Finish();
  return OkStatus();
}

void ScatterLayers(const PagedCopy& copy, TokenRange tokens, LayerSpan layers, Bytes payload) {
  CheckCall(copy, tokens, layers, payload.size());
  const TokenRange held = TokensOf(copy.view);
  const TokenRange both = {std::max(tokens.begin, held.begin), std::min(tokens.end, held.end)};
  if (both.begin >= both.end) return;
  StreamCopier copier(PieceSources::kInOrder);
  ForEachRun(copy, both, layers, RunOrder::kPayload, [&](std::byte* engine, uint64_t offset, size_t bytes) {
    copier.Copy(engine, payload.data() + offset, bytes);
  });
  copier.Finish();
}

}  // namespace terrace
