// ChunkIndex: placeholders, pins, the budget for content, size, and what its threads may do at once.
#include "lib/core/chunk_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "terrace/token_hasher.h"
#include "tests/core/index_fixture.h"

namespace terrace {
namespace {

using Neighbour = ChunkIndex::Neighbour;

TEST(ChunkIndexTest, AnEarlyItemDecidesBeforeALaterToken) {
  // In an order of whole token lists first, the query's neighbour would be the second child, with which it
  // shares nothing.
  ChunkIndex index;
  const auto add = [&](const ChunkContent& content) {
    Add(index, TokenHasher::KeyOf({}, content), {}, content);
  };
  add({{1, 2, 3}, {{0, Bytes("X")}}});
  add({{1, 2, 4}, {{0, Bytes("Y")}}});
  const ChunkContent query{{1, 2, 5}, {{0, Bytes("X")}}};
  const std::vector<Neighbour> found = index.Neighbours({}, Whole(query), 1);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].tokens, 2u);
}

TEST(ChunkIndexTest, AContentMayComeLater) {
  ChunkIndex index;
  const ChunkKey root = KeyNumber(0);
  const ChunkContent content{{1, 2, 3}, {}};
  const ChunkKey key = TokenHasher::KeyOf(root, content);
  const ChunkIndex::Facts facts = {.key = key, .parent = root, .first_token = 0};
  IndexEntry& entry = index.Add(facts, {});
  index.Change(entry, [](IndexEntry& e) { e.FindOrAdd({}).tiers = TierBit(0); });
  EXPECT_FALSE(entry.is_placeholder());
  EXPECT_EQ(index.size(), 1u);
  EXPECT_EQ(index.content_bytes(), 0u);
  const ChunkContent query{{1, 2, 4}, {}};
  EXPECT_TRUE(index.Neighbours(root, Whole(query), 4).empty());
  EXPECT_TRUE(index.StrictPrefixes(entry).empty());
  EXPECT_EQ(index.Children(*index.Find(root)), std::vector<IndexEntry*>{&entry});
  EXPECT_EQ(&index.Add(facts, {}), &entry) << "again, still without";
  EXPECT_EQ(&index.Add(facts, PackedContent::Make(content)), &entry);
  EXPECT_EQ(entry.num_tokens, 3u);
  EXPECT_EQ(index.size(), 1u);
  const std::vector<Neighbour> found = index.Neighbours(root, Whole(query), 4);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].tokens, 2u);
  index.Change(entry, [](IndexEntry& e) { e.FindOrAdd({}).tiers = 0; });
  EXPECT_TRUE(index.RemoveIfUnused(entry));
  EXPECT_EQ(index.Find(root), nullptr);
  EXPECT_EQ(index.content_bytes(), 0u);
}

TEST(ChunkIndexTest, FindsAmongAMillionChildrenOfOneRoot) {
  const size_t num_children = 1000000 / kScale;
  ChunkIndex index;
  const ChunkKey root = KeyNumber(UINT64_MAX - 1);
  // Children {n / 16, 7, 2 * (n % 16)}: sixteen share the first two tokens.
  const auto content_of = [](size_t n, Token shift) {
    return ChunkContent{{static_cast<Token>(n / 16), 7, static_cast<Token>(2 * (n % 16)) + shift}, {}};
  };
  for (size_t i = 0; i < num_children; ++i) {
    const size_t n = i * 7919 % num_children;
    Add(index, KeyNumber(n), root, content_of(n, 0));
  }
  EXPECT_EQ(index.size(), num_children);
  std::mt19937 random(4);
  for (int q = 0; q < 1000; ++q) {
    const size_t n = random() % num_children;
    const std::vector<Neighbour> same = index.Neighbours(root, Whole(content_of(n, 0)), 2);
    ASSERT_GE(same.size(), 2u);
    EXPECT_EQ(same[0].key, KeyNumber(n));
    EXPECT_EQ(same[0].tokens, 3u);
    const std::vector<Neighbour> next = index.Neighbours(root, Whole(content_of(n, 1)), 2);
    ASSERT_GE(next.size(), 2u);
    EXPECT_EQ(next[0].tokens, 2u);
    EXPECT_EQ(index.WholePrefixes(root, Whole(content_of(n, 1)), 5).size(), 0u);
    const ChunkContent longer{{static_cast<Token>(n / 16), 7, static_cast<Token>(2 * (n % 16)), 9}, {}};
    EXPECT_EQ(index.WholePrefixes(root, Whole(longer), 5).size(), 1u);
  }
  for (size_t n = 0; n < num_children; ++n) ASSERT_TRUE(index.RemoveIfUnused(*index.Find(KeyNumber(n))));
  EXPECT_EQ(index.size(), 0u);
  EXPECT_EQ(index.Find(root), nullptr);
}

