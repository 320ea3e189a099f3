// PoolMapping: the pool's memory, one anonymous private mapping, aligned to huge pages; or a sealed memory
// file, where it is to be shared, with a second one for the generations of its units. Populated and locked
// when it is made, so that nothing faults later; unmapped by the destructor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lib/memory/buffer_pool_options.h"
#include "lib/memory/memory_file.h"
#include "terrace/status.h"

namespace terrace {

class PoolMapping {
 public:
  // kResourceExhausted when the system lacks the memory, kInvalidArgument for a node that cannot be. That
  // huge pages, the node or the lock were refused is a line in the log. kFailedPrecondition: it cannot be
  // sealed.
  static Result<PoolMapping> Map(const BufferPoolOptions& options);

  PoolMapping() = default;
  PoolMapping(PoolMapping&& other) noexcept;
  PoolMapping& operator=(PoolMapping&& other) noexcept;
  ~PoolMapping();

  std::byte* base() const { return base_; }
  size_t size_bytes() const { return size_bytes_; }  // whole units
  // Of a shared pool; not open otherwise.
  const MemoryFile& file() const { return file_; }
  const MemoryFile& generations() const { return generations_; }
  // Of a unit of a shared pool.
  std::atomic_ref<uint64_t> GenerationOf(uint32_t unit) const {
    return std::atomic_ref(reinterpret_cast<uint64_t*>(generations_.base())[unit]);
  }

 private:
  Status Map(size_t bytes, const BufferPoolOptions& options);
  Status MapShared(size_t bytes);
  Status Seal();

  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::byte* base_ = nullptr;
  size_t size_bytes_ = 0;
  MemoryFile file_;
  MemoryFile generations_;
};

}  // namespace terrace
