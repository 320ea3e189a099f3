// How much of the space is usable after a million operations: objects of 4 KiB to 64 MiB, whose dominant size
// changes, in a full tier that evicts the least recently used.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <random>

#include "backends/nvme/extent_allocator.h"

namespace terrace {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint32_t kSegments = 16;
constexpr uint64_t kSegmentBytes = uint64_t{1} << 30;
constexpr uint64_t kFrameOverhead = 8192;  // tier page and frame header
constexpr double kUsable = 0.97;

struct Phase {
  const char* name;
  uint64_t dominant_bytes;  // of 95 in 100 objects; the others have any size. 0: all have
  int operations;
};

class ExtentWorkload {
 public:
  explicit ExtentWorkload(uint64_t seed) : random_(seed) {
    for (uint32_t i = 0; i < kSegments; ++i) allocator_.GrowSegment(i, kSegmentBytes);
  }

  void Run(const Phase& phase) {
    put_bytes_ = 0;
    settled_refusals_ = 0;
    least_usable_ = 1;
    for (int i = 0; i < phase.operations; ++i) {
      // One operation in ten is a hit: it makes an object young that lies among old ones.
      if (!live_.empty() && random_() % 10 == 0) {
        MakeYoung(live_[random_() % live_.size()]);
      } else {
        const bool dominant = phase.dominant_bytes > 0 && random_() % 100 < 95;
        Put(kFrameOverhead + (dominant ? phase.dominant_bytes : AnySize()));
      }
    }
  }

  // Live bytes of all, at the worst refusal since the phase has settled: since twice the capacity was put in
  // it. Before that, objects of the phase before still lie scattered where they were used again, and the gaps
  // between them are what they are.
  double least_usable() const { return least_usable_; }
  int64_t settled_refusals() const { return settled_refusals_; }
  const ExtentAllocator& allocator() const { return allocator_; }

 private:
  struct Object {
    std::vector<Extent> extents;
    uint64_t age = 0;       // 0: free
    size_t live_index = 0;  // its place in live_
  };

  // The logarithm is uniform.
  uint64_t AnySize() {
    const double u = static_cast<double>(random_() >> 11) * 0x1p-53;
    return static_cast<uint64_t>(4096 * std::pow(static_cast<double>(64 * kMiB) / 4096, u));
  }

  void MakeYoung(uint32_t object) {
    objects_[object].age = ++last_age_;
    by_age_.emplace_back(object, last_age_);
  }

  void Put(uint64_t bytes) {
    auto extents = allocator_.Allocate(bytes);
    while (!extents) {
      NoteRefusal();
      EvictOldest();
      extents = allocator_.Allocate(bytes);
    }
    put_bytes_ += bytes;
    if (idle_.empty()) {
      idle_.push_back(static_cast<uint32_t>(objects_.size()));
      objects_.emplace_back();
    }
    const uint32_t object = idle_.back();
    idle_.pop_back();
    objects_[object].extents = std::move(*extents);
    objects_[object].live_index = live_.size();
    live_.push_back(object);
    MakeYoung(object);
  }

  void NoteRefusal() {
    if (put_bytes_ < 2 * allocator_.total_bytes()) return;
    ++settled_refusals_;
    least_usable_ = std::min(least_usable_, static_cast<double>(allocator_.live_bytes()) /
                                                static_cast<double>(allocator_.total_bytes()));
  }

  void EvictOldest() {
    // Entries of ages that an object no longer has are left behind by MakeYoung.
    while (objects_[by_age_.front().first].age != by_age_.front().second) by_age_.pop_front();
    const uint32_t object = by_age_.front().first;
    by_age_.pop_front();
    Object& evicted = objects_[object];
    allocator_.Free(evicted.extents);
    evicted.age = 0;
    live_[evicted.live_index] = live_.back();
    objects_[live_.back()].live_index = evicted.live_index;
    live_.pop_back();
    idle_.push_back(object);
  }

  ExtentAllocator allocator_;
  std::mt19937_64 random_;
  std::vector<Object> objects_;
  std::vector<uint32_t> idle_;
  std::vector<uint32_t> live_;
  std::deque<std::pair<uint32_t, uint64_t>> by_age_;
  uint64_t last_age_ = 0;
  uint64_t put_bytes_ = 0;
  int64_t settled_refusals_ = 0;
  double least_usable_ = 1;
};

TEST(ExtentWorkloadTest, SpaceStaysUsableAsTheDominantSizeChanges) {
  constexpr Phase kPhases[] = {{"64 KiB", 64 * 1024, 400'000},
                               {"32 MiB", 32 * kMiB, 100'000},
                               {"5.9 MB", 5'900'000, 200'000},
                               {"4 KiB to 64 MiB", 0, 300'000}};
  ExtentWorkload workload(20262);
  for (const Phase& phase : kPhases) {
    workload.Run(phase);
    workload.allocator().CheckInvariants();
    EXPECT_GE(workload.settled_refusals(), 50'000) << phase.name << ": the tier was not full";
    EXPECT_GE(workload.least_usable(), kUsable) << phase.name;
    RecordProperty(phase.name, std::to_string(workload.least_usable()));
  }
}

}  // namespace
}  // namespace terrace