TEST(ChunkIndexTest, AnUnknownParentIsAPlaceholderUntilItsLastChildGoes) {
  ChunkIndex index;
  const ChunkKey root = KeyNumber(1);
  const ChunkKey middle = KeyNumber(2);
  const ChunkKey leaf = KeyNumber(3);
  Add(index, leaf, middle, {{5}, {}});
  IndexEntry* placeholder = index.Find(middle);
  ASSERT_NE(placeholder, nullptr);
  EXPECT_TRUE(placeholder->is_placeholder());
  EXPECT_EQ(placeholder->parent, nullptr);
  EXPECT_EQ(index.size(), 1u);
  EXPECT_FALSE(index.Visit(middle, [](IndexEntry&) {}));
  EXPECT_TRUE(index.RemoveIfUnused(*placeholder)) << "there is no chunk";
  EXPECT_EQ(index.Find(middle), placeholder) << "its child needs it";

  EXPECT_EQ(&Add(index, middle, root, {{4}, {}}), placeholder);
  EXPECT_FALSE(placeholder->is_placeholder());
  EXPECT_EQ(placeholder->parent->key, root);
  EXPECT_EQ(index.size(), 2u);

  EXPECT_FALSE(index.RemoveIfUnused(*placeholder)) << "its child is found from it";
  EXPECT_EQ(index.Find(leaf)->parent, placeholder);
  EXPECT_EQ(index.Children(*index.Find(root)), std::vector<IndexEntry*>{placeholder});

  EXPECT_TRUE(index.RemoveIfUnused(*index.Find(leaf)));
  EXPECT_EQ(index.Find(middle), nullptr) << "nothing but the leaf kept it";
  EXPECT_EQ(index.Find(root), nullptr);
  EXPECT_EQ(index.size(), 0u);
}

TEST(ChunkIndexTest, AChunkThatIsHeldOrHasObjectsStaysWhenItsLastChildGoes) {
  ChunkIndex index;
  const ChunkKey held = KeyNumber(2);
  const ChunkKey stored = KeyNumber(3);
  IndexEntry& held_entry = Add(index, held, KeyNumber(1), {{4}, {}});
  IndexEntry& stored_entry = Add(index, stored, held, {{5}, {}});
  Add(index, KeyNumber(4), stored, {{6}, {}});
  EXPECT_TRUE(index.Visit(held, [](IndexEntry& entry) { ++entry.holds; }));
  index.Change(stored_entry, [](IndexEntry& entry) { entry.FindOrAdd({}).tiers = 1; });
  EXPECT_TRUE(index.RemoveIfUnused(*index.Find(KeyNumber(4))));
  ASSERT_EQ(index.Find(stored), &stored_entry);
  index.Change(stored_entry, [](IndexEntry& entry) { entry.Find({})->tiers = 0; });
  EXPECT_TRUE(index.RemoveIfUnused(stored_entry));
  ASSERT_EQ(index.Find(held), &held_entry);
  EXPECT_TRUE(index.Unhold(held_entry, 0, 0));
  EXPECT_TRUE(index.RemoveIfUnused(held_entry));
  EXPECT_EQ(index.size(), 0u);
}

TEST(ChunkIndexTest, APlaceholderThatIsHeldStays) {
  ChunkIndex index;
  Add(index, KeyNumber(2), KeyNumber(1), {{5}, {}});
  IndexEntry& root = *index.Find(KeyNumber(1));
  index.Change(root, [](IndexEntry& entry) { ++entry.holds; });
  EXPECT_TRUE(index.RemoveIfUnused(*index.Find(KeyNumber(2))));
  ASSERT_EQ(index.Find(KeyNumber(1)), &root);
  EXPECT_FALSE(index.RemoveIfUnused(root));
  EXPECT_TRUE(index.Unhold(root, 0, 0));
  EXPECT_TRUE(index.RemoveIfUnused(root));
  EXPECT_EQ(index.Find(KeyNumber(1)), nullptr);
}

