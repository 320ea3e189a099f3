#include "backends/remote/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "backends/remote/router.h"

namespace terrace::remote {
namespace {

ChunkKey RandomKey(std::mt19937_64& random) {
  ChunkKey key;
  for (std::byte& byte : key.bytes) byte = static_cast<std::byte>(random());
  return key;
}

std::vector<uint64_t> Words(int servers) {
  std::vector<uint64_t> words;
  for (int i = 0; i < servers; ++i) words.push_back(ServerWord("10.0.0." + std::to_string(i + 1) + ":7000"));
  return words;
}

TEST(PlacementTest, WordsAreFrozen) {
  EXPECT_EQ(Mix64(0), 0xe220a8397b1dcdafull);  // SplitMix64's first output for seed 0
  // First 8 bytes of SHA-256("abc") are ba7816bf8f01cfea.
  EXPECT_EQ(ServerWord("abc"), 0xeacf018fbf1678baull);
}

TEST(PlacementTest, LargestShareIsBelowOneAndAHalfOfTheMean) {
  std::mt19937_64 random(42);
  const std::vector<uint64_t> words = Words(4);
  std::vector<int> counts(4);
  constexpr int kKeys = 4000;
  for (int i = 0; i < kKeys; ++i) ++counts[OwnersOf(RandomKey(random), words, 1).at(0)];
  EXPECT_LE(*std::max_element(counts.begin(), counts.end()), 1.5 * kKeys / 4);
  EXPECT_GE(*std::min_element(counts.begin(), counts.end()), 0.5 * kKeys / 4);
}

TEST(PlacementTest, AServerThatGoesMovesOnlyItsOwnKeys) {
  std::mt19937_64 random(43);
  std::vector<uint64_t> words = Words(4);
  std::vector<uint64_t> fewer(words.begin(), words.begin() + 3);
  int moved = 0;
  for (int i = 0; i < 1000; ++i) {
    const ChunkKey key = RandomKey(random);
    const size_t before = OwnersOf(key, words, 1).at(0);
    const size_t after = OwnersOf(key, fewer, 1).at(0);
    if (before == 3) {
      ++moved;
    } else {
      EXPECT_EQ(before, after);
    }
  }
  EXPECT_GT(moved, 0);
}

TEST(PlacementTest, ReplicasAreDifferentServers) {
  std::mt19937_64 random(44);
  const std::vector<uint64_t> words = Words(4);
  const std::vector<size_t> owners = OwnersOf(RandomKey(random), words, 3);
  EXPECT_EQ(owners.size(), 3u);
  EXPECT_EQ(std::set<size_t>(owners.begin(), owners.end()).size(), 3u);
  EXPECT_EQ(OwnersOf(RandomKey(random), Words(2), 3).size(), 2u);
}

// Chunks [first, first + full) of 4 tokens, and `tail` tokens.
PrefixQuery Query(uint64_t first, size_t full, size_t tail) {
  PrefixQuery query;
  query.tokens_per_chunk = 4;
  query.first_token = first * 4;
  query.parts = {{0, 0}, {0, 1}};
  for (size_t i = 0; i < full; ++i) {
    ChunkKey key;
    key.bytes.fill(static_cast<std::byte>(first + i + 1));
    query.keys.push_back(key);
  }
  for (size_t i = 0; i < full * 4 + tail; ++i)
    query.content.tokens.push_back(static_cast<Token>(first * 4 + i));
  query.content.items.push_back({.position = full * 4 + tail - 1, .bytes = {std::byte{1}}});
  if (RunBegin(first) != first) query.run_key.bytes.fill(std::byte{0xaa});
  return query;
}

TEST(PlacementTest, QueriesAreCutAtRuns) {
  const PrefixQuery query = Query(30, 40, 3);  // chunks 30..69: 30-31, 32-63, 64-69 and the tail
  const std::vector<SubQuery> subs = SplitQuery(query);
  ASSERT_EQ(subs.size(), 3u);
  EXPECT_EQ(subs[0].run_key, query.run_key);
  EXPECT_EQ(subs[0].query.keys.size(), 2u);
  EXPECT_EQ(subs[1].run_key, query.keys[2]);
  EXPECT_EQ(subs[1].query.parent, query.keys[1]);
  EXPECT_EQ(subs[1].query.first_token, 32u * 4);
  EXPECT_EQ(subs[1].query.keys.size(), 32u);
  EXPECT_EQ(subs[2].query.keys.size(), 6u);
  EXPECT_EQ(subs[2].query.content.tokens.size(), 6u * 4 + 3);
  ASSERT_EQ(subs[2].query.content.items.size(), 1u);
  EXPECT_EQ(subs[2].query.content.items[0].position, 6u * 4 + 2) << "counted from the part's beginning";
  for (const SubQuery& sub : subs) EXPECT_FALSE(sub.ask_all);
}

TEST(PlacementTest, ATailThatBeginsARunIsAskedForEverywhere) {
  const std::vector<SubQuery> subs = SplitQuery(Query(0, 32, 2));
  ASSERT_EQ(subs.size(), 3u);
  EXPECT_EQ(subs[0].query.keys.size(), kFirstRunChunks);
  EXPECT_EQ(subs[1].query.keys.size(), kRunChunks - kFirstRunChunks);
  EXPECT_FALSE(subs[0].ask_all || subs[1].ask_all);
  EXPECT_TRUE(subs[2].ask_all);
  EXPECT_EQ(subs[2].query.content.tokens.size(), 2u);
  EXPECT_TRUE(SplitQuery(Query(0, 0, 3)).at(0).ask_all);
}

TEST(PlacementTest, AnswersAreJoinedUpToTheFirstGap) {
  const PrefixQuery query = Query(30, 40, 3);
  const std::vector<SubQuery> subs = SplitQuery(query);
  const auto answer = [](const SubQuery& sub, size_t tokens, size_t chunks) {
    PrefixMatch match;
    match.matched_tokens = tokens;
    for (size_t i = 0; i < chunks * 2; ++i)
      match.chunks.push_back(
          {.key = i / 2 < sub.query.keys.size() ? sub.query.keys[i / 2] : ChunkKey{}, .present = true});
    return match;
  };
  PrefixMatch joined;
  // One chunk too many in the first run's answer must not shift those that follow.
  EXPECT_TRUE(JoinMatch(subs[0], answer(subs[0], 8, 3), joined));
  EXPECT_EQ(joined.chunks.size(), 4u);
  EXPECT_FALSE(JoinMatch(subs[1], answer(subs[1], 5, 2), joined)) << "a gap";
  EXPECT_EQ(joined.matched_tokens, 13u);
  EXPECT_EQ(joined.chunks.size(), 8u);
  EXPECT_EQ(joined.chunks[4].key, query.keys[2]);
  PrefixMatch failed;
  failed.status = UnavailableError("away");
  failed.matched_tokens = 7;
  EXPECT_FALSE(JoinMatch(subs[2], failed, joined));
  EXPECT_EQ(joined.matched_tokens, 13u);
}

TEST(PlacementTest, LeaseTokensRoundTrip) {
  const std::vector<ServerLease> leases = {{1, "one"}, {UINT64_MAX, std::string("\0two", 4)}};
  const std::vector<ServerLease> back = DecodeLeases(EncodeLeases(leases));
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[1].server, UINT64_MAX);
  EXPECT_EQ(back[1].lease, leases[1].lease);
  EXPECT_TRUE(DecodeLeases("not ours").empty());
}

TEST(PlaceMapTest, IsBoundedAndForgetsTheOldest) {
  PlaceMap map(100);
  std::mt19937_64 random(45);
  const ChunkKey first = RandomKey(random);
  map.Set(first, 1);
  EXPECT_EQ(map.Find(first), 1u);
  for (int i = 0; i < 1000; ++i) map.Set(RandomKey(random), 2);
  EXPECT_LE(map.size(), 102u);
  EXPECT_FALSE(map.Find(first));
}

TEST(PutOrderTest, AnEraseWaitsForPutsOfItsObjectsAlone) {
  std::mt19937_64 random(46);
  const ObjectId a{RandomKey(random), {}};
  const ObjectId b{RandomKey(random), {}};
  PutOrder order;
  const uint64_t put_a = order.Begin({{a}});
  int ran = 0;
  order.After({{b}}, [&] { ++ran; });
  EXPECT_EQ(ran, 1);
  order.After({{a}}, [&] { ran += 10; });
  order.After({}, [&] { ran += 100; });
  const uint64_t later = order.Begin({{a}});
  EXPECT_EQ(ran, 1);
  order.End(put_a);
  EXPECT_EQ(ran, 111) << "a put that came later is not waited for";
  order.End(later);
}

}  // namespace
}  // namespace terrace::remote
