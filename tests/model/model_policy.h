// ModelPolicy: least recently used first, written for the model; every event is judged by it until the link
// is cut: a closed manager lives as long as a handle of it, and what it does then is of no account.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <unordered_map>

#include "tests/model/manager_model.h"

namespace terrace {

class ModelPolicy final : public EvictionPolicy {
 public:
  using Link = std::shared_ptr<ManagerModel*>;
  ModelPolicy(Link model, size_t tier) : model_(std::move(model)), tier_(tier) {}

  void Insert(const ObjectId& id, uint64_t bytes) override {
    if (*model_ != nullptr) (*model_)->OnInsert(tier_, id, bytes);
    places_[id] = order_.insert(order_.end(), id);
  }
  void Touch(const ObjectId& id) override {
    if (const auto it = places_.find(id); it != places_.end())
      order_.splice(order_.end(), order_, it->second);
  }
  void Remove(const ObjectId& id) override {
    const auto it = places_.find(id);
    if (it == places_.end()) return;
    if (*model_ != nullptr) (*model_)->OnRemove(tier_, id);
    order_.erase(it->second);
    places_.erase(it);
  }
  std::optional<ObjectId> Victim(const std::function<bool(const ObjectId&)>& allowed) override {
    std::list<ObjectId> skipped;
    for (const ObjectId& id : order_) {
      if (allowed(id)) {
        if (*model_ != nullptr) (*model_)->OnVictim(tier_, skipped, &id);
        return id;
      }
      skipped.push_back(id);
    }
    if (*model_ != nullptr) (*model_)->OnVictim(tier_, skipped, nullptr);
    return std::nullopt;
  }

 private:
  const Link model_;
  const size_t tier_;
  std::list<ObjectId> order_;  // coldest first
  std::unordered_map<ObjectId, std::list<ObjectId>::iterator, ObjectIdHash> places_;
};

}  // namespace terrace