TEST(ChunkIndexTest, HoldsAndObjectsKeepAnEntry) {
  ChunkIndex index;
  IndexEntry& entry = Add(index, KeyNumber(2), KeyNumber(1), {{5}, {}});
  index.Change(entry, [](IndexEntry& e) {
    e.FindOrAdd({1, 0}).tiers = TierBit(1);
    e.FindOrAdd({0, 1}).writing = TierBit(1);
    e.FindOrAdd({0, 0}).is_storing = true;
    EXPECT_EQ(&e.FindOrAdd({0, 1}), e.Find({0, 1}));
  });
  ASSERT_EQ(entry.objects.size(), 3u);
  for (size_t i = 0; i + 1 < 3; ++i) EXPECT_LT(entry.objects[i].part, entry.objects[i + 1].part);
  EXPECT_EQ(entry.Find({7, 7}), nullptr);
  const auto hold = [](IndexEntry& e) {
    e.holds += 1;
    e.host_pins += 1;
    e.lower_pins += 1;
  };
  EXPECT_TRUE(index.Visit(entry.key, hold));
  EXPECT_TRUE(index.Visit(entry.key, hold));
  EXPECT_FALSE(index.Unhold(entry, 1, 1)) << "the other hold, and objects";
  index.Change(entry, [](IndexEntry& e) {
    e.objects[0] = {.part = {0, 0}};
    e.objects[1] = {.part = {0, 1}};
  });
  EXPECT_FALSE(index.Unhold(entry, 1, 0)) << "an object in a tier";
  EXPECT_FALSE(index.RemoveIfUnused(entry));
  EXPECT_EQ(entry.lower_pins, 1u);
  EXPECT_EQ(entry.host_pins, 0u);
  EXPECT_DEATH(index.Unhold(entry, 0, 1), "given back twice");
  index.Change(entry, [](IndexEntry& e) { e.objects[2].tiers = 0; });
  EXPECT_TRUE(index.RemoveIfUnused(entry));
  EXPECT_EQ(index.Find(KeyNumber(2)), nullptr);
}

TEST(ChunkIndexTest, FactsAreThoseOfTheFirstAdd) {
  ChunkIndex index;
  IndexEntry& entry = Add(index, KeyNumber(2), KeyNumber(1), {{5, 6}, {}});
  EXPECT_EQ(entry.root_number, 3u);
  EXPECT_EQ(entry.first_token, 256u);
  EXPECT_EQ(entry.num_tokens, 2u);
  const PackedContent* content = entry.content.get();
  EXPECT_EQ(&Add(index, KeyNumber(2), KeyNumber(1), {{5, 6}, {}}), &entry);
  EXPECT_EQ(entry.content.get(), content);
  EXPECT_EQ(index.content_bytes(), content->size_bytes());
}

