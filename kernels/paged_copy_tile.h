// Tiles of a launch: which bytes each of them is, and the places that a lane takes in it. For devices and for
// the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/paged_copy_launch.h"
#include "kernels/vector_access.h"

namespace terrace {

// Tokens, or a part of one token, of a plane in one block.
struct Tile {
  const LaunchPlane* plane = nullptr;
  std::byte* engine = nullptr;   // of the first token
  std::byte* payload = nullptr;  // of the tile's first byte
  uint32_t first_byte = 0;       // of the tile in its first token
  uint32_t bytes = 0;            // of the engine's; 0: an empty tile, or a negative block
  bool is_contiguous = false;    // on the engine's side too
};

template <typename Form = SameForm>
TERRACE_HD inline Tile TileAt(const PagedCopyLaunch& launch, uint32_t index) {
  const uint32_t run = index / launch.tiles_per_block;
  const uint32_t in_block = index - run * launch.tiles_per_block;
  const uint32_t p = run / launch.num_blocks;
  const uint32_t b = run - p * launch.num_blocks;
  const LaunchPlane& plane = launch.planes[p];
  const uint32_t group = in_block / plane.parts_per_token;
  const uint32_t part = in_block - group * plane.parts_per_token;
  const uint64_t block_token = uint64_t{b} * launch.tokens_per_block;  // of slot 0, plus first_slot
  const uint64_t skipped = b == 0 ? launch.first_slot : 0;
  const uint64_t slot = skipped + uint64_t{group} * plane.tokens_per_tile;
  const uint64_t end_token = uint64_t{launch.first_slot} + launch.num_tokens;
  const uint64_t left_in_copy = end_token - block_token;
  const uint64_t end_slot = left_in_copy < launch.tokens_per_block ? left_in_copy : launch.tokens_per_block;
  const int64_t block = launch.blocks[b];
  Tile tile;
  if (block < 0 || slot >= end_slot) return tile;
  const uint64_t left = end_slot - slot;
  const auto num_tokens = static_cast<uint32_t>(left < plane.tokens_per_tile ? left : plane.tokens_per_tile);
  const uint64_t token_bytes = uint64_t{plane.num_heads} * plane.run_bytes;
  const uint64_t first_byte = uint64_t{part} * launch.tile_bytes;
  const uint64_t bytes = num_tokens * token_bytes - first_byte;
  tile.plane = &plane;
  tile.engine = plane.engine + block * plane.block_stride + static_cast<int64_t>(slot) * plane.token_stride;
  const uint64_t token = launch.first_token + block_token + slot - launch.first_slot;
  tile.payload = plane.payload + Form::PayloadBytes(token * token_bytes + first_byte);
  tile.first_byte = static_cast<uint32_t>(first_byte);
  tile.bytes = bytes < launch.tile_bytes ? static_cast<uint32_t>(bytes) : launch.tile_bytes;
  tile.is_contiguous =
      plane.num_heads == 1 && (num_tokens == 1 || plane.token_stride == int64_t{plane.run_bytes});
  return tile;
}

// The widest access, up to 16 bytes, for which all vectors of a tile are aligned on both sides.
template <typename Form = SameForm>
TERRACE_HD inline uint32_t WidthOf(const Tile& tile) {
  const LaunchPlane& plane = *tile.plane;
  uint64_t bits = 16 | reinterpret_cast<uintptr_t>(tile.engine) |
                  Form::PayloadAlignment(reinterpret_cast<uintptr_t>(tile.payload));
  if (tile.is_contiguous) {
    bits |= tile.bytes;  // first_byte is a multiple of the tile's size
  } else {
    bits |= plane.run_bytes | static_cast<uint64_t>(plane.token_stride | plane.head_stride);
  }
  return static_cast<uint32_t>(bits & (~bits + 1));
}

// Walks over every `lanes`-th vector of a tile: where it lies in the engine, from tile.engine on.
template <uint32_t kWidth, bool kContiguous>
class EngineCursor;

template <uint32_t kWidth>
class EngineCursor<kWidth, true> {
 public:
  TERRACE_HD EngineCursor(const Tile& tile, uint32_t lane, uint32_t lanes)
      : offset_(int64_t{tile.first_byte} + int64_t{kWidth} * lane), step_(kWidth * lanes) {}
  TERRACE_HD int64_t offset() const { return offset_; }
  TERRACE_HD void Advance() { offset_ += step_; }

 private:
  int64_t offset_;
  const uint32_t step_;
};

// A place is (token, head, vector of the run); so is the step between two places. Adding them carries from
// the vector to the head to the token at most once each, so that only the constructor divides.
template <uint32_t kWidth>
class EngineCursor<kWidth, false> {
 public:
  TERRACE_HD EngineCursor(const Tile& tile, uint32_t lane, uint32_t lanes)
      : num_heads_(tile.plane->num_heads),
        run_vectors_(tile.plane->run_bytes / kWidth),
        head_carry_(tile.plane->head_stride - int64_t{tile.plane->run_bytes}),
        token_carry_(tile.plane->token_stride - int64_t{num_heads_} * tile.plane->head_stride) {
    offset_ = Split(*tile.plane, tile.first_byte / kWidth + lane, head_, vector_);
    step_ = Split(*tile.plane, lanes, head_step_, vector_step_);
  }
  TERRACE_HD int64_t offset() const { return offset_; }
  TERRACE_HD void Advance() {
    offset_ += step_;
    vector_ += vector_step_;
    head_ += head_step_;
    if (vector_ >= run_vectors_) {
      vector_ -= run_vectors_;
      ++head_;
      offset_ += head_carry_;
    }
    if (head_ >= num_heads_) {
      head_ -= num_heads_;
      offset_ += token_carry_;
    }
  }

 private:
  TERRACE_HD int64_t Split(const LaunchPlane& plane, uint32_t vectors, uint32_t& head,
                           uint32_t& vector) const {
    const uint32_t run = vectors / run_vectors_;
    vector = vectors - run * run_vectors_;
    const uint32_t token = run / num_heads_;
    head = run - token * num_heads_;
    return token * plane.token_stride + head * plane.head_stride + int64_t{vector} * kWidth;
  }

  const uint32_t num_heads_;
  const uint32_t run_vectors_;
  const int64_t head_carry_;
  const int64_t token_carry_;
  int64_t offset_;
  int64_t step_;
  uint32_t head_, vector_;
  uint32_t head_step_, vector_step_;
};

}  // namespace terrace
