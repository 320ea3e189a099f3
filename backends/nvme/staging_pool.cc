#include "backends/nvme/staging_pool.h"

#include <bit>
#include <cstdlib>
#include <map>
#include <vector>

#include "lib/base/check.h"

namespace terrace {

// Sizes are powers of two, so that a block serves every request of about its size.
struct StagingPool::Shelf {
  ~Shelf() {
    for (auto& [size, blocks] : free) {
      for (std::byte* block : blocks) std::free(block);
    }
  }
  void Put(std::byte* block, uint64_t size) {
    if (kept_bytes + size > keep_bytes) {
      held_bytes -= size;
      std::free(block);
      return;
    }
    kept_bytes += size;
    free[size].push_back(block);
  }

  uint64_t keep_bytes = 0;
  uint64_t kept_bytes = 0;
  uint64_t held_bytes = 0;
  std::map<uint64_t, std::vector<std::byte*>> free;
};

StagingPool::StagingPool(uint64_t keep_bytes) : shelf_(std::make_shared<Shelf>()) {
  shelf_->keep_bytes = keep_bytes;
}

StagedMemory StagingPool::Take(uint64_t bytes) {
  const uint64_t size = std::bit_ceil(bytes < kFrameAlignment ? kFrameAlignment : bytes);
  std::vector<std::byte*>& free = shelf_->free[size];
  std::byte* block = nullptr;
  if (!free.empty()) {
    block = free.back();
    free.pop_back();
    shelf_->kept_bytes -= size;
  } else {
    block = static_cast<std::byte*>(std::aligned_alloc(kFrameAlignment, size));
    TERRACE_CHECK(block != nullptr) << "out of memory: " << size << " bytes";
    shelf_->held_bytes += size;
  }
  return StagedMemory(block, [shelf = shelf_, size](std::byte* memory) { shelf->Put(memory, size); });
}

uint64_t StagingPool::held_bytes() const { return shelf_->held_bytes; }

}  // namespace terrace
