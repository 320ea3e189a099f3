// LruReclaimer: a host tier in small, for tests of BufferPool: objects that are content, the least recently
// used goes first, a pinned one does not go.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <mutex>
#include <random>
#include <unordered_map>
#include <vector>

#include "lib/memory/buffer_pool.h"

namespace terrace {

// Threads: every call from every thread; one mutex, under which buffers are dropped as a manager does.
class LruReclaimer : public Reclaimer {
 public:
  explicit LruReclaimer(BufferPool* pool) : pool_(pool) { pool->SetReclaimer(this); }
  ~LruReclaimer() override { pool_->SetReclaimer(nullptr); }

  // Settles the buffer and keeps it.
  void Publish(BufferRef buffer) {
    pool_->Settle(buffer);
    std::lock_guard lock(mutex_);
    const BufferControl* control = pool_->ControlOf(buffer);
    order_.push_back({std::move(buffer), control, ++now_, false});
    const bool fresh = objects_.emplace(control, Place{std::prev(order_.end()), keys_.size()}).second;
    ASSERT_TRUE(fresh) << "a run was handed out that an object lies in";
    keys_.push_back(control);
  }
  void TouchAny(std::mt19937_64& random) {
    std::lock_guard lock(mutex_);
    if (keys_.empty()) return;
    const auto object = objects_.find(keys_[random() % keys_.size()])->second.at;
    object->used_at = ++now_;
    order_.splice(order_.end(), order_, object);
  }
  void EraseAny(std::mt19937_64& random) {
    std::lock_guard lock(mutex_);
    if (!keys_.empty()) DropIfUnpinned(keys_[random() % keys_.size()]);
  }
  // Pins objects drawn at random until `bytes` are pinned or there are no more.
  uint64_t PinAny(uint64_t bytes, std::mt19937_64& random) {
    std::lock_guard lock(mutex_);
    uint64_t pinned = 0;
    std::vector<const BufferControl*> keys = keys_;
    std::shuffle(keys.begin(), keys.end(), random);
    for (const BufferControl* key : keys) {
      if (pinned >= bytes) break;
      const auto object = objects_.find(key)->second.at;
      object->pinned = true;
      pinned += object->buffer.size_bytes();
    }
    return pinned;
  }
  // Pins the most recently used, as leases do.
  uint64_t PinNewest(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    uint64_t pinned = 0;
    for (auto object = order_.rbegin(); object != order_.rend() && pinned < bytes; ++object) {
      object->pinned = true;
      pinned += object->buffer.size_bytes();
    }
    return pinned;
  }
  void UnpinAll() {
    std::lock_guard lock(mutex_);
    for (Object& object : order_) object.pinned = false;
  }
  uint64_t evictions() const {
    std::lock_guard lock(mutex_);
    return evictions_;
  }
  uint64_t reclaimed_singly() const {
    std::lock_guard lock(mutex_);
    return reclaimed_singly_;
  }

  bool ReclaimOne(uint64_t) override {
    std::lock_guard lock(mutex_);
    for (const Object& object : order_) {
      if (object.pinned) continue;
      ++reclaimed_singly_;
      ++evictions_;
      return DropIfUnpinned(object.control);
    }
    return false;
  }
  void Costs(std::span<const BufferControl* const> runs, std::span<uint64_t> costs) override {
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto found = objects_.find(runs[i]);
      const bool may_go = found != objects_.end() && !found->second.at->pinned;
      costs[i] = may_go ? found->second.at->used_at : kNotEvictable;
    }
  }
  bool Evict(const BufferControl* run) override {
    std::lock_guard lock(mutex_);
    if (!DropIfUnpinned(run)) return false;
    ++evictions_;
    return true;
  }

 private:
  struct Object {
    BufferRef buffer;
    const BufferControl* control = nullptr;
    uint64_t used_at = 0;
    bool pinned = false;
  };
  struct Place {
    std::list<Object>::iterator at;
    size_t key_index = 0;
  };

  bool DropIfUnpinned(const BufferControl* control) {
    const auto found = objects_.find(control);
    if (found == objects_.end() || found->second.at->pinned) return false;
    const Place place = found->second;
    objects_.erase(found);
    if (place.key_index + 1 != keys_.size()) {
      keys_[place.key_index] = keys_.back();
      objects_.find(keys_.back())->second.key_index = place.key_index;
    }
    keys_.pop_back();
    order_.erase(place.at);
    return true;
  }

  BufferPool* const pool_;
  mutable std::mutex mutex_;  // guards all below
  std::list<Object> order_;   // coldest first
  std::unordered_map<const BufferControl*, Place> objects_;
  std::vector<const BufferControl*> keys_;  // of objects_, to draw from
  uint64_t now_ = 0;
  uint64_t evictions_ = 0;
  uint64_t reclaimed_singly_ = 0;
};

}  // namespace terrace