TEST(ChunkIndexTest, TheColdestLoseTheirContentAboveTheBudget) {
  Counter drops;
  const uint64_t each = PackedContent::Make(ChunkContent{{0, 0}, {}})->size_bytes();
  ChunkIndex index({.content_budget_bytes = 100 * each, .content_drops = &drops});
  const auto content_of = [](uint64_t n) { return ChunkContent{{static_cast<Token>(n), 1}, {}}; };
  const ChunkKey root = KeyNumber(0);
  for (uint64_t n = 1; n <= 100; ++n) Add(index, KeyNumber(n), root, content_of(n));
  EXPECT_EQ(drops.value(), 0u);
  // One more passes over all once, and takes one; those that are used before the hand comes again stay.
  Add(index, KeyNumber(101), root, content_of(101));
  EXPECT_EQ(drops.value(), 1u);
  std::set<uint64_t> hot;
  for (uint64_t n = 1; n <= 100 && hot.size() < 50; ++n) {
    bool has_content = false;
    index.Visit(KeyNumber(n), [&](IndexEntry& entry) { has_content = static_cast<bool>(entry.content); });
    if (has_content) hot.insert(n);
  }
  for (uint64_t n = 102; n <= 140; ++n) {
    EXPECT_TRUE(Add(index, KeyNumber(n), root, content_of(n)).content);
    EXPECT_LE(index.content_bytes(), 100 * each);
  }
  EXPECT_EQ(drops.value(), 40u);
  EXPECT_EQ(index.size(), 140u);
  for (const uint64_t n : hot) EXPECT_TRUE(index.Find(KeyNumber(n))->content) << n;

  uint64_t cold = 0;
  for (uint64_t n = 1; n <= 100; ++n) {
    if (!index.Find(KeyNumber(n))->content) cold = n;
  }
  ASSERT_NE(cold, 0u);
  EXPECT_TRUE(index.Neighbours(root, Whole(content_of(cold)), 1).empty());
  EXPECT_EQ(index.Children(*index.Find(root)).size(), 140u) << "it is known all the same";
  Add(index, KeyNumber(cold), root, content_of(cold));
  ASSERT_FALSE(index.Neighbours(root, Whole(content_of(cold)), 1).empty());
  EXPECT_EQ(index.Neighbours(root, Whole(content_of(cold)), 1)[0].key, KeyNumber(cold));
}

TEST(ChunkIndexTest, ABudgetBelowOneChunkLeavesTheLastOne) {
  ChunkIndex index({.content_budget_bytes = 1});
  for (uint64_t n = 1; n <= 20; ++n) {
    Add(index, KeyNumber(n), KeyNumber(0), {{static_cast<Token>(n)}, {}});
    EXPECT_TRUE(index.Find(KeyNumber(n))->content);
    EXPECT_EQ(index.content_bytes(), 20u);
  }
}

TEST(ChunkIndexTest, AnEntryIsSmall) {
  ChunkIndex index;
  const uint64_t empty = index.structure_bytes();
  const uint64_t num_entries = 100000;
  for (uint64_t n = 1; n <= num_entries; ++n) {
    Add(index, KeyNumber(n), KeyNumber(n / 4), {{static_cast<Token>(n)}, {}});
  }
  const uint64_t full = index.structure_bytes();
  EXPECT_LE((full - empty) / num_entries, 142u);
  for (uint64_t n = num_entries; n > 0; --n) {
    if (IndexEntry* entry = index.Find(KeyNumber(n)))
      index.RemoveIfUnused(*entry);  // else it went with a child
  }
  EXPECT_EQ(index.size(), 0u);
  for (uint64_t n = 1; n <= num_entries; ++n) {
    Add(index, KeyNumber(n), KeyNumber(n / 4), {{static_cast<Token>(n)}, {}});
  }
  EXPECT_EQ(index.structure_bytes(), full) << "what is freed is used again";
}

// Keys of a small family: a root, chunks under it, and chunks under those.
struct Family {
  static constexpr uint64_t kChunks = 64;
  static constexpr uint64_t kParents = 8;  // the first, of the others
  static ChunkKey Key(uint64_t n) { return KeyNumber(1000 + n); }
  static ChunkKey Parent(uint64_t n) { return n < kParents ? KeyNumber(1) : Key(n % kParents); }
  static ChunkContent Content(uint64_t n) { return {{static_cast<Token>(n % 3), static_cast<Token>(n)}, {}}; }
};

