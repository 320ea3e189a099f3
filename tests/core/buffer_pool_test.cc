// BufferPool: runs never overlap, everything comes back, the reclaimer is asked when it is full.
#include "lib/memory/buffer_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

namespace terrace {
namespace {

std::unique_ptr<BufferPool> MakePool(uint64_t bytes) {
  return *BufferPool::Create({.size_bytes = bytes, .huge_pages = false});
}

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

}  // namespace
}  // namespace terrace
