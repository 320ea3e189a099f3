// Copies by the bulk engine of a multiprocessor (cp.async.bulk, sm_90 and newer): which launches it is for,
// and the pipeline through shared memory. The pipeline knows no CUDA: on a device its transport is the
// instructions (paged_copy.cu), in tests a model of them that does everything as late as it may.
//
//   chunk k:  load -> stage k % kStages -> (kAhead chunks later) store -> the stage is free when it has been
//   read
//
// One thread of a warp runs a pipeline; the stages are its own, so that there is no barrier between warps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/paged_copy_body.h"

namespace terrace {

struct BulkCopyShape {
  // 6 warps x 4 stages x 4 KiB: below the 99 KiB of shared memory that a block of every device since sm_90
  // may have. Four such blocks have some 290 KiB under way, where the bus needs about 100.
  static constexpr uint32_t kWarps = 6;
  static constexpr uint32_t kStages = 4;
  static constexpr uint32_t kAhead = 2;
  static constexpr uint32_t kStageBytes = 4096;
  // Below, a warp's vectors are under way as soon.
  static constexpr uint32_t kMinTileBytes = 2048;
};
static_assert(BulkCopyShape::kAhead + 1 < BulkCopyShape::kStages,
              "a store may go on while the next load begins");

// What the engine takes: contiguous on both sides, 16-byte aligned, a multiple of 16 bytes.
TERRACE_HD inline bool IsForBulkCopy(const Tile& tile) {
  const auto bits = reinterpret_cast<uintptr_t>(tile.engine) | reinterpret_cast<uintptr_t>(tile.payload) |
                    tile.first_byte | tile.bytes;
  return tile.is_contiguous && bits % 16 == 0;
}

// All of its tiles are, and most of them are large; for others the vector kernel has more threads.
inline bool IsForBulkCopy(const PagedCopyLaunch& launch) {
  const uint32_t run_tokens =
      launch.tokens_per_block < launch.num_tokens ? launch.tokens_per_block : launch.num_tokens;
  for (uint32_t p = 0; p < launch.num_planes; ++p) {
    const LaunchPlane& plane = launch.planes[p];
    const uint32_t tokens = plane.tokens_per_tile < run_tokens ? plane.tokens_per_tile : run_tokens;
    const bool contiguous =
        plane.num_heads == 1 && (tokens == 1 || plane.token_stride == int64_t{plane.run_bytes});
    const uint64_t bits = reinterpret_cast<uintptr_t>(plane.engine) |
                          reinterpret_cast<uintptr_t>(plane.payload) |
                          static_cast<uint64_t>(plane.block_stride | plane.token_stride) | plane.run_bytes;
    if (!contiguous || bits % 16 != 0 || uint64_t{tokens} * plane.run_bytes < BulkCopyShape::kMinTileBytes)
      return false;
  }
  return launch.num_planes > 0;
}

// A buffer of the pipeline; `barrier` is the transport's.
struct BulkStage {
  uint64_t barrier;
  std::byte* dst;
  uint32_t bytes;
};

// Transport:
//   void Load(uint32_t stage, const std::byte* src, uint32_t bytes)   begins to fill a stage
//   void WaitLoad(uint32_t stage, uint32_t parity)                    of the stage's first, third... load: 0
//   void Store(uint32_t stage, std::byte* dst, uint32_t bytes)        begins to empty a loaded stage
//   void WaitStoresRead<N>()     all but the last N stores have read their stages
//   void WaitStoresDone()        all stores are done
template <typename Transport, typename Shape = BulkCopyShape>
class BulkPipeline {
 public:
  // `stages`: Shape::kStages of them, in memory of the transport's.
  TERRACE_HD BulkPipeline(Transport& transport, BulkStage* stages) : transport_(transport), stages_(stages) {}

  // Multiples of 16 bytes. Done after Finish.
  TERRACE_HD void Copy(std::byte* dst, const std::byte* src, uint32_t bytes) {
    for (uint32_t done = 0; done < bytes; done += Shape::kStageBytes) {
      const uint32_t left = bytes - done;
      Push(dst + done, src + done, left < Shape::kStageBytes ? left : Shape::kStageBytes);
    }
  }

  TERRACE_HD void Finish() {
    while (stored_ < loaded_) StoreNext();
    transport_.WaitStoresDone();
  }

 private:
  TERRACE_HD void Push(std::byte* dst, const std::byte* src, uint32_t bytes) {
    const uint32_t stage = loaded_ % Shape::kStages;
    // loaded_ - kAhead stores have begun; that of chunk loaded_ - kStages must have left the stage.
    if (loaded_ >= Shape::kStages) transport_.template WaitStoresRead<Shape::kStages - Shape::kAhead - 1>();
    stages_[stage].dst = dst;
    stages_[stage].bytes = bytes;
    transport_.Load(stage, src, bytes);
    ++loaded_;
    if (loaded_ > Shape::kAhead) StoreNext();
  }

  TERRACE_HD void StoreNext() {
    const uint32_t stage = stored_ % Shape::kStages;
    transport_.WaitLoad(stage, stored_ / Shape::kStages % 2);
    transport_.Store(stage, stages_[stage].dst, stages_[stage].bytes);
    ++stored_;
  }

  Transport& transport_;
  BulkStage* const stages_;
  uint32_t loaded_ = 0;  // chunks
  uint32_t stored_ = 0;
};

// Every `step`-th tile of a launch from `first` on; IsForBulkCopy(launch).
template <CopyDirection kDirection, typename Pipeline>
TERRACE_HD inline void RunBulkCopy(const PagedCopyLaunch& launch, uint32_t first, uint32_t step,
                                   Pipeline& pipeline) {
  for (uint32_t index = first; index < launch.num_tiles; index += step) {
    const Tile tile = TileAt(launch, index);
    if (tile.bytes == 0) continue;
    std::byte* engine = tile.engine + tile.first_byte;
    if (kDirection == CopyDirection::kToHost) {
      pipeline.Copy(tile.payload, engine, tile.bytes);
    } else {
      pipeline.Copy(engine, tile.payload, tile.bytes);
    }
  }
  pipeline.Finish();
}

}  // namespace terrace
