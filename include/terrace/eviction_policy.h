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
  // The first object, in order of eviction, for which `allowed` says yes; it stays until Remove. Nothing
  // where there is none. A policy may count an object that is not allowed as used: it is in use, or what
  // is hotter stands on it, and the next call need not meet it again. `allowed` is asked at most once for
  // each object and does not call the policy.
  virtual std::optional<ObjectId> Victim(const std::function<bool(const ObjectId&)>& allowed) = 0;
  // How much would be missed without it: larger is hotter, and objects of one tier can be compared. Which of
  // several runs of memory is given up is decided by it. 0 for unknown ids, and for all where a policy has
  // no such order.
  virtual uint64_t Heat(const ObjectId& /*id*/) const { return 0; }
};

// Least recently used first; Heat is the order of the last uses. Insert, Touch, Remove and Heat are O(1);
// Victim moves what is not allowed to the hot end, so that it is O(1) on average, and goes round once at
// most. About 60 bytes an object.
TERRACE_API std::unique_ptr<EvictionPolicy> MakeLruPolicy();

}  // namespace terrace
