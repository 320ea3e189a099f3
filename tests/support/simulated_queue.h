// What the streams of a SimulatedDevice are made of: marks (events), operations, and the queue that holds
// them. Used by simulated_device.cc alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/paged_copy_args.h"
#include "terrace/device.h"
#include "terrace/status.h"

namespace terrace::simulated {

// splitmix64: cheap to seed, which thousands of short runs do.
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t end) { return Next() % end; }  // end > 0

 private:
  uint64_t state_;
};

// Which edges a stream lacks: known once the direction of its copies is, asked by its events without a lock.
struct LostEdges {
  std::atomic<bool> waits{false};
  std::atomic<bool> events{false};
};

// A point in a queue. Over once; `error_` is written before that.
class Mark {
 public:
  explicit Mark(std::shared_ptr<const LostEdges> lost) : lost_(std::move(lost)) {}

  bool IsOver() const {
    return lost_->events.load(std::memory_order_relaxed) || is_over_.load(std::memory_order_acquire);
  }
  Result<bool> Query() const {
    if (lost_->events.load(std::memory_order_relaxed)) return true;
    if (!is_over_.load(std::memory_order_acquire)) return false;
    if (!error_.ok()) return error_;
    return true;
  }
  void End(Status error) {
    std::vector<std::function<void()>> watchers;
    {
      std::lock_guard lock(mutex_);
      error_ = std::move(error);
      is_over_.store(true, std::memory_order_release);
      watchers.swap(watchers_);
    }
    for (const std::function<void()>& watcher : watchers) watcher();
  }
  // Called once, under no lock: for streams of other devices that wait for it.
  void WhenOver(std::function<void()> watcher) {
    {
      std::lock_guard lock(mutex_);
      if (!is_over_.load(std::memory_order_relaxed)) {
        watchers_.push_back(std::move(watcher));
        return;
      }
    }
    watcher();
  }

 private:
  const std::shared_ptr<const LostEdges> lost_;
  std::mutex mutex_;
  std::vector<std::function<void()>> watchers_;  // guarded by mutex_
  Status error_;
  std::atomic<bool> is_over_{false};
};

enum class Kind : uint8_t { kRecord, kWait, kCopy, kBatch, kKernel, kWork };

struct Operation {
  Kind kind = Kind::kWork;
  bool fails = false;
  CopyDirection direction = CopyDirection::kToHost;
  std::shared_ptr<Mark> mark;     // kRecord, kWait
  std::vector<CopyPiece> pieces;  // kCopy: one; kBatch: those left
  PagedCopyArgs kernel;           // of the two arrays below
  std::vector<PlaneArgs> planes;
  std::vector<int64_t> blocks;
  std::function<void()> work;

  bool MovesBytes() const { return kind == Kind::kCopy || kind == Kind::kBatch || kind == Kind::kKernel; }
};

// One stream. Everything but `lost` is guarded by the mutex of the service.
struct Queue {
  explicit Queue(bool terraces) : is_terraces(terraces) {}

  const bool is_terraces;  // made by MakeStream: the switches are about these
  const std::shared_ptr<LostEdges> lost = std::make_shared<LostEdges>();
  bool is_classified = false;  // the direction of its first copy is known
  std::deque<Operation> operations;
  Status error;  // once set, nothing of this stream is run any more

  bool CanGoOn() const {
    if (operations.empty()) return false;
    const Operation& next = operations.front();
    return next.kind != Kind::kWait || lost->waits.load(std::memory_order_relaxed) || next.mark->IsOver();
  }
};

// What of the process's memory the device may copy: registered ranges and the device's own. Thread-safe.
class KnownMemory {
 public:
  bool AddRange(const std::byte* begin, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    auto next = ranges_.upper_bound(begin);
    if (next != ranges_.end() && next->first < begin + bytes) return false;
    if (next != ranges_.begin()) {
      const auto& [before, size] = *std::prev(next);
      if (before + size > begin) return false;
    }
    ranges_.emplace(begin, bytes);
    total_bytes_ += bytes;
    return true;
  }
  // Its size; 0: there is no range that begins there.
  uint64_t RemoveRange(const std::byte* begin) {
    std::lock_guard lock(mutex_);
    const auto found = ranges_.find(begin);
    if (found == ranges_.end()) return 0;
    const uint64_t bytes = found->second;
    ranges_.erase(found);
    total_bytes_ -= bytes;
    return bytes;
  }
  // Within one range: no copy may cross from one to the next.
  bool Contains(const std::byte* begin, uint64_t bytes) const {
    std::lock_guard lock(mutex_);
    auto found = ranges_.upper_bound(begin);
    if (found == ranges_.begin()) return false;
    --found;
    return begin + bytes <= found->first + found->second;
  }
  uint64_t total_bytes() const {
    std::lock_guard lock(mutex_);
    return total_bytes_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, uint64_t> ranges_;  // disjoint
  uint64_t total_bytes_ = 0;
};

// The bytes themselves. Where a switch makes events lie, host threads race with these stores: the suite is to
// see that by what it reads, and not to be ended by the thread sanitizer, which has to be kept from knowing.
#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize_thread, noinline)) inline void CopyUnseen(std::byte* dst, const std::byte* src,
                                                                     uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; ++i) {
    static_cast<volatile std::byte*>(dst)[i] = static_cast<const volatile std::byte*>(src)[i];
  }
}
#else
inline void CopyUnseen(std::byte* dst, const std::byte* src, uint64_t bytes) { std::memcpy(dst, src, bytes); }
#endif

}  // namespace terrace::simulated
