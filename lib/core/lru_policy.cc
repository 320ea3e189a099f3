// Least recently used first: a list from coldest to hottest and a map into it.
#include <list>

#include "absl/container/flat_hash_map.h"
#include "terrace/eviction_policy.h"

namespace terrace {
namespace {

class LruPolicy : public EvictionPolicy {
 public:
  void Insert(const ObjectId& id, uint64_t /*bytes*/) override {
    Remove(id);
    places_[id] = order_.insert(order_.end(), id);
  }

  void Touch(const ObjectId& id) override {
    if (const auto it = places_.find(id); it != places_.end())
      order_.splice(order_.end(), order_, it->second);
  }

  void Remove(const ObjectId& id) override {
    const auto it = places_.find(id);
    if (it == places_.end()) return;
    order_.erase(it->second);
    places_.erase(it);
  }

  std::optional<ObjectId> Victim(const std::function<bool(const ObjectId&)>& allowed) override {
    for (const ObjectId& id : order_) {
      if (allowed(id)) return id;
    }
    return std::nullopt;
  }

 private:
  std::list<ObjectId> order_;  // coldest first
  absl::flat_hash_map<ObjectId, std::list<ObjectId>::iterator, ObjectIdHash> places_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLruPolicy() { return std::make_unique<LruPolicy>(); }

}  // namespace terrace
