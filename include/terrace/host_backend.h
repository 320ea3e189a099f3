// The host tier's backend: published pool buffers by object id, in this process's memory. Put keeps a
// reference to the very buffer, Borrow hands it out, Get copies. Completes inline. Its capacity is the
// pool's, which evicts on demand; see backends/host/README.md.
#pragma once

#include <cstdint>
#include <memory>

#include "terrace/backend.h"

namespace terrace {

struct HostOptions {
  // Physical bytes of buffers (with tier pages, rounded to pool units) that may be published. A tier's
  // share of the pool; no memory is allocated here.
  uint64_t capacity_bytes = 0;
  Status Validate() const;
};

TERRACE_API Result<std::unique_ptr<Backend>> MakeHostBackend(const HostOptions& options);

}  // namespace terrace
