// KnownRoots: the roots that this client has spoken of. A server has to know a root before an object of it is
// put; each link sends a server what it has not been sent yet, so that PutRoot itself waits for nobody.
//
// Threads: every call from every thread.
#pragma once

#include <mutex>
#include <vector>

#include "terrace/kv_spec.h"
#include "terrace/status.h"

namespace terrace::remote {

class KnownRoots {
 public:
  // kResourceExhausted above 65,536 roots; kInvalidArgument: another record under a known root.
  Status Add(const RootRecord& record);
  // Those from the n-th on, in the order in which they were added; at most `limit`.
  std::vector<RootRecord> From(size_t n, size_t limit) const;
  size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::vector<RootRecord> records_;
};

}  // namespace terrace::remote
