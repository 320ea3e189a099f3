// Loads of what a remote store announced: its bytes are right, or they are a miss.
#include <gtest/gtest.h>

#include "tests/support/remote_fixture.h"

namespace terrace {
namespace {

std::vector<Token> Seeded(size_t num_chunks, Token seed) { return TestTokens(num_chunks * kTestChunk, seed); }
std::span<const Token> First(const std::vector<Token>& tokens, size_t n) {
  return std::span(tokens).first(n);
}

KvSpec CanonicalSpec(Cut cut = Cut::kRanged) {
  KvSpec spec = TestSpec(cut);
  spec.payload_form = PayloadForm::kCanonical;
  const PlaneSpec plane{.kind = PlaneKind::kK, .heads = 8, .head_dim = 64, .bytes_per_token = 1024};
  PlaneSpec other = plane;
  other.kind = PlaneKind::kV;
  for (int i = 0; i < 4; ++i) spec.layers.push_back({.group = 0, .planes = {plane, other}});
  return spec;
}

class RemoteLoadTest : public testing::TestWithParam<bool> {
 protected:
  KvSpec Spec() const { return GetParam() ? CanonicalSpec() : TestSpec(); }
};

TEST_P(RemoteLoadTest, LocalAndRemoteChunksInOneHandleAndPromotion) {
  RemoteFixture f;
  f.spec = Spec();
  const std::vector<Token> prompt = TestTokens(4 * kTestChunk + 5);
  f.Seed(prompt);
  f.StoreNow(First(prompt, 2 * kTestChunk));
  const Lease lease = f.Look(prompt);
  ASSERT_EQ(lease.matched_tokens(), prompt.size());
  EXPECT_EQ(lease.host_tokens(), 2 * kTestChunk);
  EXPECT_EQ(f.LocalTokens(prompt), 2 * kTestChunk);
  const LoadReport report = f.Load(lease);
  EXPECT_TRUE(report.status.ok()) << report.status.ToString();
  EXPECT_EQ(report.loaded_tokens, prompt.size());
  EXPECT_EQ(report.loaded_objects, 5u);
  const uint64_t full = *f.Sizes()({0, kTestChunk}, {});
  EXPECT_EQ(report.loaded_bytes, 4 * full + *f.Sizes()({0, 5}, {}));
  EXPECT_EQ(f.HostTokens(prompt), prompt.size()) << "promoted";
  const uint64_t matches = f.shelf->num_matches();
  EXPECT_EQ(f.Load(f.Look(prompt)).loaded_tokens, prompt.size());
  EXPECT_EQ(f.shelf->num_matches(), matches) << "all is here";
  EXPECT_EQ(f.shelf->gets, 3u);
}

TEST_P(RemoteLoadTest, AChunkSaysWhichTierItsBytesCameFrom) {
  RemoteFixture f;
  f.spec = Spec();
  const std::vector<Token> prompt = TestTokens(4 * kTestChunk);
  f.Seed(prompt);
  f.StoreNow(First(prompt, 2 * kTestChunk));
  for (const std::vector<size_t>& expected : {std::vector<size_t>{0, 0, 1, 1}, {0, 0, 0, 0}}) {
    const Lease lease = f.Look(prompt);
    ASSERT_EQ(lease.matched_tokens(), prompt.size());
    LoadHandle load = f.manager->Load(lease, {0, prompt.size()});
    std::vector<size_t> tiers;
    while (true) {
      Result<std::optional<LeasedChunk>> chunk = load.Next();
      ASSERT_TRUE(chunk.ok()) << chunk.status().ToString();
      if (!chunk->has_value()) break;
      tiers.push_back((*chunk)->tier());
    }
    EXPECT_EQ(tiers, expected);
  }
}

TEST_P(RemoteLoadTest, AMatchInsideAChunk) {
  RemoteFixture f;
  f.spec = Spec();
  const std::vector<Token> stored = TestTokens(2 * kTestChunk + 10);
  f.Seed(stored);
  std::vector<Token> prompt = stored;
  prompt[2 * kTestChunk + 4] += 1;
  prompt.resize(3 * kTestChunk, 4711);
  const Lease lease = f.Look(prompt);
  ASSERT_EQ(lease.matched_tokens(), 2 * kTestChunk + 4);
  LoadHandle load = f.manager->Load(lease, {2 * kTestChunk, lease.matched_tokens()});
  Result<std::optional<LeasedChunk>> chunk = load.Next();
  ASSERT_TRUE(chunk.ok() && chunk->has_value()) << load.report().status.ToString();
  EXPECT_TRUE(PayloadIsRight(**chunk));
  EXPECT_EQ((*chunk)->payload().size(), *f.Sizes()({0, 10}, {}));
  EXPECT_EQ((*chunk)->payload_tokens().begin, 2 * kTestChunk);
  EXPECT_EQ((*chunk)->payload_tokens().end, 2 * kTestChunk + 10) << "what the payload holds";
  EXPECT_EQ((*chunk)->matched_tokens().end, 2 * kTestChunk + 4);
}

TEST_P(RemoteLoadTest, WhatIsBetterThanTheLocalTail) {
  RemoteFixture f;
  f.spec = Spec();
  const std::vector<Token> prompt = Seeded(3, 1);
  f.Seed(prompt);
  f.StoreNow(First(prompt, kTestChunk + 4));  // a local tail of four tokens
  ASSERT_EQ(f.LocalTokens(prompt), kTestChunk + 4);
  const Lease lease = f.Look(prompt);
  EXPECT_EQ(lease.matched_tokens(), prompt.size());
  EXPECT_EQ(lease.num_objects(), 3u) << "instead of the tail";
  EXPECT_EQ(lease.host_tokens(), kTestChunk);
  EXPECT_EQ(f.Load(lease).loaded_tokens, prompt.size());
}

INSTANTIATE_TEST_SUITE_P(Forms, RemoteLoadTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& tested) {
                           return tested.param ? "Canonical" : "Opaque";
                         });

TEST(RemoteCutTest, WithoutCutsOnlyWholeChunksCount) {
  RemoteFixture f;
  f.spec = TestSpec(Cut::kNone);
  const std::vector<Token> stored = TestTokens(2 * kTestChunk + 10);
  f.Seed(stored);
  // The store offers a match inside the tail; a payload that cannot be cut is of no use.
  EXPECT_EQ(f.Look(First(stored, 2 * kTestChunk + 4)).matched_tokens(), 2 * kTestChunk);
  std::vector<Token> other = stored;
  other[2 * kTestChunk + 4] += 1;
  EXPECT_EQ(f.Look(other).matched_tokens(), 2 * kTestChunk);
  // The whole tail counts, as it does for local tiers.
  std::vector<Token> longer = stored;
  longer.resize(3 * kTestChunk, 4711);
  const Lease lease = f.Look(longer);
  EXPECT_EQ(lease.matched_tokens(), stored.size());
  EXPECT_EQ(f.Load(lease).loaded_tokens, stored.size());
}

TEST(RemoteGroupsTest, PartsOfAChunkInTheOrderAskedFor) {
  for (const bool reversed : {false, true}) {
    RemoteFixture f;
    f.spec = TestSpec(Cut::kWhole, {GroupSpec{}, GroupSpec{}});
    const std::vector<Token> prompt = Seeded(3, 1);
    f.Seed(prompt);
    const std::vector<ObjectPart> parts =
        reversed ? std::vector<ObjectPart>{{1, 0}, {0, 0}} : std::vector<ObjectPart>{{0, 0}, {1, 0}};
    const Lease lease = f.Look(prompt, {.parts = parts});
    EXPECT_EQ(lease.matched_tokens(), prompt.size());
    EXPECT_EQ(lease.num_objects(), 6u);
    LoadHandle load = f.manager->Load(lease, {0, prompt.size()});
    for (size_t i = 0; i < 6; ++i) {
      Result<std::optional<LeasedChunk>> chunk = load.Next();
      ASSERT_TRUE(chunk.ok() && chunk->has_value()) << load.report().status.ToString();
      EXPECT_EQ((*chunk)->id().part, parts[i % 2]);
      EXPECT_EQ((*chunk)->chunk_index(), i / 2);
      EXPECT_TRUE(PayloadIsRight(**chunk));
    }
    // One part of the second chunk is missing there: of a chunk all parts or none.
    f.shelf->Set([&](MatchShelf& s) { s.objects.erase({f.shelf->queries[0].keys[1], {1, 0}}); });
    f.Open();
    EXPECT_EQ(f.Look(prompt, {.parts = parts}).matched_tokens(), kTestChunk);
    EXPECT_EQ(f.Look(prompt, {.parts = {{0, 0}}}).matched_tokens(), prompt.size());
  }
}

// --- Lies. The store has three chunks and a tail of five tokens; what it says of the second is wrong.

constexpr uint64_t kStored = 3 * kTestChunk + 5;

struct Lie {
  const char* name;
  std::function<void(PrefixMatch&)> tell;
  uint64_t loaded;  // tokens that are right all the same
};

std::vector<Lie> Lies() {
  const auto length = [](uint64_t frame_bytes) {
    return [=](PrefixMatch& match) { match.chunks[1].frame_bytes = frame_bytes; };
  };
  return {
      {"a wrong key", [](PrefixMatch& m) { m.chunks[1].key.bytes[5] ^= std::byte{1}; }, kTestChunk},
      {"two keys exchanged", [](PrefixMatch& m) { std::swap(m.chunks[1].key, m.chunks[2].key); }, kTestChunk},
      {"absent within the match", [](PrefixMatch& m) { m.chunks[1].present = false; }, kTestChunk},
      {"too many tokens", [](PrefixMatch& m) { m.matched_tokens = UINT64_MAX; }, 3 * kTestChunk},
      {"a token too many", [](PrefixMatch& m) { ++m.matched_tokens; }, 3 * kTestChunk},
      {"no tokens", [](PrefixMatch& m) { m.matched_tokens = 0; }, 0},
      {"too few entries", [](PrefixMatch& m) { m.chunks.resize(1); }, kTestChunk},
      {"no entries", [](PrefixMatch& m) { m.chunks.clear(); }, 0},
      {"a tail that is a full chunk", [](PrefixMatch& m) { m.chunks[3].key = m.chunks[2].key; },
       3 * kTestChunk},
      {"length 0", length(0), kTestChunk},
      {"length 4095", length(4095), kTestChunk},
      {"length 4096", length(4096), kTestChunk},
      {"a page too long", [](PrefixMatch& m) { m.chunks[1].frame_bytes += 4096; }, kTestChunk},
      {"a page too short", [](PrefixMatch& m) { m.chunks[1].frame_bytes -= 4096; }, kTestChunk},
      {"the whole pool", length(8 << 20), kTestChunk},
      {"length 2^64 - 4096", length(UINT64_MAX - 4095), kTestChunk},
      {"length 2^63", length(uint64_t{1} << 63), kTestChunk},
      {"length 2^64 - 1", length(UINT64_MAX), kTestChunk},
  };
}

TEST(RemoteLiesTest, EachEndsAsAShorterMatchOrAMiss) {
  for (const Lie& lie : Lies()) {
    SCOPED_TRACE(lie.name);
    RemoteFixture f;
    f.Seed(TestTokens(kStored));
    std::vector<Token> prompt = TestTokens(kStored);
    prompt.resize(kStored + 6, 4711);
    f.shelf->lie = lie.tell;
    const Lease lease = f.Look(prompt);
    EXPECT_LE(lease.matched_tokens(), prompt.size());
    EXPECT_LT(lease.frame_bytes(), uint64_t{64} << 20);
    const LoadReport report = f.Load(lease);
    EXPECT_EQ(report.loaded_tokens, lie.loaded) << report.status.ToString();
    EXPECT_EQ(report.recompute_from, lie.loaded);
    EXPECT_EQ(f.HostTokens(prompt), lie.loaded) << "only what is right is promoted";
    f.shelf->lie = nullptr;
    EXPECT_EQ(f.Load(f.Look(prompt)).loaded_tokens, kStored) << "the truth is as good as ever";
  }
}

TEST(RemoteLiesTest, AnnouncedButNotThere) {
  for (const bool all_parts : {true, false}) {
    RemoteFixture f;
    f.spec = TestSpec(Cut::kWhole, {GroupSpec{}, GroupSpec{}});
    const std::vector<Token> prompt = Seeded(3, 1);
    f.Seed(prompt);
    const Lease lease = f.Look(prompt);
    ASSERT_EQ(lease.matched_tokens(), prompt.size());
    const ChunkKey second = f.shelf->queries.back().keys[1];
    f.shelf->Set([&](MatchShelf& s) {
      s.objects.erase({second, {1, 0}});
      if (all_parts) s.objects.erase({second, {0, 0}});
    });
    const LoadReport report = f.Load(lease);
    EXPECT_EQ(report.loaded_tokens, kTestChunk);
    EXPECT_EQ(report.recompute_from, kTestChunk);
    EXPECT_FALSE(report.status.ok());
  }
}

TEST(RemoteLiesTest, AnotherObjectsValidFrame) {
  struct Swap {
    const char* name;
    std::function<void(MatchShelf&, const ObjectId& second, const ObjectId& other)> swap;
  };
  const std::vector<Swap> swaps = {
      {"another prefix",
       [](MatchShelf& s, const ObjectId& a, const ObjectId& b) { s.objects[a] = s.objects[b]; }},
      {"another part",
       [](MatchShelf& s, const ObjectId& a, const ObjectId&) {
         s.objects[a] = s.objects[{a.key, {1, 0}}];
       }},
      {"a flipped bit",
       [](MatchShelf& s, const ObjectId& a, const ObjectId&) { s.objects[a].frame[50'000] ^= std::byte{4}; }},
      {"a flipped header bit",
       [](MatchShelf& s, const ObjectId& a, const ObjectId&) { s.objects[a].frame[70] ^= std::byte{4}; }},
  };
  for (const Swap& swap : swaps) {
    SCOPED_TRACE(swap.name);
    RemoteFixture f;
    f.spec = TestSpec(Cut::kWhole, {GroupSpec{}, GroupSpec{}});
    const std::vector<Token> prompt = Seeded(3, 1);
    f.Open();
    f.StoreNow(Seeded(2, 2));
    f.Seed(prompt);
    f.Look(Seeded(2, 2)).Release();
    const ChunkKey other = f.shelf->queries.back().keys[1];
    f.Look(prompt).Release();
    const ChunkKey second = f.shelf->queries.back().keys[1];
    f.shelf->Set([&](MatchShelf& s) { swap.swap(s, {second, {0, 0}}, {other, {0, 0}}); });
    const LoadReport report = f.Load(f.Look(prompt));
    EXPECT_EQ(report.loaded_tokens, kTestChunk) << report.status.ToString();
    EXPECT_EQ(f.HostTokens(prompt), kTestChunk);
  }
}

TEST(RemoteLiesTest, ATailOfAnotherPrefix) {
  RemoteFixture f;
  // Two prompts whose second chunks begin alike; the store names the other one's.
  std::vector<Token> prompt = TestTokens(kTestChunk + 8, 1);
  std::vector<Token> other = TestTokens(kTestChunk + 8, 1);
  other[0] += 1;
  f.Open();
  f.StoreNow(other);
  f.Seed(prompt);
  ChunkKey tail;
  f.shelf->lie = [&](PrefixMatch& match) { tail = match.chunks.back().key; };
  EXPECT_EQ(f.Look(other).matched_tokens(), other.size());
  f.shelf->lie = [&](PrefixMatch& match) { match.chunks.back().key = tail; };
  const Lease lease = f.Look(prompt);
  EXPECT_EQ(f.Load(lease).loaded_tokens, kTestChunk);
  EXPECT_EQ(f.HostTokens(prompt), kTestChunk);
}

TEST(RemoteLiesTest, ReadsThatAreCutOffByCloseAreMisses) {
  RemoteFixture f;
  const std::vector<Token> prompt = Seeded(2, 1);
  f.Seed(prompt);
  f.shelf->holding_gets = true;
  const Lease lease = f.Look(prompt);
  LoadHandle load = f.manager->Load(lease, {0, prompt.size()});
  ASSERT_TRUE(f.manager->Close().ok());
  Result<std::optional<LeasedChunk>> chunk = load.Next();
  ASSERT_TRUE(chunk.ok());
  EXPECT_FALSE(chunk->has_value());
  EXPECT_EQ(load.report().recompute_from, 0u);
}

}  // namespace
}  // namespace terrace
