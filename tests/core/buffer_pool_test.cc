// BufferPool: runs never overlap, everything comes back, the reclaimer is asked when it is full, loads and
// stores keep their reserves, waiters are called, and what is counted is right.
#include "lib/memory/buffer_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace terrace {
namespace {

std::unique_ptr<BufferPool> MakePool(uint64_t bytes, MetricRegistry* metrics = nullptr) {
  return *BufferPool::Create({.size_bytes = bytes, .huge_pages = false, .metrics = metrics});
}

// Content held in the order it came; what happens at each call can be replaced.
class ScriptedReclaimer : public Reclaimer {
 public:
  struct Content {
    BufferRef buffer;
    const BufferControl* control = nullptr;
    uint64_t cost = 0;
  };

  explicit ScriptedReclaimer(BufferPool* pool) : pool_(pool) { pool->SetReclaimer(this); }
  ~ScriptedReclaimer() override { pool_->SetReclaimer(nullptr); }

  const BufferControl* Keep(BufferRef buffer, uint64_t cost) {
    const BufferControl* control = pool_->ControlOf(buffer);
    contents.push_back({std::move(buffer), control, cost});
    return control;
  }

  bool ReclaimOne(uint64_t) override {
    const auto coldest = std::min_element(contents.begin(), contents.end(),
                                          [](const auto& a, const auto& b) { return a.cost < b.cost; });
    if (coldest == contents.end() || coldest->cost == kNotEvictable) return false;
    ++reclaimed;
    contents.erase(coldest);
    return true;
  }
  void Costs(std::span<const BufferControl* const> runs, std::span<uint64_t> costs) override {
    for (size_t i = 0; i < runs.size(); ++i) {
      for (const Content& content : contents) {
        if (content.control == runs[i]) costs[i] = content.cost;
      }
    }
    if (after_costs) std::exchange(after_costs, nullptr)();
  }
  bool Evict(const BufferControl* run) override {
    if (before_evict) before_evict(run);
    const auto found = std::find_if(contents.begin(), contents.end(),
                                    [&](const Content& content) { return content.control == run; });
    if (found == contents.end() || found->cost == kNotEvictable) return false;
    evicted.push_back(run);
    contents.erase(found);
    return true;
  }

  std::vector<Content> contents;
  std::vector<const BufferControl*> evicted;
  int reclaimed = 0;
  std::function<void()> after_costs;
  std::function<void(const BufferControl*)> before_evict;

