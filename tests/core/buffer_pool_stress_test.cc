// BufferPool when it is full for long: how much of it is used over a million operations of switching sizes,
// whether long runs are to be had beside pinned ones, no heap memory per buffer, and threads that evict for
// each other.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "lib/memory/buffer_pool.h"
#include "tests/core/lru_reclaimer.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TERRACE_TEST_SANITIZED 1
#else
#define TERRACE_TEST_SANITIZED 0
#endif

namespace {
thread_local uint64_t heap_allocations = 0;
}  // namespace

#if !TERRACE_TEST_SANITIZED  // a sanitizer has its own
void* operator new(size_t bytes) {
  ++heap_allocations;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

namespace terrace {
namespace {

constexpr int kOperations = TERRACE_TEST_SANITIZED ? 40'000 : 1'000'000;
constexpr uint64_t kSmallest = 23 * 1024;
constexpr uint64_t kLargest = uint64_t{64} << 20;
constexpr std::array<uint64_t, 6> kDominantSizes = {kSmallest, 5'900'000, kLargest,
                                                    2 << 20,   kSmallest, kLargest};

std::unique_ptr<BufferPool> MakePool(uint64_t bytes, MetricRegistry* metrics = nullptr) {
  return *BufferPool::Create(
      {.size_bytes = bytes, .huge_pages = false, .populate = false, .metrics = metrics});
}

// Four of five are of the dominant size, the others of any, evenly on a logarithmic scale.
uint64_t DrawSize(uint64_t dominant, std::mt19937_64& random) {
  if (random() % 5 != 0) return dominant;
  const double place = static_cast<double>(random() % 1'000'001) / 1e6;
  const double low = std::log(static_cast<double>(kSmallest));
  return static_cast<uint64_t>(std::exp(low + place * (std::log(static_cast<double>(kLargest)) - low)));
}

void StoreOrTouch(BufferPool& pool, LruReclaimer& host, uint64_t dominant, std::mt19937_64& random) {
  const uint64_t choice = random() % 100;
  if (choice < 30) return host.TouchAny(random);
  if (choice < 32) return host.EraseAny(random);
  Result<BufferRef> buffer = pool.Allocate(DrawSize(dominant, random), BufferUse::kStore);
  ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
  host.Publish(*std::move(buffer));
}

TEST(BufferPoolStressTest, AlmostAllIsUsedWheneverSomethingMustGo) {
  constexpr uint64_t kSeed = 4;
  RecordProperty("seed", kSeed);
  std::mt19937_64 random(kSeed);
  auto pool = MakePool(uint64_t{1} << 30);
  LruReclaimer host(pool.get());
  for (const uint64_t dominant : kDominantSizes) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", dominant size " + std::to_string(dominant));
    double sum = 0;
    double least = 1;
    uint64_t needed = 0;
    for (size_t i = 0; i < kOperations / kDominantSizes.size(); ++i) {
      const double used = static_cast<double>(pool->used_bytes()) / static_cast<double>(pool->size_bytes());
      const uint64_t before = host.evictions();
      ASSERT_NO_FATAL_FAILURE(StoreOrTouch(*pool, host, dominant, random));
      if (host.evictions() == before) continue;
      ++needed;
      sum += used;
      least = std::min(least, used);
    }
    ASSERT_GT(needed, 100u);
    EXPECT_GE(sum / static_cast<double>(needed), 0.92);
    EXPECT_GE(least, 0.80);
    std::printf("  dominant %9lu: used %.4f, at least %.4f\n", dominant, sum / static_cast<double>(needed),
                least);
  }
}

// How many of `rounds` requests of 64 MiB succeed with 30 % of the bytes pinned.
template <typename Pin>
int CountLongRuns(uint64_t pool_bytes, uint64_t dominant, int rounds, Pin pin) {
  std::mt19937_64 random(9);
  auto pool = MakePool(pool_bytes);
  LruReclaimer host(pool.get());
  while (host.evictions() < 2000) StoreOrTouch(*pool, host, dominant, random);
  int succeeded = 0;
  for (int round = 0; round < rounds; ++round) {
    EXPECT_GE(pin(host, pool_bytes * 3 / 10, random), pool_bytes * 3 / 10);
    succeeded += pool->Allocate(kLargest, BufferUse::kStore).ok();
    host.UnpinAll();
    for (int i = 0; i < 600; ++i) StoreOrTouch(*pool, host, dominant, random);
  }
  return succeeded;
}

TEST(BufferPoolStressTest, LongRunBesidePinnedBytes) {
  constexpr int kRounds = TERRACE_TEST_SANITIZED ? 5 : 100;
  const auto any = [](LruReclaimer& host, uint64_t bytes, auto& random) {
    return host.PinAny(bytes, random);
  };
  const auto newest = [](LruReclaimer& host, uint64_t bytes, auto&) { return host.PinNewest(bytes); };
  for (const uint64_t dominant : kDominantSizes) {
    SCOPED_TRACE(dominant);
    // A pool of sixteen such runs, a third of it pinned in hundreds of places: sometimes there is no place at
    // all.
    const int least = dominant == kLargest ? kRounds : kRounds * 7 / 10;
    EXPECT_GE(CountLongRuns(uint64_t{1} << 30, dominant, kRounds, any), least);
    EXPECT_GE(CountLongRuns(uint64_t{1} << 30, dominant, kRounds, newest), least);
    if (TERRACE_TEST_SANITIZED) continue;
    EXPECT_GE(CountLongRuns(uint64_t{4} << 30, dominant, kRounds / 4, any), kRounds / 4 - 1);
  }
}

// Content in a ring, coldest first; takes no memory.
class RingReclaimer : public Reclaimer {
 public:
  explicit RingReclaimer(BufferPool* pool) : pool_(pool) { pool->SetReclaimer(this); }
  ~RingReclaimer() override { pool_->SetReclaimer(nullptr); }

  void Publish(BufferRef buffer) {
    pool_->Settle(buffer);
    ring_[next_++ % ring_.size()] = std::move(buffer);
  }
  bool ReclaimOne(uint64_t) override {
    for (size_t i = 0; i < ring_.size(); ++i) {
      BufferRef& buffer = ring_[(next_ + i) % ring_.size()];
      if (!buffer) continue;
      buffer.Reset();
      return true;
    }
    return false;
  }
  void Costs(std::span<const BufferControl* const> runs, std::span<uint64_t> costs) override {
    for (size_t i = 0; i < runs.size(); ++i) {
      if (const BufferRef* found = Find(runs[i])) {
        costs[i] = (static_cast<size_t>(found - ring_.data()) - next_) % ring_.size();
      }
    }
  }
  bool Evict(const BufferControl* run) override {
    BufferRef* found = Find(run);
    if (found != nullptr) found->Reset();
    return found != nullptr;
  }

 private:
  BufferRef* Find(const BufferControl* run) {
    for (BufferRef& buffer : ring_) {
      if (buffer && pool_->ControlOf(buffer) == run) return &buffer;
    }
    return nullptr;
  }
  BufferPool* const pool_;
  std::array<BufferRef, 512> ring_;
  uint64_t next_ = 0;
};

TEST(BufferPoolStressTest, NoHeapMemoryPerBuffer) {
  if (TERRACE_TEST_SANITIZED) GTEST_SKIP() << "operator new is the sanitizer's";
  MetricRegistry metrics;
  auto pool = MakePool(64 << 20, &metrics);
  RingReclaimer host(pool.get());
  std::mt19937_64 random(5);
  const uint64_t at_start = heap_allocations;
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t bytes = random() % 10 == 0 ? 5'900'000 : 1 + random() % 300'000;
    Result<BufferRef> buffer = pool->Allocate(bytes, i % 2 ? BufferUse::kLoad : BufferUse::kStore);
    if (!buffer.ok()) break;
    host.Publish(*std::move(buffer));
  }
  EXPECT_EQ(heap_allocations, at_start);
  EXPECT_EQ(metrics.Value("terrace_pool_allocations_total"), 20'000);
  EXPECT_GT(metrics.Value("terrace_pool_window_evictions_total"), 100);
  auto counted = std::make_unique<int>();
  EXPECT_GT(heap_allocations, at_start) << "the count works";
}

TEST(BufferPoolStressTest, ThreadsEvictWindowsAndNeverShareARun) {
  constexpr int kThreads = 4;
  constexpr int kRounds = TERRACE_TEST_SANITIZED ? 1500 : 20'000;
  MetricRegistry metrics;
  auto pool = MakePool(256 * kPoolUnitBytes, &metrics);
  auto host = std::make_unique<LruReclaimer>(pool.get());
  std::atomic<uint64_t> woken{0};
  std::atomic<uint64_t> stored{0};
  std::vector<std::thread> threads;
  for (int id = 0; id < kThreads; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937_64 random(id + 1);
      for (int i = 0; i < kRounds; ++i) {
        const uint64_t units = random() % 4 == 0 ? 8 + random() % 33 : 1 + random() % 4;
        const uint64_t waiter = pool->NotifyOnRoom([&] { ++woken; });
        Result<BufferRef> buffer =
            pool->Allocate(units * kPoolUnitBytes, random() % 2 ? BufferUse::kLoad : BufferUse::kStore);
        pool->CancelNotify(waiter);
        host->TouchAny(random);
        if (!buffer.ok()) continue;
        const uint64_t mark = static_cast<uint64_t>(id) << 32 | static_cast<uint64_t>(i);
        for (uint64_t at = 0; at < buffer->size_bytes(); at += kPoolUnitBytes) {
          std::memcpy(buffer->mutable_run().data() + at, &mark, sizeof(mark));
        }
        if (random() % 50 == 0) pool->MarkOrphan(*buffer);
        for (uint64_t at = 0; at < buffer->size_bytes(); at += kPoolUnitBytes) {
          ASSERT_EQ(std::memcmp(buffer->run().data() + at, &mark, sizeof(mark)), 0);
        }
        ++stored;
        if (random() % 8 != 0) host->Publish(*std::move(buffer));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(stored, kThreads * kRounds / 2u);
  EXPECT_GT(metrics.Value("terrace_pool_window_evictions_total"), 10);
  EXPECT_EQ(pool->class_bytes(BufferUse::kLoad) + pool->class_bytes(BufferUse::kStore), 0u);
  host.reset();
  EXPECT_EQ(pool->used_bytes(), 0u);
  EXPECT_EQ(pool->orphaned_bytes(), 0u);
  EXPECT_GT(woken, 0u);
  EXPECT_TRUE(pool->Allocate(pool->size_bytes()).ok()) << "no unit is lost to an abandoned window";
}

}  // namespace
}  // namespace terrace
