// PoolMapping: the pool's memory, one anonymous private mapping, aligned to huge pages. Populated and locked
// when it is made, so that nothing faults later; unmapped by the destructor.
#pragma once

#include <cstddef>

#include "lib/memory/buffer_pool_options.h"
#include "terrace/status.h"

namespace terrace {

class PoolMapping {
 public:
  // kResourceExhausted when the system lacks the memory, kInvalidArgument for a node that cannot be. That
  // huge pages, the node or the lock were refused is a line in the log.
  static Result<PoolMapping> Map(const BufferPoolOptions& options);

  PoolMapping() = default;
  PoolMapping(PoolMapping&& other) noexcept;
  PoolMapping& operator=(PoolMapping&& other) noexcept;
  ~PoolMapping();

  std::byte* base() const { return base_; }
  size_t size_bytes() const { return size_bytes_; }  // whole units

 private:
  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::byte* base_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace terrace
