// StagingPool: memory of the backend's own for bytes that a device reads or writes and no caller may see:
// 4,096-aligned blocks, kept for the next one, as touching fresh memory takes longer than the disk.
//
// Threads: the owner's only. Blocks may outlive the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "terrace/bytes.h"

namespace terrace {

using StagedMemory = std::shared_ptr<std::byte>;

class StagingPool {
 public:
  // `keep_bytes`: of blocks that nobody uses.
  explicit StagingPool(uint64_t keep_bytes);

  // At least `bytes` > 0, not initialised; back in the pool with the last reference.
  StagedMemory Take(uint64_t bytes);
  // In blocks, used or kept.
  uint64_t held_bytes() const;

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace terrace