TEST(ChunkIndexTest, ReadersGoOnWhileTheOwnerChanges) {
  const uint64_t budget = 30 * PackedContent::Make(Family::Content(0))->size_bytes();
  Counter drops;
  ChunkIndex index({.content_budget_bytes = budget, .content_drops = &drops});
  std::mutex owner;
  std::atomic<bool> is_done{false};
  std::atomic<uint64_t> visits{0};
  std::atomic<uint64_t> matches{0};
  std::vector<std::thread> readers;
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    readers.emplace_back([&, seed] {
      std::mt19937 random(seed);
      while (!is_done) {
        const uint64_t n = random() % Family::kChunks;
        IndexEntry* held = nullptr;
        PackedContentRef content;
        const bool is_known = index.Visit(Family::Key(n), [&](IndexEntry& entry) {
          EXPECT_EQ(entry.key, Family::Key(n));
          EXPECT_EQ(entry.parent->key, Family::Parent(n));
          ++entry.holds;
          content = entry.content;
          held = &entry;
        });
        EXPECT_TRUE(!content || content->Equals(Family::Content(n)));
        if (is_known) {
          ++visits;
          if (index.Unhold(*held, 0, 0)) {
            std::lock_guard lock(owner);
            IndexEntry* entry = index.Find(Family::Key(n));
            if (entry != nullptr) index.RemoveIfUnused(*entry);
          }
        }
        const ChunkContent query = Family::Content(random() % Family::kChunks);
        for (const Neighbour& near : index.Neighbours(Family::Parent(n), Whole(query), 3)) {
          EXPECT_GE(near.tokens, 1u);
          ++matches;
        }
        index.WholePrefixes(Family::Parent(n), Whole(query), 2);
      }
    });
  }
  std::mt19937 random(9);
  for (size_t step = 0; step < 40000 / kScale || visits < 100 || matches < 100; ++step) {
    std::lock_guard lock(owner);
    const uint64_t n = random() % Family::kChunks;
    IndexEntry* entry = index.Find(Family::Key(n));
    if (entry == nullptr || entry->is_placeholder()) {
      entry = &index.Add({.key = Family::Key(n), .parent = Family::Parent(n)},
                         PackedContent::Make(Family::Content(n)));
      index.Change(*entry, [](IndexEntry& e) { e.FindOrAdd({}).tiers = TierBit(0); });
    } else if (random() % 2 == 0) {
      index.Change(*entry, [](IndexEntry& e) { e.FindOrAdd({}).tiers = 0; });
      index.RemoveIfUnused(*entry);
    } else {
      index.Add({.key = Family::Key(n), .parent = Family::Parent(n)},
                PackedContent::Make(Family::Content(n)));
    }
  }
  is_done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_GT(drops.value(), 0u);
  for (uint64_t n = Family::kChunks; n-- > 0;) {  // children first
    IndexEntry* entry = index.Find(Family::Key(n));
    if (entry == nullptr || entry->is_placeholder()) continue;
    EXPECT_EQ(entry->holds, 0u);
    entry->objects.clear();
    EXPECT_TRUE(index.RemoveIfUnused(*entry));
  }
  EXPECT_EQ(index.size(), 0u);
  EXPECT_EQ(index.content_bytes(), 0u);
  for (uint64_t n = 0; n < Family::kChunks; ++n) EXPECT_EQ(index.Find(Family::Parent(n)), nullptr);
}

TEST(ChunkIndexTest, DifferentKeysAreAddedAndRemovedAtOnce) {
  // Each thread has chunks of its own, under placeholders that all share and that come and go with them; the
  // sweep takes content of anyone's.
  const uint64_t budget = 20 * PackedContent::Make(Family::Content(0))->size_bytes();
  ChunkIndex index({.content_budget_bytes = budget});
  constexpr uint64_t kThreads = 3;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      std::map<uint64_t, IndexEntry*> mine;
      const auto remove = [&](uint64_t n) {
        EXPECT_TRUE(index.RemoveIfUnused(*mine.at(n)));
        mine.erase(n);
        EXPECT_FALSE(index.Visit(Family::Key(n), [](IndexEntry&) {}));
      };
      for (size_t step = 0; step < 30000 / kScale; ++step) {
        constexpr uint64_t kOwn = (Family::kChunks - Family::kParents) / kThreads;
        const uint64_t n = Family::kParents + random() % kOwn * kThreads + t;
        if (mine.contains(n) && random() % 2 == 0) {
          remove(n);
        } else {
          mine[n] = &index.Add({.key = Family::Key(n), .parent = Family::Parent(n)},
                               PackedContent::Make(Family::Content(n)));
          EXPECT_TRUE(index.Visit(Family::Key(n), [](IndexEntry&) {}));
        }
      }
      while (!mine.empty()) remove(mine.begin()->first);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(index.size(), 0u);
  EXPECT_EQ(index.content_bytes(), 0u);
  for (uint64_t n = 0; n < Family::kChunks; ++n) {
    EXPECT_EQ(index.Find(Family::Key(n)), nullptr);
    EXPECT_EQ(index.Find(Family::Parent(n)), nullptr);
  }
}

}  // namespace
}  // namespace terrace
