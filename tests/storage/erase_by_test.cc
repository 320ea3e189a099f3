// Erase by what objects belong to: a prefix, a spec, a salt; on all tiers, in flight and after a restart.
#include <gtest/gtest.h>

#include <thread>

#include "terrace/token_hasher.h"
#include "tests/support/manager_fixture.h"

namespace terrace {
namespace {

std::vector<Token> Seeded(size_t num_chunks, Token seed) { return TestTokens(num_chunks * kTestChunk, seed); }
std::span<const Token> First(const std::vector<Token>& tokens, size_t n) {
  return std::span(tokens).first(n);
}

KvSpec ShardedSpec() {
  KvSpec spec = TestSpec(Cut::kWhole);
  for (uint32_t s = 0; s < 2; ++s)
    spec.shards.push_back({.tensor_rank = s, .tensor_size = 2, .layer_begin = 0, .layer_end = 4});
  for (int l = 0; l < 4; ++l) {
    spec.layers.push_back(
        {.group = 0,
         .planes = {{.kind = PlaneKind::kK, .heads = 8, .head_dim = 64, .bytes_per_token = 1024}}});
  }
  return spec;
}

struct EraseFixture : ManagerFixture {
  size_t StoreAt(const ChunkKey& at, const TokenView& prompt, std::vector<ObjectPart> parts = {}) {
    const size_t n = StorePrompt(
        *manager, at, prompt, {0, prompt.tokens.size()}, [](TokenRange, ObjectPart) { return kTestPayload; },
        parts);
    EXPECT_TRUE(manager->Flush().ok());
    return n;
  }
  uint64_t MatchAt(const ChunkKey& at, const TokenView& prompt) {
    return manager->Lookup(at, prompt)->matched_tokens();
  }
};

// A window's chunks need no chunk before them: what has no way up to the erased prefix goes with it.
TEST(ErasePrefixTest, TakesWindowsBehindAHole) {
  for (const bool reopened : {false, true}) {
    EraseFixture f;
    f.Open();
    KvSpec spec = TestSpec(Cut::kNone);
    spec.groups = {{Retention::kWindow, 2 * kTestChunk}};
    const ChunkKey root = *f.manager->Root(spec);
    spec.model_revision = "another";
    const ChunkKey other = *f.manager->Root(spec);
    const std::vector<Token> prompt = Seeded(10, 1);
    const auto sizes = [](TokenRange, ObjectPart) { return kTestPayload; };
    for (const ChunkKey& at : {root, other}) {
      ASSERT_EQ(StorePrompt(*f.manager, at, prompt, {6 * kTestChunk, 10 * kTestChunk}, sizes), 4u);
    }
    ASSERT_TRUE(f.manager->Flush().ok());
    if (reopened) f.Open();
    ASSERT_EQ(f.MatchAt(root, prompt), prompt.size());
    EXPECT_EQ(*f.manager->ErasePrefix(root, First(prompt, 4 * kTestChunk)), 4u);
    EXPECT_EQ(f.MatchAt(root, prompt), 0u);
    EXPECT_EQ(f.MatchAt(other, prompt), prompt.size()) << "another root's stay";
    EXPECT_EQ(*f.manager->ErasePrefix(other, First(prompt, 9 * kTestChunk)), 2u)
        << "the eighth and what it hangs on stay: they come before";
    EXPECT_EQ(f.platters->objects.size(), 2u);
  }
}

TEST(ErasePrefixTest, TakesTheSubtreeAndCounts) {
  for (const bool reopened : {false, true}) {
    EraseFixture f;
    f.Open();
    const std::vector<Token> trunk = Seeded(4, 1);
    std::vector<Token> branch(trunk.begin(), trunk.begin() + 2 * kTestChunk);
    branch.resize(4 * kTestChunk + 5, 4711);
    const std::vector<Token> other = Seeded(2, 2);
    f.StoreAt(f.root, trunk);
    f.StoreAt(f.root, branch);
    f.StoreAt(f.root, other);
    if (reopened) f.Open();
    ASSERT_EQ(f.platters->objects.size(), 9u);
    // A stored tail: itself alone.
    EXPECT_EQ(*f.manager->ErasePrefix(f.root, branch), 1u);
    EXPECT_EQ(f.Match(branch), 4 * kTestChunk);
    // Nothing is stored of it; a prefix that ends inside a chunk without a tail of its own is nothing.
    EXPECT_EQ(*f.manager->ErasePrefix(f.root, Seeded(3, 5)), 0u);
    EXPECT_EQ(*f.manager->ErasePrefix(f.root, First(trunk, kTestChunk + 3)), 0u);
    EXPECT_EQ(f.Match(trunk), trunk.size());
    EXPECT_EQ(*f.manager->ErasePrefix(f.root, First(trunk, 3 * kTestChunk)), 2u);
    EXPECT_EQ(f.Match(trunk), 2 * kTestChunk);
    EXPECT_EQ(f.Match(branch), 4 * kTestChunk) << "the other branch stays";
    EXPECT_EQ(*f.manager->ErasePrefix(f.root, First(trunk, kTestChunk)), 4u);
    EXPECT_EQ(f.Match(branch) + f.Match(trunk), 0u);
    EXPECT_EQ(f.Match(other), other.size());
    EXPECT_EQ(*f.manager->ErasePrefix(f.root, {}), 2u) << "an empty prompt is the whole root";
    EXPECT_EQ(*f.manager->ErasePrefix(f.root, {}), 0u);
    EXPECT_EQ(f.platters->objects.size(), 0u);
    EXPECT_EQ(f.manager->Stats().index_entries, 0u);
    EXPECT_EQ(f.manager->Stats().pool_used_bytes, 0u);
    f.Open();
    EXPECT_EQ(f.Match(trunk) + f.Match(branch) + f.Match(other), 0u);
    // The root is as good as before.
    EXPECT_EQ(f.StoreAt(f.root, trunk), 4u);
    EXPECT_EQ(f.LoadAll(trunk), trunk.size());
  }
}

TEST(ErasePrefixTest, ItemsAreOfThePrefix) {
  EraseFixture f;
  f.Open();
  const std::vector<Token> tokens = Seeded(2, 1);
  const std::vector<Item> cat = {{3, {std::byte{1}}}};
  const std::vector<Item> dog = {{3, {std::byte{2}}}};
  f.StoreAt(f.root, {tokens, cat});
  f.StoreAt(f.root, {tokens, dog});
  EXPECT_EQ(*f.manager->ErasePrefix(f.root, tokens), 0u);
  EXPECT_EQ(*f.manager->ErasePrefix(f.root, {First(tokens, kTestChunk), cat}), 2u);
  EXPECT_EQ(f.Match({tokens, dog}), tokens.size());
  EXPECT_EQ(f.Match({tokens, cat}), 3u);
}

TEST(ErasePrefixTest, BadCalls) {
  EraseFixture f;
  f.Open();
  const std::vector<Token> prompt = Seeded(1, 1);
  EXPECT_EQ(f.manager->ErasePrefix(ChunkKey{}, prompt).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(f.manager->ErasePrefix(ChunkKey{}, {}).status().code(), StatusCode::kNotFound);
  const std::vector<Item> beyond = {{99, {std::byte{1}}}};
  EXPECT_EQ(f.manager->ErasePrefix(f.root, {prompt, beyond}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.manager->EraseSalt("").status().code(), StatusCode::kInvalidArgument);
  KvSpec bad = TestSpec();
  bad.tokens_per_chunk = 0;
  EXPECT_EQ(f.manager->EraseSpec(bad).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*f.manager->EraseSalt("never used"), 0u);
  KvSpec never = TestSpec();
  never.model_id = "never used";
  EXPECT_EQ(*f.manager->EraseSpec(never), 0u);
  ASSERT_TRUE(f.manager->Close().ok());
  EXPECT_EQ(f.manager->ErasePrefix(f.root, prompt).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(f.manager->EraseSpec(TestSpec()).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(f.manager->EraseSpec(never).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(f.manager->EraseSalt("never used").status().code(), StatusCode::kFailedPrecondition);
}

TEST(EraseByTest, SpecAndSaltAcrossRoots) {
  for (const bool reopened : {false, true}) {
    EraseFixture f;
    f.Open();
    KvSpec other_spec = TestSpec();
    other_spec.model_revision = "2";
    const Adapter lora{TokenHasher::KeyOf({}, {}), 0.5f};
    const std::vector<Token> prompt = Seeded(2, 1);
    std::vector<ChunkKey> roots;
    const auto make_roots = [&] {
      roots = {*f.manager->Root(TestSpec()), *f.manager->Root(TestSpec(), {}, "alice"),
               *f.manager->Root(TestSpec(), {&lora, 1}, "bob"), *f.manager->Root(other_spec),
               *f.manager->Root(other_spec, {}, "alice")};
    };
    make_roots();
    for (const ChunkKey& root : roots) EXPECT_EQ(f.StoreAt(root, prompt), 2u);
    const auto matches = [&] {
      make_roots();
      std::vector<uint64_t> out;
      for (const ChunkKey& root : roots) out.push_back(f.MatchAt(root, prompt) / kTestChunk);
      return out;
    };
    // After a restart roots are known from the durable tier alone, before anybody makes them again.
    const auto restart = [&] {
      if (!reopened) return;
      f.manager.reset();
      std::vector<Tier> tiers;
      tiers.push_back({.backend = MakeMemoryDisk(f.platters, f.disk_bytes)});
      f.manager = *StorageManager::Open(f.options, std::move(tiers));
    };
    restart();
    EXPECT_EQ(*f.manager->EraseSalt("alice"), 4u);
    EXPECT_EQ(*f.manager->EraseSalt("alice"), 0u);
    restart();
    EXPECT_EQ(matches(), (std::vector<uint64_t>{2, 0, 2, 2, 0}));
    restart();
    EXPECT_EQ(*f.manager->EraseSpec(TestSpec()), 4u);
    restart();
    EXPECT_EQ(matches(), (std::vector<uint64_t>{0, 0, 0, 2, 0}));
    EXPECT_EQ(*f.manager->EraseSalt("bob"), 0u);
    EXPECT_EQ(f.platters->objects.size(), 2u);
  }
}

TEST(EraseByTest, AllShardsOfASpec) {
  EraseFixture f;
  const KvSpec sharded = ShardedSpec();
  ASSERT_TRUE(sharded.Validate().ok());
  f.Open(sharded);
  const std::vector<Token> prompt = Seeded(2, 1);
  EXPECT_EQ(f.StoreAt(f.root, prompt, {{0, 0}, {0, 1}}), 4u);
  f.Open();  // another spec; the sharded root is known without its shards
  EXPECT_EQ(f.StoreAt(f.root, prompt), 2u);
  KvSpec unsharded = sharded;
  unsharded.shards.clear();
  EXPECT_EQ(*f.manager->EraseSpec(unsharded), 4u);
  EXPECT_EQ(f.platters->objects.size(), 2u);
  EXPECT_EQ(f.Match(prompt), prompt.size());
}

TEST(EraseByTest, WhileWritesAreInFlight) {
  for (int by = 0; by < 3; ++by) {
    EraseFixture f;
    f.Open();
    const ChunkKey salted = *f.manager->Root(TestSpec(), {}, "alice");
    ASSERT_TRUE(f.manager->Flush().ok());
    const std::vector<Token> prompt = Seeded(3, 1);
    f.platters->holding_puts = true;
    StorePrompt(*f.manager, salted, prompt, {0, prompt.size()},
                [](TokenRange, ObjectPart) { return kTestPayload; });
    // Prepared, and committed after the erase.
    const std::vector<Token> late = Seeded(1, 2);
    Result<PrepareResult> prepared = f.manager->Prepare(salted, late, {0, kTestChunk},
                                                        [](TokenRange, ObjectPart) { return kTestPayload; });
    ASSERT_TRUE(prepared.ok() && prepared->chunks[0].writable);
    std::atomic<bool> erased{false};
    std::thread release([&] {
      while (!erased) f.platters->ReleaseHeld();
    });
    const Result<uint64_t> count = by == 0   ? f.manager->ErasePrefix(salted, {})
                                   : by == 1 ? f.manager->EraseSpec(TestSpec())
                                             : f.manager->EraseSalt("alice");
    erased = true;
    release.join();
    ASSERT_TRUE(count.ok()) << count.status().ToString();
    EXPECT_EQ(*count, 4u);
    std::vector<WritableChunk> filled;
    FillPayload(*prepared->chunks[0].writable);
    filled.push_back(*std::move(prepared->chunks[0].writable));
    f.manager->Commit(std::move(filled));
    {
      std::lock_guard lock(f.platters->mutex);
      f.platters->holding_puts = false;
    }
    f.platters->ReleaseHeld();
    ASSERT_TRUE(f.manager->Flush().ok());
    EXPECT_EQ(f.MatchAt(salted, prompt) + f.MatchAt(salted, late), 0u);
    EXPECT_EQ(f.platters->objects.size(), 0u);
    EXPECT_EQ(f.manager->Stats().index_entries, 0u);
    EXPECT_EQ(f.StoreAt(salted, prompt), 3u);
    EXPECT_EQ(LoadPrompt(*f.manager, salted, prompt), prompt.size());
  }
}

TEST(EraseByTest, ManyRootsAndDeepTreesAtOnce) {
  EraseFixture f;
  f.options.pool_bytes = 32 << 20;
  f.Open();
  std::vector<ChunkKey> roots;
  for (int i = 0; i < 8; ++i) {
    roots.push_back(*f.manager->Root(TestSpec(), {}, "salt " + std::to_string(i % 2)));
    EXPECT_EQ(StorePrompt(*f.manager, roots.back(), Seeded(10, 1 + i), {0, 10 * kTestChunk},
                          [](TokenRange, ObjectPart) { return uint64_t{100}; }),
              10u);
  }
  ASSERT_TRUE(f.manager->Flush().ok());
  // From several threads: each object is counted once.
  std::atomic<uint64_t> count{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const Result<uint64_t> erased =
          t % 2 ? f.manager->EraseSalt("salt 0") : f.manager->EraseSpec(TestSpec());
      EXPECT_TRUE(erased.ok());
      if (erased.ok()) count += *erased;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 80u);
  EXPECT_EQ(f.manager->Stats().index_entries, 0u);
}

}  // namespace
}  // namespace terrace
