#include "kernels/host_launcher.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "kernels/emulated_launch.h"
#include "kernels/paged_copy_launch.h"
#include "kernels/plane_runs.h"
#include "lib/base/check.h"
#include "lib/base/rounding.h"
#include "lib/memory/stream_copy.h"

namespace terrace {
namespace {

// In which order runs are copied: the source's, whose reading is what takes time. Streaming stores go to any
// place, but a line that is written in two parts with much between them costs twice.
enum class RunOrder { kPayload, kEngine };

// Tokens or heads, as steps on both sides.
struct Axis {
  int64_t count;
  int64_t engine_stride;
  int64_t payload_stride;
};

// Tokens [first, end) of a copy.
struct TokenSpan {
  uint64_t first = 0;
  uint64_t end = 0;
};

// Puts neighbours together: pieces that follow each other on both sides.
template <typename Piece>
class PieceMerger {
 public:
  explicit PieceMerger(const Piece& piece) : piece_(piece) {}

  void Add(std::byte* engine, std::byte* payload, uint64_t bytes) {
    if (engine_ + bytes_ == engine && payload_ + bytes_ == payload) {
      bytes_ += bytes;
      return;
    }
    Flush();
    engine_ = engine;
    payload_ = payload;
    bytes_ = bytes;
  }
  void Flush() {
    if (bytes_ > 0) piece_(engine_, payload_, bytes_);
    bytes_ = 0;
  }

 private:
  const Piece& piece_;
  std::byte* engine_ = nullptr;
  std::byte* payload_ = nullptr;
  uint64_t bytes_ = 0;
};

// Gives `merger` the runs of `n` tokens of one block.
template <typename Merger>
void AddBlock(const PlaneArgs& merged, RunOrder order, std::byte* engine, std::byte* payload, int64_t n,
              Merger& merger) {
  if (HasContiguousTokens(merged)) {
    merger.Add(engine, payload, static_cast<uint64_t>(n) * merged.run_bytes);
    return;
  }
  Axis outer = {n, merged.token_stride, static_cast<int64_t>(PayloadTokenBytes(merged))};
  Axis inner = {merged.num_heads, merged.head_stride, merged.run_bytes};
  if (order == RunOrder::kEngine && std::abs(inner.engine_stride) > std::abs(outer.engine_stride)) {
    std::swap(outer, inner);
  }
  for (int64_t i = 0; i < outer.count; ++i) {
    for (int64_t j = 0; j < inner.count; ++j) {
      merger.Add(engine + i * outer.engine_stride + j * inner.engine_stride,
                 payload + i * outer.payload_stride + j * inner.payload_stride, merged.run_bytes);
    }
  }
}

template <typename Merger>
void AddPlane(const PagedCopyArgs& args, const PlaneArgs& plane, TokenSpan tokens, RunOrder order,
              Merger& merger) {
  const PlaneArgs merged = MergeHeads(plane);
  const uint64_t token_bytes = PayloadTokenBytes(merged);
  const uint64_t per_block = args.tokens_per_block;
  for (uint64_t token = tokens.first; token < tokens.end;) {
    const uint64_t slot = args.first_slot + token;
    const uint64_t n = std::min(tokens.end - token, per_block - slot % per_block);
    const int64_t block = args.blocks[slot / per_block];
    if (block >= 0) {
      AddBlock(merged, order,
               merged.base + block * merged.block_stride +
                   static_cast<int64_t>(slot % per_block) * merged.token_stride,
               args.payload + merged.payload_offset + token * token_bytes, static_cast<int64_t>(n), merger);
    }
    token += n;
  }
}

// `whole` * part / parts, for any that fit.
uint64_t ShareEnd(uint64_t whole, uint32_t part, uint32_t parts) {
  return whole / parts * part + whole % parts * part / parts;
}

// Calls `piece(engine, payload, bytes)` for one share: of the tokens of each plane those that begin in its
// part of all the bytes.
template <typename Piece>
void ForEachPiece(const PagedCopyArgs& args, RunOrder order, uint32_t part, uint32_t parts,
                  const Piece& piece) {
  const uint64_t bytes = PagedCopyBytes(args);
  const uint64_t begin = ShareEnd(bytes, part, parts);
  const uint64_t end = ShareEnd(bytes, part + 1, parts);
  PieceMerger<Piece> merger(piece);
  uint64_t plane_begin = 0;
  for (uint32_t p = 0; p < args.num_planes; ++p) {
    const uint64_t token_bytes = PayloadTokenBytes(args.planes[p]);
    if (token_bytes == 0) continue;
    const auto first_token_from = [&](uint64_t byte) {
      return byte <= plane_begin ? 0 : std::min(args.num_tokens, CeilDiv(byte - plane_begin, token_bytes));
    };
    AddPlane(args, args.planes[p], {first_token_from(begin), first_token_from(end)}, order, merger);
    plane_begin += token_bytes * args.num_tokens;
  }
  merger.Flush();
}

}  // namespace

void RunOnHost(const PagedCopyArgs& args, uint32_t part, uint32_t parts) {
  TERRACE_CHECK(part < parts) << part << " of " << parts;
  if (args.direction == CopyDirection::kToHost) {
    StreamCopier copier(PieceSources::kScattered);
    ForEachPiece(args, RunOrder::kEngine, part, parts,
                 [&](const std::byte* engine, std::byte* payload, uint64_t bytes) {
                   copier.Copy(payload, engine, bytes);
                 });
    copier.Finish();
    return;
  }
  StreamCopier copier(PieceSources::kInOrder);
  ForEachPiece(args, RunOrder::kPayload, part, parts,
               [&](std::byte* engine, const std::byte* payload, uint64_t bytes) {
                 copier.Copy(engine, payload, bytes);
               });
  copier.Finish();
}

void ForEachCopyPiece(const PagedCopyArgs& args, const std::function<void(const CopyPiece&)>& piece) {
  const bool to_host = args.direction == CopyDirection::kToHost;
  ForEachPiece(args, RunOrder::kPayload, 0, 1, [&](std::byte* engine, std::byte* payload, uint64_t bytes) {
    piece(to_host ? CopyPiece{payload, engine, bytes} : CopyPiece{engine, payload, bytes});
  });
}

void RunEmulated(const PagedCopyArgs& args, const EmulatedGrid& grid) {
  TERRACE_CHECK(grid.num_blocks > 0 && grid.threads_per_block > 0 && grid.threads_per_block % 32 == 0)
      << grid.num_blocks << " blocks of " << grid.threads_per_block << " threads";
  const Status status = ForEachLaunch(args, [&](const PagedCopyLaunch& launch) {
    EmulateLaunch(launch, grid, SameForm());
    return OkStatus();
  });
  TERRACE_CHECK(status.ok()) << status.ToString();
}

}  // namespace terrace
