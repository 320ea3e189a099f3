#include "backends/nvme/extent_allocator.h"

#include <gtest/gtest.h>

#include <random>

#include "lib/wire/frame.h"

namespace terrace {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

uint64_t Total(const std::vector<Extent>& extents) {
  uint64_t bytes = 0;
  for (const Extent& extent : extents) bytes += extent.length;
  return bytes;
}

// Who owns each unit, kept the plain way.
class Units {
 public:
  Units(uint32_t segments, uint64_t segment_bytes)
      : units_(segments, std::vector<int>(segment_bytes / kExtentUnit)) {}
  // Expects every unit to be `from`, and makes it `to`.
  void Change(const std::vector<Extent>& extents, int from, int to) {
    for (const Extent& extent : extents) {
      ASSERT_LT(extent.segment, units_.size());
      ASSERT_EQ(extent.offset % kExtentUnit, 0u);
      ASSERT_EQ(extent.length % kExtentUnit, 0u);
      ASSERT_LE(extent.offset + extent.length, units_[extent.segment].size() * kExtentUnit);
      for (uint64_t at = extent.offset; at < extent.offset + extent.length; at += kExtentUnit) {
        ASSERT_EQ(units_[extent.segment][at / kExtentUnit], from);
        units_[extent.segment][at / kExtentUnit] = to;
      }
    }
  }

