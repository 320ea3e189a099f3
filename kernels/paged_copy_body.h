// The body of gather and scatter: what one thread of a grid does, for devices and for the host alike. A
// kernel is this and nothing else:
//
//   __global__ void Gather(const __grid_constant__ PagedCopyLaunch launch) {
//     RunPagedCopy<CopyDirection::kToHost>(launch, {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x});
//   }
//
// (without __grid_constant__ each thread would get a copy of the launch). RunEmulated calls it on the host.
// There is no barrier and no shared memory: threads may run in any order, and one after the other.
//
// Groups of 2^log2_lanes neighbouring threads stride over the tiles. Within a tile neighbouring lanes take
// neighbouring vectors, of the widest access that all addresses of the tile allow, and each has kInFlight of
// them under way at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/paged_copy_launch.h"
#include "kernels/paged_copy_tile.h"
#include "kernels/vector_access.h"
#include "terrace/device.h"

namespace terrace {

inline constexpr uint32_t kInFlight = 4;

// What a lane does in one tile. All loads of a round come before its stores.
template <CopyDirection kDirection, uint32_t kWidth, bool kContiguous, typename Form>
class LaneCopy {
 public:
  TERRACE_HD LaneCopy(const Tile& tile, uint32_t lane, uint32_t lanes, const Form& form)
      : form_(form),
        engine_(tile.engine),
        payload_(tile.payload),
        num_vectors_(tile.bytes / kWidth),
        lane_(lane),
        lanes_(lanes),
        cursor_(tile, lane, lanes) {}

  TERRACE_HD void Run() {
    uint32_t first = lane_;
    for (; first + (kInFlight - 1) * lanes_ < num_vectors_; first += kInFlight * lanes_) Round<false>(first);
    if (first < num_vectors_) Round<true>(first);
  }

 private:
  // Vectors first, first + lanes, ...; kPartial: those that the tile has.
  template <bool kPartial>
  TERRACE_HD void Round(uint32_t first) {
    if constexpr (kDirection == CopyDirection::kToHost) {
      decltype(form_.template LoadEngine<kWidth>(engine_)) vectors[kInFlight] = {};
      TERRACE_UNROLL
      for (uint32_t i = 0; i < kInFlight; ++i) {
        if (!kPartial || first + i * lanes_ < num_vectors_) {
          vectors[i] = form_.template LoadEngine<kWidth>(engine_ + cursor_.offset());
        }
        cursor_.Advance();
      }
      TERRACE_UNROLL
      for (uint32_t i = 0; i < kInFlight; ++i) {
        if (!kPartial || first + i * lanes_ < num_vectors_) {
          form_.template StorePayload<kWidth>(PayloadAt(first + i * lanes_), vectors[i]);
        }
      }
    } else {
      int64_t places[kInFlight];
      decltype(form_.template LoadPayload<kWidth>(payload_)) vectors[kInFlight] = {};
      TERRACE_UNROLL
      for (uint32_t i = 0; i < kInFlight; ++i) {
        if (!kPartial || first + i * lanes_ < num_vectors_) {
          vectors[i] = form_.template LoadPayload<kWidth>(PayloadAt(first + i * lanes_));
        }
        places[i] = cursor_.offset();
        cursor_.Advance();
      }
      TERRACE_UNROLL
      for (uint32_t i = 0; i < kInFlight; ++i) {
        if (!kPartial || first + i * lanes_ < num_vectors_) {
          form_.template StoreEngine<kWidth>(engine_ + places[i], vectors[i]);
        }
      }
    }
  }

  TERRACE_HD std::byte* PayloadAt(uint32_t vector) const {
    return payload_ + vector * Form::PayloadBytes(kWidth);
  }

  const Form& form_;
  std::byte* const engine_;
  std::byte* const payload_;
  const uint32_t num_vectors_;
  const uint32_t lane_;
  const uint32_t lanes_;
  EngineCursor<kWidth, kContiguous> cursor_;
};

template <CopyDirection kDirection, uint32_t kWidth, typename Form>
TERRACE_HD inline void CopyTileBy(const Tile& tile, uint32_t lane, uint32_t lanes, const Form& form) {
  if (tile.is_contiguous) {
    LaneCopy<kDirection, kWidth, true, Form>(tile, lane, lanes, form).Run();
  } else {
    LaneCopy<kDirection, kWidth, false, Form>(tile, lane, lanes, form).Run();
  }
}

// The share of one lane in a tile that is not empty.
template <CopyDirection kDirection, typename Form>
TERRACE_HD inline void CopyTile(const Tile& tile, uint32_t lane, uint32_t lanes, const Form& form) {
  switch (WidthOf<Form>(tile)) {
    case 16:
      return CopyTileBy<kDirection, 16>(tile, lane, lanes, form);
    case 8:
      return CopyTileBy<kDirection, 8>(tile, lane, lanes, form);
    case 4:
      return CopyTileBy<kDirection, 4>(tile, lane, lanes, form);
    case 2:
      return CopyTileBy<kDirection, 2>(tile, lane, lanes, form);
    default:
      return CopyTileBy<kDirection, 1>(tile, lane, lanes, form);
  }
}

// Which thread of which grid. threads_per_block is a multiple of 32.
struct GridPlace {
  uint32_t block = 0;
  uint32_t num_blocks = 1;
  uint32_t thread = 0;
  uint32_t threads_per_block = 32;
};

// The share of one thread in a launch of this direction.
template <CopyDirection kDirection, typename Form = SameForm>
TERRACE_HD inline void RunPagedCopy(const PagedCopyLaunch& launch, const GridPlace& place,
                                    const Form& form = {}) {
  const uint32_t lanes = 1u << launch.log2_lanes;
  const uint32_t lane = place.thread & (lanes - 1);
  const uint32_t num_groups = (place.num_blocks * place.threads_per_block) >> launch.log2_lanes;
  uint32_t index = (place.block * place.threads_per_block + place.thread) >> launch.log2_lanes;
  for (; index < launch.num_tiles; index += num_groups) {
    const Tile tile = TileAt<Form>(launch, index);
    if (tile.bytes > 0) CopyTile<kDirection>(tile, lane, lanes, form);
  }
}

}  // namespace terrace
