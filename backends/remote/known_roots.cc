#include "backends/remote/known_roots.h"

#include <algorithm>

namespace terrace::remote {
namespace {

constexpr size_t kMaxRoots = 65536;

}  // namespace

Status KnownRoots::Add(const RootRecord& record) {
  std::lock_guard lock(mutex_);
  const auto known = std::find_if(records_.begin(), records_.end(),
                                  [&](const RootRecord& other) { return other.root == record.root; });
  if (known != records_.end()) {
    if (*known == record) return OkStatus();
    return InvalidArgumentError("another record under the known root " + record.root.ToHex());
  }
  if (records_.size() >= kMaxRoots) return ResourceExhaustedError("65536 roots are known already");
  records_.push_back(record);
  return OkStatus();
}

std::vector<RootRecord> KnownRoots::From(size_t n, size_t limit) const {
  std::lock_guard lock(mutex_);
  if (n >= records_.size()) return {};
  const auto first = records_.begin() + static_cast<ptrdiff_t>(n);
  return {first, first + static_cast<ptrdiff_t>(std::min(limit, records_.size() - n))};
}

size_t KnownRoots::size() const {
  std::lock_guard lock(mutex_);
  return records_.size();
}

}  // namespace terrace::remote
