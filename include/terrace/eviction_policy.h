// EvictionPolicy: in which order a tier gives objects up. Called by the manager under its own lock, so
// implementations need none and must not block or call back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "terrace/export.h"
#include "terrace/object_id.h"

namespace terrace {

class TERRACE_API EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // The object became visible in the tier. `bytes` is what evicting it gives back.
  virtual void Insert(const ObjectId& id, uint64_t bytes) = 0;
  // It was used. A request's chunks are touched tail to head, so that leaves go before their parents.
  virtual void Touch(const ObjectId& id) = 0;
  // It left the tier. Unknown ids are ignored.
  virtual void Remove(const ObjectId& id) = 0;
  // The first object, in order of eviction, for which `allowed` says yes; it stays until Remove.
  // Nothing where there is none.
  virtual std::optional<ObjectId> Victim(const std::function<bool(const ObjectId&)>& allowed) = 0;
};

// Least recently used first.
TERRACE_API std::unique_ptr<EvictionPolicy> MakeLruPolicy();

}  // namespace terrace
