// ChunkIndex against a plain reference: random additions, removals and losses of content.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "lib/core/chunk_index.h"
#include "terrace/token_hasher.h"
#include "tests/core/index_fixture.h"

namespace terrace {
namespace {

using Neighbour = ChunkIndex::Neighbour;

ChunkContent RandomContent(std::mt19937& random, size_t max_tokens) {
  static constexpr std::string_view kItems[] = {"x", "xa", "y", "xabcde", "xabcdf"};
  ChunkContent content;
  content.tokens.resize(1 + random() % max_tokens);
  for (Token& token : content.tokens) token = random() % 2;
  for (uint64_t p = 0; p < content.tokens.size(); ++p) {
    if (random() % 5 == 0) content.items.push_back({p, Bytes(kItems[random() % 5])});
  }
  return content;
}

// The index, and beside it what it should know.
class Model {
 public:
  Model(uint32_t seed, uint64_t budget)
      : random_(seed), index_({.content_budget_bytes = budget, .content_drops = &drops_}) {
    for (uint64_t n = 0; n < 2; ++n) parents_.push_back(KeyNumber(n));
  }

  void Step() {
    if (random_() % 3 != 0 || chunks_.empty()) {
      AddOne();
    } else {
      ChangeOne();
    }
  }

  void CheckAll() {
    EXPECT_EQ(index_.size(), chunks_.size());
    std::set<ChunkKey> seen;
    index_.ForEach([&](IndexEntry& entry) { seen.insert(entry.key); });
    EXPECT_EQ(seen.size(), chunks_.size());
    uint64_t bytes = 0;
    for (const auto& [key, chunk] : chunks_) {
      EXPECT_TRUE(seen.contains(key));
      const IndexEntry* entry = index_.Find(key);
      ASSERT_NE(entry, nullptr);
      EXPECT_EQ(entry->parent->key, chunk.parent);
      EXPECT_EQ(entry->num_tokens, chunk.content.tokens.size());
      if (entry->content) bytes += entry->content->size_bytes();
    }
    EXPECT_EQ(index_.content_bytes(), bytes);
    for (const ChunkKey& parent : parents_) CheckChildren(parent);
  }

  uint64_t drops() const { return drops_.value(); }
  uint64_t given_back() const { return given_back_; }
  uint64_t matched() const { return matched_; }
  ChunkIndex& index() { return index_; }

  void RemoveAll() {
    while (!chunks_.empty()) Remove(std::next(chunks_.begin(), random_() % chunks_.size())->first);
    for (const ChunkKey& parent : parents_) EXPECT_EQ(index_.Find(parent), nullptr);
    EXPECT_EQ(index_.content_bytes(), 0u);
  }

 private:
  struct Chunk {
    ChunkKey parent;
    ChunkContent content;
  };

  void AddOne() {
    const ChunkKey parent = parents_[random_() % parents_.size()];
    const ChunkContent content = RandomContent(random_, 7);
    const ChunkKey key = TokenHasher::KeyOf(parent, content);
    const IndexEntry* known = index_.Find(key);
    given_back_ += known != nullptr && !known->is_placeholder() && !known->content;
    const IndexEntry& entry = Add(index_, key, parent, content);
    EXPECT_TRUE(known == nullptr || known == &entry);
    EXPECT_TRUE(entry.content && entry.content->Equals(content));
    chunks_[key] = {parent, content};
    if (parents_.size() < 6 && random_() % 4 == 0) parents_.push_back(key);
  }

  void ChangeOne() {
    const ChunkKey key = std::next(chunks_.begin(), random_() % chunks_.size())->first;
    IndexEntry& entry = *index_.Find(key);
    if (random_() % 3 != 0) return Remove(key);
    EXPECT_TRUE(index_.Visit(key, [](IndexEntry& e) {
      ++e.holds;
      ++e.host_pins;
    }));
    EXPECT_FALSE(index_.RemoveIfUnused(entry));
    EXPECT_TRUE(index_.Unhold(entry, 1, 0));
  }

  void Remove(const ChunkKey key) {  // a copy: it may be that of the chunk which goes
    const bool has_children = HasChildren(key);
    EXPECT_EQ(index_.RemoveIfUnused(*index_.Find(key)), !has_children);
    if (has_children) {
      EXPECT_TRUE(index_.Visit(key, [](IndexEntry&) {})) << "what hangs below must be found from it";
      return;
    }
    // None of the chunks has an object: the parent goes where this was its last child, and so on.
    for (ChunkKey at = key; chunks_.contains(at) && !HasChildren(at);) {
      const ChunkKey parent = chunks_[at].parent;
      chunks_.erase(at);
      EXPECT_FALSE(index_.Visit(at, [](IndexEntry&) { ADD_FAILURE(); }));
      EXPECT_EQ(index_.Find(at), nullptr);
      at = parent;
    }
  }

  bool HasChildren(const ChunkKey& key) const {
    return std::any_of(chunks_.begin(), chunks_.end(),
                       [&](const auto& chunk) { return chunk.second.parent == key; });
  }

