#include "kernels/paged_copy_launch.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>

#include "kernels/plane_runs.h"
#include "lib/base/check.h"
#include "lib/base/rounding.h"

namespace terrace {
namespace {

// Large tiles cost less to find; small copies need small ones, to have work for the threads of a device: some
// thousand groups of 32.
constexpr uint32_t kMinTileBytes = 2048;
constexpr uint32_t kMaxTileBytes = 16384;
constexpr uint64_t kWantedTiles = 4096;
constexpr uint32_t kVectorBytes = 16;
constexpr uint32_t kVectorsPerLane = 4;
constexpr uint64_t kMaxTilesPerPlane = uint64_t{1} << 24;  // times kMaxPlanes: num_tiles stays below 2^31
static_assert(kMaxTilesPerPlane * PagedCopyLaunch::kMaxPlanes <= uint64_t{1} << 31);

// Tokens [first, first + count) of a copy, in blocks of which one launch has room for all.
struct TokenSpan {
  uint64_t first;
  uint64_t count;
};

TokenSpan SpanAt(const PagedCopyArgs& args, uint64_t first, uint64_t max_token_bytes) {
  const uint64_t slot = (args.first_slot + first) % args.tokens_per_block;
  const uint64_t by_blocks = uint64_t{PagedCopyLaunch::kMaxBlocks} * args.tokens_per_block - slot;
  // A token needs this many tiles at most, plus one per block that begins a group; and counts are 32-bit.
  const uint64_t tiles_per_token = CeilDiv(max_token_bytes, kMinTileBytes);
  const uint64_t by_tiles = (kMaxTilesPerPlane - 2 * PagedCopyLaunch::kMaxBlocks) / tiles_per_token;
  return {first, std::min({args.num_tokens - first, by_blocks, by_tiles})};
}

uint32_t TileBytesFor(uint64_t bytes) {
  const uint64_t wanted = std::bit_floor(bytes / kWantedTiles + 1);
  return static_cast<uint32_t>(std::clamp<uint64_t>(wanted, kMinTileBytes, kMaxTileBytes));
}

LaunchPlane LaunchPlaneOf(const PagedCopyArgs& args, const PlaneArgs& plane, uint32_t tile_bytes) {
  const PlaneArgs runs = MergeHeads(plane);
  const uint64_t token_bytes = PayloadTokenBytes(runs);
  LaunchPlane to;
  to.engine = runs.base;
  to.payload = args.payload + runs.payload_offset;
  to.block_stride = runs.block_stride;
  to.token_stride = runs.token_stride;
  to.head_stride = runs.num_heads == 1 ? runs.run_bytes : runs.head_stride;  // unused with one head
  to.num_heads = runs.num_heads;
  to.run_bytes = runs.run_bytes;
  to.tokens_per_tile = static_cast<uint32_t>(std::max<uint64_t>(1, tile_bytes / token_bytes));
  to.parts_per_token = static_cast<uint32_t>(CeilDiv(token_bytes, tile_bytes));
  return to;
}

// All but the planes.
void SetTokens(const PagedCopyArgs& args, TokenSpan tokens, PagedCopyLaunch& launch) {
  const uint64_t slot = args.first_slot + tokens.first;
  const uint64_t first_block = slot / args.tokens_per_block;
  launch.direction = args.direction;
  launch.tokens_per_block = args.tokens_per_block;
  launch.first_slot = static_cast<uint32_t>(slot % args.tokens_per_block);
  launch.first_token = tokens.first;
  launch.num_tokens = static_cast<uint32_t>(tokens.count);
  launch.num_blocks = static_cast<uint32_t>(CeilDiv(launch.first_slot + tokens.count, args.tokens_per_block));
  std::copy_n(args.blocks + first_block, launch.num_blocks, launch.blocks);
}

void SetTiles(PagedCopyLaunch& launch) {
  const uint32_t run_tokens = std::min(launch.tokens_per_block, launch.num_tokens);
  uint32_t tile_bytes = 1;
  launch.tiles_per_block = 0;
  for (uint32_t p = 0; p < launch.num_planes; ++p) {
    const LaunchPlane& plane = launch.planes[p];
    const uint64_t groups = CeilDiv(run_tokens, plane.tokens_per_tile);
    launch.tiles_per_block =
        std::max(launch.tiles_per_block, static_cast<uint32_t>(groups * plane.parts_per_token));
    const uint64_t group_bytes =
        uint64_t{std::min(run_tokens, plane.tokens_per_tile)} * plane.num_heads * plane.run_bytes;
    tile_bytes =
        std::max(tile_bytes, static_cast<uint32_t>(std::min<uint64_t>(group_bytes, launch.tile_bytes)));
  }
  const uint64_t num_tiles = uint64_t{launch.num_planes} * launch.num_blocks * launch.tiles_per_block;
  TERRACE_CHECK(num_tiles < uint64_t{1} << 31) << num_tiles;
  launch.num_tiles = static_cast<uint32_t>(num_tiles);
  const uint32_t lanes = std::clamp(tile_bytes / (kVectorBytes * kVectorsPerLane), 1u, 32u);
  launch.log2_lanes = static_cast<uint8_t>(std::bit_width(lanes) - 1);
}

}  // namespace

Status ForEachLaunch(const PagedCopyArgs& args, const std::function<Status(const PagedCopyLaunch&)>& run) {
  uint64_t max_token_bytes = 0;
  for (uint32_t p = 0; p < args.num_planes; ++p) {
    max_token_bytes = std::max(max_token_bytes, PayloadTokenBytes(args.planes[p]));
  }
  if (max_token_bytes == 0 || args.num_tokens == 0) return OkStatus();
  TERRACE_CHECK(max_token_bytes <= std::numeric_limits<uint32_t>::max()) << max_token_bytes;
  const uint32_t tile_bytes = TileBytesFor(PagedCopyBytes(args));
  const auto launch = std::make_unique<PagedCopyLaunch>();
  launch->tile_bytes = tile_bytes;
  for (uint64_t first = 0; first < args.num_tokens; first += launch->num_tokens) {
    SetTokens(args, SpanAt(args, first, max_token_bytes), *launch);
    for (uint32_t plane = 0; plane < args.num_planes;) {
      launch->num_planes = 0;
      for (; plane < args.num_planes && launch->num_planes < PagedCopyLaunch::kMaxPlanes; ++plane) {
        if (PayloadTokenBytes(args.planes[plane]) == 0) continue;
        launch->planes[launch->num_planes++] = LaunchPlaneOf(args, args.planes[plane], tile_bytes);
      }
      if (launch->num_planes == 0) break;
      SetTiles(*launch);
      if (Status status = run(*launch); !status.ok()) return status;
    }
  }
  return OkStatus();
}

}  // namespace terrace
