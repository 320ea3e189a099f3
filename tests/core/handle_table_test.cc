// HandleTable beside a std::map, also with keys that crowd one place; and that it neither forgets what stands
// behind an erased slot nor grows where entries come and go.
#include "lib/core/handle_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "tests/core/index_fixture.h"

namespace terrace {
namespace {

class HandleTableTest : public testing::Test {
 protected:
  IndexEntry& Make(const ChunkKey& key) {
    IndexEntry& entry = slabs_.New(0);
    entry.key = key;
    table_.Insert(entry);
    return entry;
  }
  void Drop(IndexEntry& entry) {
    table_.Erase(entry);
    slabs_.slab(0).Free(EntrySlabs::SlotOf(entry.handle));
  }

  EntrySlabs slabs_;
  HandleTableMemory memory_;
  HandleTable table_{slabs_.slab(0), memory_, 0x9e3779b97f4a7c15ull};
};

// All begin with the same eight bytes.
ChunkKey CrowdedKey(uint64_t n) {
  ChunkKey key = KeyNumber(n);
  std::fill(key.bytes.begin(), key.bytes.begin() + 8, std::byte{77});
  return key;
}

TEST_F(HandleTableTest, KnowsWhatAMapKnows) {
  for (ChunkKey (*key_of)(uint64_t) : {&KeyNumber, &CrowdedKey}) {
    const uint64_t num_keys = key_of == &KeyNumber ? 5000 / kScale : 300;
    constexpr uint64_t kSeed = 11;
    SCOPED_TRACE(kSeed);
    std::mt19937_64 random(kSeed);
    std::map<uint64_t, IndexEntry*> known;
    for (int step = 0; step < 200000 / static_cast<int>(kScale); ++step) {
      const uint64_t n = random() % num_keys;
      const ChunkKey key = key_of(n);
      table_.Prefetch(key);
      const auto it = known.find(n);
      ASSERT_EQ(table_.Find(key), it == known.end() ? nullptr : it->second) << step;
      // Tides, so that it fills and empties.
      const bool is_flood = step / 20000 % 2 == 0;
      if (it == known.end() && random() % 4 < (is_flood ? 4 : 1)) {
        known[n] = &Make(key);
      } else if (it != known.end() && random() % 4 < (is_flood ? 1 : 4)) {
        Drop(*it->second);
        known.erase(it);
      }
    }
    for (const auto& [n, entry] : known) {
      EXPECT_EQ(table_.Find(key_of(n)), entry);
      Drop(*entry);
      EXPECT_EQ(table_.Find(key_of(n)), nullptr);
    }
  }
}

TEST_F(HandleTableTest, GrowsWithItsEntriesAndNotWithTheirTurnover) {
  const uint64_t num_entries = 40000;  // 0.61 of 65,536
  std::vector<IndexEntry*> entries;
  for (uint64_t n = 0; n < num_entries; ++n) entries.push_back(&Make(KeyNumber(n)));
  EXPECT_EQ(table_.size_bytes(), 65536 * sizeof(uint32_t));
  std::mt19937_64 random(12);
  for (uint64_t n = num_entries; n < 10 * num_entries; ++n) {
    IndexEntry*& entry = entries[random() % entries.size()];
    Drop(*entry);
    entry = &Make(KeyNumber(n));
  }
  EXPECT_EQ(table_.size_bytes(), 65536 * sizeof(uint32_t));
  for (IndexEntry* entry : entries) ASSERT_EQ(table_.Find(entry->key), entry);
}

TEST(HandleTableMemoryTest, TablesOfAllSizesAreApartAndZero) {
  HandleTableMemory memory;
  std::vector<std::pair<uint32_t*, uint64_t>> tables;
  std::mt19937_64 random(13);
  uint32_t number = 0;
  for (int step = 0; step < 400; ++step) {
    if (tables.size() < 40 && random() % 3 != 0) {
      const uint64_t num_slots = uint64_t{1} << (12 + random() % 9);  // 16 KiB to 4 MiB
      uint32_t* slots = memory.Take(num_slots);
      ASSERT_TRUE(std::all_of(slots, slots + num_slots, [](uint32_t slot) { return slot == 0; })) << step;
      std::fill_n(slots, num_slots, ++number);
      tables.emplace_back(slots, num_slots);
    } else if (!tables.empty()) {
      std::swap(tables[random() % tables.size()], tables.back());
      const auto [slots, num_slots] = tables.back();
      tables.pop_back();
      ASSERT_TRUE(std::all_of(slots, slots + num_slots, [&](uint32_t slot) { return slot == slots[0]; }))
          << step;
      memory.GiveBack(slots, num_slots);
    }
  }
  for (const auto& [slots, num_slots] : tables) memory.GiveBack(slots, num_slots);
}

TEST_F(HandleTableTest, AnErasedEntryIsNotFoundThoughItsKeyIsStillThere) {
  IndexEntry& entry = Make(KeyNumber(1));
  table_.Erase(entry);
  EXPECT_EQ(table_.Find(KeyNumber(1)), nullptr);
  table_.Insert(entry);
  EXPECT_EQ(table_.Find(KeyNumber(1)), &entry);
}

}  // namespace
}  // namespace terrace