 private:
  BufferPool* const pool_;
};

// A full pool of one-unit contents, of which contents[i] lies in unit i and costs costs[i].
std::vector<const BufferControl*> FillUnits(BufferPool& pool, ScriptedReclaimer& host,
                                            const std::vector<uint64_t>& costs) {
  std::vector<BufferRef> buffers;
  for (size_t i = 0; i < costs.size(); ++i) buffers.push_back(*pool.Allocate(kPoolUnitBytes));
  std::sort(buffers.begin(), buffers.end(),
            [](const BufferRef& a, const BufferRef& b) { return a.run().data() < b.run().data(); });
  std::vector<const BufferControl*> controls;
  for (size_t i = 0; i < costs.size(); ++i) controls.push_back(host.Keep(std::move(buffers[i]), costs[i]));
  EXPECT_EQ(pool.used_bytes(), pool.size_bytes());
  return controls;
}
constexpr uint64_t kPinned = Reclaimer::kNotEvictable;

TEST(BufferPoolTest, RunsKeepTheirBytesAndAllComesBack) {
  auto pool = MakePool(8 << 20);
  std::mt19937 random(1);
  std::vector<std::pair<BufferRef, int>> held;
  for (int i = 0; i < 20000; ++i) {
    const int mark = static_cast<int>(random() % 256);
    if (Result<BufferRef> buffer = pool->Allocate(1 + random() % (512 * 1024)); buffer.ok()) {
      ASSERT_EQ(reinterpret_cast<uintptr_t>(buffer->run().data()) % 4096, 0u);
      std::memset(buffer->mutable_run().data(), mark, buffer->size_bytes());
      held.emplace_back(*std::move(buffer), mark);
    } else {
      ASSERT_EQ(buffer.status().code(), StatusCode::kResourceExhausted);
      ASSERT_FALSE(held.empty());
    }
    if (held.size() > 1 && random() % 2) {
      std::swap(held[random() % held.size()], held.back());
      const Bytes run = held.back().first.run();
      for (size_t at = 0; at < run.size(); at += 4093)
        ASSERT_EQ(static_cast<int>(run[at]), held.back().second);
      held.pop_back();
    }
  }
  held.clear();
  EXPECT_EQ(pool->used_bytes(), 0u);
  EXPECT_TRUE(pool->Allocate(8 << 20).ok()) << "free runs did not join again";
}

TEST(BufferPoolTest, AsksTheReclaimerUntilItFitsOrNothingMayGo) {
  auto pool = MakePool(4 * kPoolUnitBytes);
  std::vector<BufferRef> evictable;
  for (int i = 0; i < 4; ++i) evictable.push_back(*pool->Allocate(kPoolUnitBytes));
  int asked = 0;
  pool->SetReclaimer([&](uint64_t) {
    ++asked;
    if (evictable.empty()) return false;
    evictable.pop_back();
    return true;
  });
  EXPECT_TRUE(pool->Allocate(3 * kPoolUnitBytes).ok());
  EXPECT_EQ(asked, 3);
  BufferRef all = *pool->Allocate(4 * kPoolUnitBytes);
  EXPECT_EQ(pool->Allocate(1).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(pool->Allocate(5 * kPoolUnitBytes).status().code(), StatusCode::kResourceExhausted);
}

TEST(BufferPoolTest, ZeroBytesIsAPoolInWhichNothingFits) {
  auto pool = MakePool(0);
  EXPECT_EQ(pool->Allocate(1).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(pool->size_bytes(), 0u);
}

TEST(BufferPoolTest, BuffersOutliveThePool) {
  auto pool = MakePool(1 << 20);
  BufferRef buffer = *pool->Allocate(1000);
  pool.reset();
  std::memset(buffer.mutable_run().data(), 1, buffer.size_bytes());
  BufferRef second = buffer;
  buffer.Reset();
  EXPECT_EQ(second.run()[0], std::byte{1});
}

TEST(BufferPoolTest, ThreadsNeverShareARun) {
  auto pool = MakePool(4 << 20);
  std::vector<std::thread> threads;
  for (int id = 1; id <= 4; ++id) {
    threads.emplace_back([&pool, id] {
      std::mt19937 random(id);
      for (int i = 0; i < 3000; ++i) {
        Result<BufferRef> buffer = pool->Allocate(1 + random() % (300 * 1024));
        if (!buffer.ok()) continue;
        std::memset(buffer->mutable_run().data(), id, 4096);
        for (size_t at = 0; at < 4096; at += 64) ASSERT_EQ(static_cast<int>(buffer->run()[at]), id);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool->used_bytes(), 0u);
}

TEST(BufferPoolTest, PiecesOfOneGibibyteThatNoRunCrosses) {
  auto pool = *BufferPool::Create(
      {.size_bytes = 3 * kPoolPieceBytes - kPoolUnitBytes, .huge_pages = false, .populate = false});
  const std::vector<MemoryRegion> regions = pool->regions();
  ASSERT_EQ(regions.size(), 3u);
  EXPECT_EQ(regions[0].bytes.size(), kPoolPieceBytes);
  EXPECT_EQ(regions[2].bytes.size(), kPoolPieceBytes - kPoolUnitBytes);
  EXPECT_EQ(pool->region().bytes.data(), regions[0].bytes.data());
  EXPECT_EQ(pool->region().bytes.size(), pool->size_bytes());
  std::vector<BufferRef> held;
  while (true) {
    Result<BufferRef> buffer = pool->Allocate(150 << 20);
    if (!buffer.ok()) break;
    const MemoryRegion& region = regions[buffer->region_id()];
    EXPECT_EQ(region.id, buffer->region_id());
    EXPECT_GE(buffer->run().data(), region.bytes.data());
    EXPECT_LE(&buffer->run().back(), &region.bytes.back());
    held.push_back(*std::move(buffer));
  }
  EXPECT_EQ(held.size(), 18u) << "six in each piece";
  held.clear();
  EXPECT_EQ(pool->largest_buffer_bytes(), kPoolPieceBytes);
  EXPECT_EQ(pool->Allocate(kPoolPieceBytes + 1).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(pool->Allocate(kPoolPieceBytes).ok());
}

class RecordingSink : public LogSink {
 public:
  void Log(LogLevel level, std::string_view, std::string_view message) override {
    if (level == LogLevel::kWarning) warnings.emplace_back(message);
  }
  std::vector<std::string> warnings;
};

TEST(BufferPoolTest, NodeThatIsNotThereIsAWarning) {
  RecordingSink log;
  BufferPoolOptions options{.size_bytes = 1 << 20, .numa_node = 1023, .log = &log};
  EXPECT_TRUE((*BufferPool::Create(options))->Allocate(1 << 20).ok());
  ASSERT_EQ(log.warnings.size(), 1u);
  EXPECT_NE(log.warnings[0].find("NUMA node 1023"), std::string::npos) << log.warnings[0];
  for (const int node : {-2, 1024}) {
    options.numa_node = node;
    EXPECT_EQ(BufferPool::Create(options).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(BufferPoolReserveTest, NeitherClassTakesTheOthersReserve) {
  auto pool = MakePool(64 * kPoolUnitBytes);
  ScriptedReclaimer host(pool.get());
  std::vector<BufferRef> loads;
  for (int i = 0; i < 48; ++i) loads.push_back(*pool->Allocate(kPoolUnitBytes, BufferUse::kLoad));
  EXPECT_EQ(pool->class_bytes(BufferUse::kLoad), 48 * kPoolUnitBytes);
  host.Keep(*pool->Allocate(kPoolUnitBytes), 1);
  EXPECT_EQ(pool->Allocate(1, BufferUse::kLoad).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(host.reclaimed, 0) << "above the limit nothing is evicted";
  std::vector<BufferRef> stores;
  for (int i = 0; i < 15; ++i) stores.push_back(*pool->Allocate(kPoolUnitBytes, BufferUse::kStore));
  stores.push_back(*pool->Allocate(kPoolUnitBytes, BufferUse::kStore));
  EXPECT_EQ(host.reclaimed, 1) << "the reserve's last unit held content";
  EXPECT_EQ(pool->class_bytes(BufferUse::kStore), 16 * kPoolUnitBytes);

  pool->Settle(loads[0]);
  pool->Settle(loads[0]);
  EXPECT_EQ(pool->class_bytes(BufferUse::kLoad), 47 * kPoolUnitBytes);
  loads[1].Reset();
  EXPECT_EQ(pool->class_bytes(BufferUse::kLoad), 46 * kPoolUnitBytes);
  EXPECT_TRUE(pool->Allocate(1, BufferUse::kLoad).ok());
  loads.clear();
  stores.clear();
  EXPECT_EQ(pool->class_bytes(BufferUse::kLoad), 0u) << "a settled run is not discharged again";
  EXPECT_EQ(pool->class_bytes(BufferUse::kStore), 0u);
}

TEST(BufferPoolReserveTest, LargestFrameIsTheReserveAndASmallPoolAlternates) {
  auto pool = MakePool(64 * kPoolUnitBytes);
  std::vector<BufferRef> loads;
  loads.push_back(*pool->Allocate(24 * kPoolUnitBytes, BufferUse::kLoad));
  loads.push_back(*pool->Allocate(16 * kPoolUnitBytes, BufferUse::kLoad));
  EXPECT_EQ(pool->Allocate(1, BufferUse::kLoad).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(pool->Allocate(24 * kPoolUnitBytes, BufferUse::kStore).ok());
  loads.clear();
  // A frame of more than half of the pool: no reserves any more.
  loads.push_back(*pool->Allocate(40 * kPoolUnitBytes, BufferUse::kLoad));
  loads.push_back(*pool->Allocate(24 * kPoolUnitBytes, BufferUse::kLoad));
  EXPECT_EQ(pool->class_bytes(BufferUse::kLoad), 64 * kPoolUnitBytes);
  loads.clear();
  EXPECT_TRUE(pool->Allocate(40 * kPoolUnitBytes, BufferUse::kStore).ok());
}

TEST(BufferPoolReserveTest, RefusedAllocationIsNotCharged) {
  auto pool = MakePool(8 * kPoolUnitBytes);
  BufferRef content = *pool->Allocate(8 * kPoolUnitBytes);
  EXPECT_EQ(pool->Allocate(1, BufferUse::kLoad).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(pool->class_bytes(BufferUse::kLoad), 0u);
  BufferRef foreign(new BufferControl{.data = nullptr, .release = [](BufferControl* run) { delete run; }});
  pool->Settle(foreign);
  pool->MarkOrphan(foreign);
  EXPECT_EQ(pool->ControlOf(foreign), nullptr);
  EXPECT_EQ(pool->orphaned_bytes(), 0u);
}

TEST(BufferPoolWindowTest, EvictsTheCheapestNeighboursAndNothingElse) {
  auto pool = MakePool(8 * kPoolUnitBytes);
  ScriptedReclaimer host(pool.get());
  const auto at = FillUnits(*pool, host, {1, 90, kPinned, 20, 30, 25, 95, 2});
  // Three free units without two that touch: 0 and 7 are the coldest, 3 to 5 are the cheapest three in a row.
  BufferRef made = *pool->Allocate(3 * kPoolUnitBytes, BufferUse::kStore);
  EXPECT_EQ(host.reclaimed, 1) << "half of the bytes are free after one";
  EXPECT_EQ(host.evicted, (std::vector<const BufferControl*>{at[3], at[4], at[5]}));
  EXPECT_EQ(made.run().data(), at[3]->data);
  EXPECT_EQ(pool->ControlOf(made), at[3]);
  EXPECT_EQ(pool->used_bytes(), 7 * kPoolUnitBytes);
}

TEST(BufferPoolWindowTest, NobodyTakesWhatIsBeingEvictedForAnother) {
  auto pool = MakePool(8 * kPoolUnitBytes);
  ScriptedReclaimer host(pool.get());
  const auto at = FillUnits(*pool, host, {1, 50, kPinned, 20, 30, 25, 50, kPinned});
  std::vector<BufferRef> others;
  bool asked = false;
  host.before_evict = [&](const BufferControl*) {
    if (std::exchange(asked, true)) return;
    // Another allocation evicts all that may go, the rest of the window too: it gets none of that.
    for (int i = 0; i < 3; ++i) {
      if (Result<BufferRef> other = pool->Allocate(1); other.ok()) others.push_back(*std::move(other));
    }
  };
  BufferRef made = *pool->Allocate(3 * kPoolUnitBytes);
  EXPECT_EQ(made.run().data(), at[3]->data);
  EXPECT_EQ(others.size(), 3u) << "units 0, 1 and 6";
  for (const BufferRef& other : others) {
    EXPECT_TRUE(other.run().data() < made.run().data() || other.run().data() > &made.run().back());
  }
}

TEST(BufferPoolWindowTest, RunHandedOutAgainMeanwhileIsNotEvicted) {
  auto pool = MakePool(4 * kPoolUnitBytes);
  ScriptedReclaimer host(pool.get());
  FillUnits(*pool, host, {10, 11, kPinned, 5});
  BufferRef fresh;
  host.after_costs = [&] {
    // Between the costs and the choice unit 1 goes to somebody else, who is still writing.
    host.contents.erase(host.contents.begin() + 1);
    std::vector<BufferRef> taken;
    while (!fresh || fresh.run().data() != pool->region().bytes.data() + kPoolUnitBytes) {
      fresh = *pool->Allocate(1, BufferUse::kLoad);
      taken.push_back(fresh);
    }
  };
  EXPECT_EQ(pool->Allocate(2 * kPoolUnitBytes).status().code(), StatusCode::kResourceExhausted);
  for (const BufferControl* run : host.evicted) EXPECT_NE(run, pool->ControlOf(fresh));
  EXPECT_EQ(fresh.use_count(), 1u);
}

TEST(BufferPoolWindowTest, RefusedEvictionGivesBackWhatWasEvicted) {
  auto pool = MakePool(8 * kPoolUnitBytes);
  ScriptedReclaimer host(pool.get());
  const auto at = FillUnits(*pool, host, {1, kPinned, 2, 3, 4, 5, kPinned, kPinned});
  host.before_evict = [&](const BufferControl* run) {
    for (auto& content : host.contents) {
      if (content.control == run && run == at[4]) content.cost = kPinned;
    }
  };
  EXPECT_EQ(pool->Allocate(3 * kPoolUnitBytes).status().code(), StatusCode::kResourceExhausted);
  const uint64_t free_units = 8 - pool->used_bytes() / kPoolUnitBytes;
  std::vector<BufferRef> rest;
  for (uint64_t i = 0; i < free_units; ++i) rest.push_back(*pool->Allocate(kPoolUnitBytes));
  EXPECT_EQ(pool->used_bytes(), pool->size_bytes());
}

TEST(BufferPoolWindowTest, WhatCannotSucceedEvictsNoMore) {
  auto pool = MakePool(16 * kPoolUnitBytes);
  ScriptedReclaimer host(pool.get());
  std::vector<uint64_t> costs(16, 7);
  costs[3] = costs[7] = costs[11] = kPinned;
  FillUnits(*pool, host, costs);
  EXPECT_EQ(pool->Allocate(5 * kPoolUnitBytes).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(host.reclaimed, 2) << "half of what is wanted";
  EXPECT_TRUE(host.evicted.empty());
  EXPECT_EQ(pool->Allocate(5 * kPoolUnitBytes).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(host.reclaimed, 2) << "nor does the next try";
  EXPECT_TRUE(pool->Allocate(4 * kPoolUnitBytes).ok());
}

TEST(BufferPoolWaiterTest, CalledOnceForEachKindOfRoom) {
  auto pool = MakePool(8 * kPoolUnitBytes);
  BufferRef first = *pool->Allocate(kPoolUnitBytes);
  BufferRef second = *pool->Allocate(kPoolUnitBytes, BufferUse::kLoad);
  int called = 0;
  const auto wait = [&] { return pool->NotifyOnRoom([&] { ++called; }); };
  const uint64_t a = wait();
  const uint64_t b = wait();
  EXPECT_NE(a, 0u);
  EXPECT_NE(a, b);
  EXPECT_TRUE(pool->CancelNotify(a));
  EXPECT_FALSE(pool->CancelNotify(a));
  first.Reset();
  EXPECT_EQ(called, 1);
  EXPECT_FALSE(pool->CancelNotify(b)) << "was called";
  pool->Nudge();
  EXPECT_EQ(called, 1) << "once only";
  wait();
  pool->Settle(second);
  EXPECT_EQ(called, 2);
  wait();
  pool->Settle(second);
  EXPECT_EQ(called, 2) << "was settled before: no room is made";
  pool->Nudge();
  EXPECT_EQ(called, 3);
}

TEST(BufferPoolWaiterTest, CalledWithoutTheLock) {
  auto pool = MakePool(kPoolUnitBytes);
  BufferRef held = *pool->Allocate(1);
  BufferRef next;
  pool->NotifyOnRoom([&] {
    next = *pool->Allocate(1);
    pool->NotifyOnRoom([] {});
  });
  held.Reset();
  EXPECT_TRUE(static_cast<bool>(next));
}

// One unit is free, a window is reserved around it, and what lies beside it is read by somebody after all.
TEST(BufferPoolWaiterTest, AnAttemptThatWinsNothingWakesOnlyWhomItRefused) {
  for (const bool refuses_another : {false, true}) {
    auto pool = MakePool(4 * kPoolUnitBytes);
    ScriptedReclaimer host(pool.get());
    FillUnits(*pool, host, {5, 5, 5, 5});
    host.contents.erase(host.contents.begin() + 1);
    int called = 0;
    int attempts = 0;
    host.before_evict = [&](const BufferControl*) {
      ++attempts;
      for (ScriptedReclaimer::Content& content : host.contents) content.cost = kPinned;
      // The unit that is free belongs to the attempt for now.
      if (refuses_another) {
        EXPECT_FALSE(pool->Allocate(kPoolUnitBytes).ok());
      }
    };
    pool->NotifyOnRoom([&] { ++called; });
    EXPECT_FALSE(pool->Allocate(2 * kPoolUnitBytes).ok());
    EXPECT_EQ(attempts, 1);
    EXPECT_EQ(called, refuses_another ? 1 : 0);
    EXPECT_TRUE(pool->Allocate(kPoolUnitBytes).ok()) << "given back";
  }
}

TEST(BufferPoolWaiterTest, BoundedAndDroppedWithThePool) {
  auto pool = MakePool(kPoolUnitBytes);
  BufferRef held = *pool->Allocate(1);
  int called = 0;
  for (int i = 0; i < 4096; ++i) ASSERT_NE(pool->NotifyOnRoom([&] { ++called; }), 0u);
  EXPECT_EQ(pool->NotifyOnRoom([&] { ++called; }), 0u);
  pool.reset();
  held.Reset();
  EXPECT_EQ(called, 0);
}

TEST(BufferPoolTest, OrphansAreCountedAndNotEvicted) {
  auto pool = MakePool(4 * kPoolUnitBytes);
  ScriptedReclaimer host(pool.get());
  const auto at = FillUnits(*pool, host, {9, 5, 1, 9});
  pool->MarkOrphan(host.contents[1].buffer);
  pool->MarkOrphan(host.contents[1].buffer);
  EXPECT_EQ(pool->orphaned_bytes(), kPoolUnitBytes);
  // Units 1 and 2 would be the cheapest two.
  ASSERT_TRUE(pool->Allocate(2 * kPoolUnitBytes).ok());
  EXPECT_EQ(host.evicted, std::vector<const BufferControl*>{at[3]});
  host.contents.clear();
  EXPECT_EQ(pool->orphaned_bytes(), 0u);
}

TEST(BufferPoolTest, AnOrphanIsChargedToNoClassAndTellsWhoWaits) {
  auto pool = MakePool(4 * kPoolUnitBytes);
  std::vector<BufferRef> loads;
  for (int i = 0; i < 3; ++i) loads.push_back(*pool->Allocate(kPoolUnitBytes, BufferUse::kLoad));
  EXPECT_FALSE(pool->Allocate(kPoolUnitBytes, BufferUse::kLoad).ok()) << "the stores' reserve";
  int told = 0;
  pool->NotifyOnRoom([&] { ++told; });
  pool->MarkOrphan(loads[0]);
  EXPECT_EQ(told, 1);
  EXPECT_EQ(pool->class_bytes(BufferUse::kLoad), 2 * kPoolUnitBytes);
  EXPECT_EQ(pool->used_bytes(), 3 * kPoolUnitBytes);
  const Result<BufferRef> more = pool->Allocate(kPoolUnitBytes, BufferUse::kLoad);
  EXPECT_TRUE(more.ok()) << more.status().ToString();
  loads.clear();
  EXPECT_EQ(pool->orphaned_bytes(), 0u);
  EXPECT_EQ(pool->class_bytes(BufferUse::kLoad), kPoolUnitBytes);
}

TEST(BufferPoolTest, MetricsAreRightAtEveryMoment) {
  MetricRegistry metrics;
  auto pool = MakePool(8 * kPoolUnitBytes, &metrics);
  const auto value = [&](const char* name) { return metrics.Value(std::string("terrace_pool_") + name); };
  const auto failures = [&](const char* reason) {
    return metrics.Value("terrace_pool_failures_total", {{"reason", reason}});
  };
  constexpr auto kUnit = static_cast<int64_t>(kPoolUnitBytes);
  EXPECT_EQ(value("size_bytes"), 8 * kUnit);
  BufferRef load = *pool->Allocate(2 * kPoolUnitBytes, BufferUse::kLoad);
  BufferRef store = *pool->Allocate(kPoolUnitBytes, BufferUse::kStore);
  BufferRef content = *pool->Allocate(5 * kPoolUnitBytes);
  pool->MarkOrphan(load);
  EXPECT_EQ(value("used_bytes"), 8 * kUnit);
  EXPECT_EQ(value("load_bytes"), 0) << "given up";
  EXPECT_EQ(value("store_bytes"), kUnit);
  EXPECT_EQ(value("orphaned_bytes"), 2 * kUnit);
  EXPECT_EQ(value("allocations_total"), 3);
  EXPECT_FALSE(pool->Allocate(1).ok());
  EXPECT_FALSE(pool->Allocate(9 * kPoolUnitBytes).ok());
  pool->Settle(store);
  content.Reset();
  content = *pool->Allocate(5 * kPoolUnitBytes, BufferUse::kStore);
  EXPECT_EQ(value("load_bytes"), 0);
  EXPECT_EQ(value("store_bytes"), 5 * kUnit);
  content.Reset();
  load.Reset();
  EXPECT_EQ(value("used_bytes"), kUnit);
  EXPECT_EQ(value("load_bytes"), 0);
  EXPECT_EQ(value("store_bytes"), 0);
  EXPECT_EQ(value("orphaned_bytes"), 0);
  EXPECT_EQ(failures("full"), 1);
  EXPECT_EQ(failures("too_large"), 1);
  EXPECT_EQ(failures("class_limit"), 0);
  load = *pool->Allocate(5 * kPoolUnitBytes, BufferUse::kLoad);
  pool.reset();
  for (const char* gauge : {"size_bytes", "used_bytes", "load_bytes", "store_bytes", "orphaned_bytes"}) {
    EXPECT_EQ(value(gauge), 0) << gauge << " after the pool";
  }
  load.Reset();
  EXPECT_EQ(value("used_bytes"), 0) << "a buffer that outlives the pool does not touch its metrics";
}

}  // namespace
}  // namespace terrace
