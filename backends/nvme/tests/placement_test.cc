// The table of objects: what it keeps, who may find it, and what an object costs.
#include "backends/nvme/placement.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <random>
#include <thread>
#include <vector>

namespace terrace {
namespace {

ObjectId IdOf(uint64_t seed) {
  std::mt19937_64 random(seed);
  ObjectId id;
  for (std::byte& byte : id.key.bytes) byte = static_cast<std::byte>(random());
  id.part = {static_cast<uint16_t>(seed % 7), static_cast<uint16_t>(seed % 5)};
  return id;
}

TEST(PlacementTest, KeepsWhatItWasMadeFrom) {
  constexpr uint64_t kLastOffset = (uint64_t{64} << 30) - 4096;
  for (size_t n = 1; n < 70; ++n) {
    std::vector<Extent> extents;
    uint64_t total = 0;
    for (size_t i = 0; i < n; ++i) {
      extents.push_back({static_cast<uint32_t>(999'999 - i), kLastOffset - i * 4096, (i + 2) * 4096});
      total += extents.back().length;
    }
    const PlacementRef placement = Placement::Make({IdOf(n), ~uint64_t{0} - n, 4096, 0xfffffff0}, extents);
    EXPECT_EQ(placement->id, IdOf(n));
    EXPECT_EQ(placement->generation, ~uint64_t{0} - n);
    EXPECT_EQ(placement->record_bytes, 0xfffffff0u);
    EXPECT_EQ(placement->header_bytes(), 4096u);
    EXPECT_EQ(placement->frame_bytes(), total - 4096);
    EXPECT_EQ(placement->readers, 0u);
    EXPECT_FALSE(placement->retired);
    EXPECT_EQ(std::vector<Extent>(placement->extents().begin(), placement->extents().end()), extents);
    EXPECT_EQ(placement->extents()[n - 1], extents[n - 1]);
  }
}

TEST(PlacementTest, WhatCannotBeHeldDoesNotFit) {
  const std::vector<Extent> extents = {{0, 4096, 8192}};
  const auto fits = [](uint32_t header_bytes, uint64_t record_bytes, std::vector<Extent> places) {
    return Placement::Fits({IdOf(1), 1, header_bytes, record_bytes}, places);
  };
  EXPECT_TRUE(fits(4096, 100, extents));
  EXPECT_TRUE(fits(1 << 20, 100, {{0, 0, (1 << 20) + 4096}})) << "the largest header there is";
  EXPECT_FALSE(fits(0, 100, extents));
  EXPECT_FALSE(fits(4095, 100, extents));
  EXPECT_FALSE(fits(8192, 100, extents)) << "a header beyond the frame";
  EXPECT_FALSE(fits(4 << 20, 100, {{0, 0, 64 << 20}}));
  EXPECT_FALSE(fits(4096, uint64_t{1} << 32, extents));
  EXPECT_FALSE(fits(4096, 100, {}));
  EXPECT_FALSE(fits(4096, 100, {{0, 4096, 4096}})) << "no frame";
  EXPECT_FALSE(fits(4096, 100, {{0, 100, 8192}}));
  EXPECT_FALSE(fits(4096, 100, {{0, 4096, 8193}}));
  EXPECT_FALSE(fits(4096, 100, {{0, 4096, 8192}, {0, 65536, 0}}));
  EXPECT_FALSE(fits(4096, 100, {{0, uint64_t{1} << 44, 8192}}));
  EXPECT_FALSE(fits(4096, 100, std::vector<Extent>(1 << 21, extents[0])));
}

TEST(PlacementTest, ASealedRunIsLongerByItsTags) {
  const auto facts = [](bool sealed) { return Placement::Facts{IdOf(1), 1, 4096, 100, sealed}; };
  constexpr uint64_t kPage = 4096;
  constexpr uint64_t kTagged = uint64_t{16} << 20;  // by one page of tags
  for (const uint64_t frame_bytes : {kPage, kTagged, kTagged + kPage, 2 * kTagged, 3 * kTagged - kPage}) {
    const uint64_t tag_pages = (frame_bytes + kTagged - 1) / kTagged;
    const std::vector<Extent> run = {{0, 0, 2 * kPage}, {1, 0, (tag_pages - 1) * kPage + frame_bytes}};
    ASSERT_TRUE(Placement::Fits(facts(true), run));
    EXPECT_EQ(Placement::Make(facts(true), run)->frame_bytes(), frame_bytes);
    EXPECT_EQ(Placement::Make(facts(false), run)->frame_bytes(), frame_bytes + tag_pages * kPage);
  }
  const std::vector<Extent> no_frame = {{0, 0, 2 * kPage}};
  EXPECT_FALSE(Placement::Fits(facts(true), no_frame));
  // A page of tags, and nothing that they are of.
  const std::vector<Extent> odd = {{0, 0, kPage + kTagged + 2 * kPage}};
  EXPECT_FALSE(Placement::Fits(facts(true), odd));
}

TEST(ObjectIndexTest, FindsById) {
  ObjectIndex index;
  const std::vector<Extent> extents = {{0, 0, 8192}};
  const PlacementRef first = Placement::Make({IdOf(1), 1, 4096, 1}, extents);
  index.insert(first);
  EXPECT_FALSE(index.insert(Placement::Make({IdOf(1), 2, 4096, 1}, extents)).second) << "one of an id";
  index.insert(Placement::Make({IdOf(2), 3, 4096, 1}, extents));
  ASSERT_TRUE(index.contains(IdOf(1)));
  EXPECT_EQ(*index.find(IdOf(1)), first);
  EXPECT_EQ((*index.find(IdOf(2)))->generation, 3u);
  ObjectId other_part = IdOf(1);
  ++other_part.part.shard;
  EXPECT_FALSE(index.contains(other_part));
  EXPECT_EQ(index.erase(IdOf(1)), 1u);
  EXPECT_FALSE(index.contains(IdOf(1)));
  EXPECT_EQ(first->generation, 1u) << "it lives as long as somebody refers to it";
}

// Under a sanitizer that watches the heap, or threads, this is what finds a count that is wrong.
TEST(PlacementTest, ReferencesMayEndOnAnotherThread) {
  const std::vector<Extent> extents = {{0, 0, 8192}, {1, 0, 4096}};
  for (uint64_t round = 0; round < 100; ++round) {
    PlacementRef mine = Placement::Make({IdOf(round), round, 4096, 1}, extents);
    PlacementRef copy = mine;
    std::thread other([theirs = std::move(copy)]() mutable {
      PlacementRef again = theirs;
      theirs = PlacementRef();
    });
    const PlacementRef moved = std::move(mine);
    mine = moved;
    other.join();
    EXPECT_EQ(moved->generation, round);
    EXPECT_EQ(mine, moved);
    EXPECT_FALSE(copy);
  }
}

TEST(ObjectIndexTest, AnObjectOfOneExtentCostsLittle) {
  ObjectIndex index;
  uint64_t heap = 0;
  size_t slots = 0;
  // To where the table has just grown: then it is emptiest.
  while (index.size() < 100'000 || index.capacity() == slots) {
    slots = index.capacity();
    const std::vector<Extent> extents = {{0, index.size() * 8192, 8192}};
    const PlacementRef placement = Placement::Make({IdOf(index.size()), 1, 4096, 1300}, extents);
    heap += malloc_usable_size(&*placement) + sizeof(size_t);
    index.insert(placement);
  }
  const uint64_t table = index.capacity() * (sizeof(PlacementRef) + 1);
  const uint64_t per_object = (heap + table) / index.size();
  EXPECT_GE(per_object, 72u) << "what it keeps";
  EXPECT_LE(per_object, 105u);
}

}  // namespace
}  // namespace terrace