 private:
  std::vector<std::vector<int>> units_;
};

TEST(ExtentAllocatorTest, RandomOperationsKeepTheInvariant) {
  constexpr uint32_t kSegments = 3;
  constexpr uint64_t kSegmentBytes = 24 * kMiB;
  ExtentAllocator allocator;
  for (uint32_t i = 0; i < kSegments; ++i) allocator.GrowSegment(i, kSegmentBytes);
  Units units(kSegments, kSegmentBytes);
  std::mt19937_64 random(20261);
  std::vector<std::pair<int, std::vector<Extent>>> live;
  int next_owner = 1;
  size_t refused = 0;
  size_t split = 0;
  for (int step = 0; step < 4000; ++step) {
    if (random() % 5 < 3) {
      const uint64_t bytes = random() % 4 == 0 ? 1 + random() % (200 * 1024) : 1 + random() % (7 * kMiB);
      const uint64_t before = allocator.live_bytes();
      auto extents = allocator.Allocate(bytes);
      if (!extents) {
        ++refused;
        ASSERT_EQ(allocator.live_bytes(), before);
      } else {
        ASSERT_EQ(Total(*extents), RoundUp(bytes, kExtentUnit));
        for (size_t i = 0; i + 1 < extents->size(); ++i) ASSERT_GE((*extents)[i].length, kMinExtentBytes);
        split += extents->size() > 1;
        units.Change(*extents, 0, next_owner);
        live.emplace_back(next_owner++, std::move(*extents));
      }
    } else if (!live.empty()) {
      const size_t victim = random() % live.size();
      units.Change(live[victim].second, live[victim].first, 0);
      allocator.Free(live[victim].second);
      live.erase(live.begin() + static_cast<ptrdiff_t>(victim));
    }
    if (HasFatalFailure()) return;
    uint64_t owned = 0;
    for (const auto& [owner, extents] : live) owned += Total(extents);
    ASSERT_EQ(allocator.live_bytes(), owned);
    ASSERT_EQ(allocator.live_bytes() + allocator.free_bytes(), kSegments * kSegmentBytes);
    if (step % 20 == 0) allocator.CheckInvariants();
  }
  EXPECT_GT(refused, 10u);
  EXPECT_GT(split, 10u);
  for (const auto& [owner, extents] : live) allocator.Free(extents);
  allocator.CheckInvariants();
  EXPECT_EQ(allocator.live_bytes(), 0u);
  const auto all = allocator.Allocate(kSegments * kSegmentBytes);
  ASSERT_TRUE(all.has_value()) << "free space did not become whole again";
  EXPECT_EQ(all->size(), kSegments);
}

TEST(ExtentAllocatorTest, TakesTheSmallestThatFits) {
  ExtentAllocator allocator;
  allocator.GrowSegment(0, 16 * kMiB);
  const auto a = allocator.Allocate(4 * kMiB);
  const auto b = allocator.Allocate(1 * kMiB);
  const auto c = allocator.Allocate(2 * kMiB);
  const auto d = allocator.Allocate(1 * kMiB);
  allocator.Free(*a);  // holes of 4 and 2 MiB, and 8 MiB at the end
  allocator.Free(*c);
  const auto fits = allocator.Allocate(2 * kMiB - 5);
  ASSERT_TRUE(fits);
  EXPECT_EQ(*fits, *c);
  allocator.CheckInvariants();
}

TEST(ExtentAllocatorTest, ASmallOneIsCutFromTheLargestWhereNoSmallOneHoldsIt) {
  ExtentAllocator allocator;
  allocator.GrowSegment(0, 16 * kMiB);
  const auto a = allocator.Allocate(2 * kMiB);
  const auto b = allocator.Allocate(1 * kMiB);
  allocator.Free(*a);  // holes of 2 MiB, and 13 MiB at the end
  EXPECT_EQ(allocator.Allocate(kMiB / 2), (std::vector<Extent>{{0, 3 * kMiB, kMiB / 2}}));
  EXPECT_EQ(allocator.Allocate(2 * kMiB), a) << "it stayed whole";
  allocator.CheckInvariants();
}

TEST(ExtentAllocatorTest, FragmentsServeAsSeveralExtents) {
  ExtentAllocator allocator;
  allocator.GrowSegment(0, 16 * kMiB);
  std::vector<std::vector<Extent>> pieces;
  for (int i = 0; i < 16; ++i) pieces.push_back(allocator.Allocate(kMiB).value());
  EXPECT_FALSE(allocator.Allocate(1));
  for (int i = 0; i < 16; i += 2) allocator.Free(pieces[i]);
  const auto scattered = allocator.Allocate(7 * kMiB + 4096);
  ASSERT_TRUE(scattered);
  EXPECT_EQ(scattered->size(), 8u);
  EXPECT_EQ(scattered->back().length, 4096u);
  EXPECT_FALSE(allocator.Allocate(kMiB)) << "what is left is smaller than an extent and the request";
  EXPECT_TRUE(allocator.Allocate(kMiB - 4096));
  allocator.CheckInvariants();
}

TEST(ExtentAllocatorTest, ReserveRefusesWhatIsNotWhollyFree) {
  ExtentAllocator allocator;
  allocator.GrowSegment(0, 4 * kMiB);
  const std::vector<Extent> first = {{0, kMiB, kMiB}, {0, 3 * kMiB, 4096}};
  ASSERT_TRUE(allocator.Reserve(first));
  EXPECT_FALSE(allocator.Reserve(first)) << "claimed already";
  const std::vector<std::vector<Extent>> wrong = {
      {{0, 0, 4096}, {0, kMiB + 4096, 4096}},  // the second overlaps
      {{0, 0, 4096}, {0, 0, 4096}},            // itself twice
      {{0, 4 * kMiB - 4096, 8192}},            // beyond the end
      {{0, 4 * kMiB, 4096}},                   // behind the end
      {{1, 0, 4096}},                          // no such segment
      {{0, 100, 4096}},
      {{0, 0, 100}},
      {{0, 0, 0}},                   // not units
      {{0, ~uint64_t{4095}, 8192}},  // wraps around
  };
  for (const auto& extents : wrong) {
    EXPECT_FALSE(allocator.Reserve(extents)) << extents.back().offset << "+" << extents.back().length;
    allocator.CheckInvariants();
    EXPECT_EQ(allocator.live_bytes(), kMiB + 4096) << "a refusal took something";
  }
  allocator.Free(first);
  EXPECT_TRUE(allocator.Allocate(4 * kMiB));
}

TEST(ExtentAllocatorTest, AGrownSegmentIsOneFreeSpace) {
  ExtentAllocator allocator;
  EXPECT_FALSE(allocator.Allocate(4096)) << "nothing is there";
  allocator.GrowSegment(2, 2 * kMiB);
  allocator.GrowSegment(2, 5 * kMiB);
  const auto all = allocator.Allocate(5 * kMiB);
  ASSERT_TRUE(all);
  EXPECT_EQ(*all, (std::vector<Extent>{{2, 0, 5 * kMiB}}));
  allocator.CheckInvariants();
}

TEST(ExtentAllocatorTest, WhatIsQuarantinedIsNeverGivenAgain) {
  constexpr uint64_t kUnit = kExtentUnit;
  ExtentAllocator allocator;
  allocator.GrowSegment(0, 8 * kMiB);
  const std::vector<Extent> object = {{0, 0, 2 * kMiB}, {0, 4 * kMiB, kMiB}};
  const std::vector<Extent> neighbour = {{0, 5 * kMiB, kMiB}};
  ASSERT_TRUE(allocator.Reserve(object));
  ASSERT_TRUE(allocator.Reserve(neighbour));
  const std::vector<Extent> bad = {
      {0, 2 * kMiB - kUnit, 3 * kMiB},       // the end of the first extent to most of the second
      {0, 2 * kMiB - 3 * kUnit, 2 * kUnit},  // in front of it
      {0, 2 * kMiB - 2 * kUnit, kUnit},      // once more
      {0, 5 * kMiB - kUnit, kMiB},           // the last unit, and a neighbour that is not freed
      {1, 0, kMiB},                          // elsewhere
  };
  const std::vector<Extent> expected = {{0, 2 * kMiB - 3 * kUnit, 2 * kUnit},
                                        {0, 2 * kMiB - kUnit, kUnit},
                                        {0, 4 * kMiB, kMiB - kUnit},
                                        {0, 5 * kMiB - kUnit, kUnit}};
  EXPECT_EQ(allocator.FreeExcept(object, bad), expected);
  allocator.CheckInvariants();
  EXPECT_EQ(allocator.quarantined_bytes(), kMiB + 3 * kUnit);
  EXPECT_EQ(allocator.live_bytes(), kMiB);
  EXPECT_EQ(allocator.total_bytes(),
            allocator.live_bytes() + allocator.free_bytes() + allocator.quarantined_bytes());
  for (const Extent& extent : expected) EXPECT_FALSE(allocator.Reserve({{extent}}));
  while (const auto extents = allocator.Allocate(kUnit)) {
    for (const Extent& quarantined : expected) {
      ASSERT_FALSE(quarantined.offset <= (*extents)[0].offset &&
                   (*extents)[0].offset < quarantined.offset + quarantined.length);
    }
  }
  EXPECT_EQ(allocator.free_bytes(), 0u);
  allocator.Free(neighbour);
  allocator.CheckInvariants();
}

TEST(ExtentAllocatorTest, AQuarantineOfEarlierLivesHoldsForSegmentsThatGrow) {
  constexpr uint64_t kUnit = kExtentUnit;
  ExtentAllocator allocator;
  const std::vector<Extent> known = {{0, kMiB, kUnit},
                                     {0, kMiB + kUnit - 1, 2},   // widened, and one with the first
                                     {0, 3 * kMiB, 2 * kMiB},    // beyond the first size
                                     {7, 0, kUnit},              // of a segment that is not made
                                     {4'000'000'000, 0, kUnit},  // nor ever will be
                                     {0, 0, 0},                  // nothing
                                     {0, kUnit, ~uint64_t{0}},   // wraps around
                                     {0, ~uint64_t{0} - 100, kUnit}};
  allocator.AddQuarantine(known);
  EXPECT_EQ(allocator.quarantined_bytes(), 0u);
  allocator.GrowSegment(0, 4 * kMiB);
  allocator.CheckInvariants();
  EXPECT_EQ(allocator.quarantined_bytes(), kMiB + 2 * kUnit);
  EXPECT_FALSE(allocator.Reserve({{{0, kMiB - kUnit, 2 * kUnit}}}));
  EXPECT_TRUE(allocator.Reserve({{{0, kMiB - kUnit, kUnit}}}));
  EXPECT_TRUE(allocator.Reserve({{{0, kMiB + 2 * kUnit, kUnit}}}));
  allocator.GrowSegment(0, 6 * kMiB);
  allocator.CheckInvariants();
  EXPECT_EQ(allocator.quarantined_bytes(), 2 * kMiB + 2 * kUnit);
  allocator.GrowSegment(7, kMiB);
  allocator.CheckInvariants();
  EXPECT_EQ(allocator.quarantined_bytes(), 2 * kMiB + 3 * kUnit);
  EXPECT_EQ(allocator.free_bytes(), 7 * kMiB - allocator.quarantined_bytes() - 2 * kUnit);
}

TEST(ExtentAllocatorDeathTest, FreeingTwiceEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ExtentAllocator allocator;
  allocator.GrowSegment(0, kMiB);
  const auto extents = allocator.Allocate(8192);
  allocator.Free(*extents);
  EXPECT_DEATH(allocator.Free(*extents), "freed twice");
}

}  // namespace
}  // namespace terrace