  void CheckChildren(const ChunkKey& parent) {
    std::vector<std::pair<ChunkKey, ChunkContent>> with;
    std::vector<ChunkKey> without;
    for (const auto& [key, chunk] : chunks_) {
      if (chunk.parent != parent) continue;
      if (index_.Find(key)->content) {
        with.emplace_back(key, chunk.content);
      } else {
        without.push_back(key);
      }
    }
    std::sort(with.begin(), with.end(),
              [](const auto& a, const auto& b) { return CompareContent(a.second, b.second) < 0; });
    std::vector<ChunkKey> order;
    for (const auto& [key, content] : with) order.push_back(key);
    order.insert(order.end(), without.begin(), without.end());

    IndexEntry* entry = index_.Find(parent);
    ASSERT_EQ(entry != nullptr && entry->has_children(), !order.empty());
    if (entry == nullptr) return;
    std::vector<ChunkKey> found;
    for (const IndexEntry* child : index_.Children(*entry)) found.push_back(child->key);
    EXPECT_EQ(found, order);
    for (const ChunkKey& key : order) {
      EXPECT_TRUE(index_.AnyChild(*entry, [&](const IndexEntry& child) { return child.key == key; }));
      CheckStrictPrefixes(key, with);
    }
    EXPECT_FALSE(index_.AnyChild(*entry, [](const IndexEntry&) { return false; }));
    for (int q = 0; q < 6; ++q) CheckQuery(parent, with);
  }

  void CheckStrictPrefixes(const ChunkKey& key, const std::vector<std::pair<ChunkKey, ChunkContent>>& with) {
    const IndexEntry& entry = *index_.Find(key);
    std::set<ChunkKey> expected;
    for (const auto& [other, content] : with) {
      const ChunkContent& own = chunks_.at(key).content;
      if (entry.content && content.tokens.size() < own.tokens.size() &&
          CommonPrefixTokens(content, own) == content.tokens.size()) {
        expected.insert(other);
      }
    }
    std::set<ChunkKey> found;
    for (const IndexEntry* prefix : index_.StrictPrefixes(entry)) found.insert(prefix->key);
    EXPECT_EQ(found, expected);
  }

  void CheckQuery(const ChunkKey& parent, const std::vector<std::pair<ChunkKey, ChunkContent>>& with) {
    const ChunkContent query = RandomContent(random_, 7);
    const size_t limit = 1 + random_() % 4;
    std::vector<std::pair<uint32_t, ChunkKey>> near;
    std::vector<std::pair<uint32_t, ChunkKey>> whole;
    uint32_t best = 0;
    const auto from = std::partition_point(
        with.begin(), with.end(), [&](const auto& child) { return CompareContent(child.second, query) < 0; });
    for (auto it = with.begin(); it != with.end(); ++it) {
      const uint32_t tokens = CommonPrefixTokens(it->second, query);
      const size_t distance = static_cast<size_t>(it < from ? from - it : it - from + 1);
      if (tokens > 0 && distance <= limit) near.emplace_back(tokens, it->first);
      if (tokens == it->second.tokens.size()) whole.emplace_back(tokens, it->first);
      best = std::max(best, tokens);
    }
    matched_ += best > 0;
    const auto longest_first = [](const auto& a, const auto& b) { return a.first > b.first; };
    std::sort(whole.begin(), whole.end(), longest_first);
    whole.resize(std::min(whole.size(), limit));

    const std::vector<Neighbour> found = index_.Neighbours(parent, Whole(query), limit);
    ASSERT_TRUE(std::is_sorted(found.begin(), found.end(),
                               [](const Neighbour& a, const Neighbour& b) { return a.tokens > b.tokens; }));
    EXPECT_EQ(found.empty() ? 0 : found[0].tokens, best);
    EXPECT_EQ(SortedPairs(found), (std::sort(near.begin(), near.end()), near));
    const std::vector<Neighbour> prefixes = index_.WholePrefixes(parent, Whole(query), limit);
    ASSERT_EQ(prefixes.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(prefixes[i].tokens, whole[i].first);
      EXPECT_EQ(prefixes[i].key, whole[i].second);
    }
  }

  static std::vector<std::pair<uint32_t, ChunkKey>> SortedPairs(const std::vector<Neighbour>& found) {
    std::vector<std::pair<uint32_t, ChunkKey>> pairs;
    for (const Neighbour& neighbour : found) pairs.emplace_back(neighbour.tokens, neighbour.key);
    std::sort(pairs.begin(), pairs.end());
    return pairs;
  }

  std::mt19937 random_;
  Counter drops_;
  ChunkIndex index_;
  std::map<ChunkKey, Chunk> chunks_;
  std::vector<ChunkKey> parents_;
  uint64_t given_back_ = 0;
  uint64_t matched_ = 0;
};

TEST(ChunkIndexTest, KnowsWhatAPlainReferenceKnows) {
  uint64_t matched = 0;
  for (uint32_t seed = 1; seed <= 40 / (kScale > 1 ? 8 : 1); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Model model(seed, UINT64_MAX);
    for (int step = 0; step < 300; ++step) {
      model.Step();
      if (step % 30 != 29) continue;
      ASSERT_NO_FATAL_FAILURE(model.CheckAll());
    }
    matched += model.matched();
    EXPECT_EQ(model.drops(), 0u);
    model.RemoveAll();
  }
  EXPECT_GT(matched, 100u);
}

TEST(ChunkIndexTest, KnowsTheSameWhereContentIsDropped) {
  uint64_t matched = 0;
  for (uint32_t seed = 1; seed <= 40 / (kScale > 1 ? 8 : 1); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Model model(seed, 1200);
    for (int step = 0; step < 300; ++step) {
      model.Step();
      EXPECT_LE(model.index().content_bytes(), 1200u);
      if (step % 30 != 29) continue;
      ASSERT_NO_FATAL_FAILURE(model.CheckAll());
    }
    EXPECT_GT(model.drops(), 0u);
    EXPECT_GT(model.given_back(), 0u);
    matched += model.matched();
    model.RemoveAll();
  }
  EXPECT_GT(matched, 100u);
}

}  // namespace
}  // namespace terrace
