// Reclaimer: whom a full BufferPool asks for space. It knows which buffers hold evictable content and how
// dear each is; the pool knows where they lie.
//
// All calls come without the pool's lock, on a thread that allocates, from several threads at once.
#pragma once

#include <cstdint>
#include <span>

#include "terrace/bytes.h"

namespace terrace {

class Reclaimer {
 public:
  static constexpr uint64_t kNotEvictable = UINT64_MAX;

  virtual ~Reclaimer() = default;

  // Gives back at least one thing, the coldest first; false when nothing may go.
  virtual bool ReclaimOne(uint64_t wanted_bytes) = 0;

  // For each run: how dear evicting it is (larger = hotter, on any scale: only differences count), or
  // kNotEvictable. The answer may be stale. A run is named by the address of its control block, of which only
  // `data` and `region_id` may be read here (they never change; all else may be a later buffer's already),
  // and the rest of a run that the reclaimer knows and keeps. A run that the reclaimer does not know, because
  // it was given back meanwhile, is kNotEvictable.
  virtual void Costs(std::span<const BufferControl* const> runs, std::span<uint64_t> costs) = 0;

  // Evicts just that run; false when it may not go any more or is not known. To be asked only of runs whose
  // cost was given; until the call returns, the pool hands out none of the run's units, so the name cannot
  // mean a later buffer. True while somebody else holds a reference helps nobody: better false.
  virtual bool Evict(const BufferControl* run) = 0;
};

}  // namespace terrace
