// Leases by request id: renewal takes over what the earlier lease protected, counts it once and gives it
// back exactly; and what Prepare knows of a request id.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "terrace/token_hasher.h"
#include "tests/support/manager_fixture.h"

namespace terrace {
namespace {

// A pool for 16 objects, of which leases may protect half the bytes: nine objects.
constexpr uint64_t kSmallPool = 16 * (uint64_t{128} << 10);
constexpr uint64_t kBudgetObjects = 9;

std::vector<Token> Seeded(size_t num_chunks, Token seed) { return TestTokens(num_chunks * kTestChunk, seed); }
std::span<const Token> First(const std::vector<Token>& tokens, size_t n) {
  return std::span(tokens).first(n);
}

struct LeaseFixture : ManagerFixture {
  explicit LeaseFixture(const KvSpec& spec = TestSpec(), double budget = 0.5) {
    with_disk = false;
    options.pool_bytes = kSmallPool;
    options.lease_budget = budget;
    Open(spec);
  }
  void StoreNow(const TokenView& prompt, uint64_t begin = 0, std::vector<ObjectPart> parts = {}) {
    Store(prompt, begin, std::move(parts));
    ASSERT_TRUE(manager->Flush().ok());
  }
  uint64_t Peek(const TokenView& prompt) { return manager->Peek(root, prompt)->matched_tokens; }
  Lease Look(const TokenView& prompt, uint64_t id, LookupOptions more = {}) {
    more.request_id = id;
    Result<Lease> lease = manager->Lookup(root, prompt, more);
    EXPECT_TRUE(lease.ok()) << lease.status().ToString();
    return lease.ok() ? *std::move(lease) : Lease();
  }
  uint64_t active() { return manager->Stats().active_leases; }
  // What nobody protects is evicted. Fresh tokens each time.
  void Fill() {
    for (int i = 0; i < 40; ++i) StoreNow(Seeded(1, next_seed++));
  }
  Token next_seed = 1000;
};

enum class Earlier { kHeld, kDroppedBefore, kDroppedAfter };

TEST(LeaseTest, RenewalByAGrownPromptGivesPinsBackExactly) {
  for (const Earlier earlier : {Earlier::kHeld, Earlier::kDroppedBefore, Earlier::kDroppedAfter}) {
    SCOPED_TRACE(static_cast<int>(earlier));
    LeaseFixture f;
    const std::vector<Token> prompt = Seeded(4, 1);
    f.StoreNow(prompt);
    Lease first = f.Look(First(prompt, 2 * kTestChunk), 7);
    EXPECT_TRUE(first.is_protected());
    EXPECT_EQ(f.active(), 1u);
    if (earlier == Earlier::kDroppedBefore) first.Release();
    Lease second = f.Look(First(prompt, 3 * kTestChunk), 7);
    Lease third = f.Look(prompt, 7);
    if (earlier == Earlier::kDroppedAfter) first.Release();
    EXPECT_EQ(third.matched_tokens(), prompt.size());
    EXPECT_EQ(third.host_tokens(), prompt.size());
    EXPECT_EQ(third.num_objects(), 4u);
    EXPECT_EQ(third.frame_bytes(), 4 * f.Frame());
    EXPECT_TRUE(third.is_protected());
    EXPECT_FALSE(first.is_protected() || second.is_protected());
    EXPECT_EQ(f.active(), 1u);
    f.Fill();
    EXPECT_EQ(f.Peek(prompt), prompt.size());
    LoadHandle load = f.manager->Load(third, {0, prompt.size()});
    for (int i = 0; i < 4; ++i) {
      Result<std::optional<LeasedChunk>> chunk = load.Next();
      ASSERT_TRUE(chunk.ok() && chunk->has_value());
      EXPECT_TRUE(PayloadIsRight(**chunk));
    }
    load = LoadHandle();
    third.Release();
    EXPECT_EQ(f.active(), 0u);
    f.Fill();
    EXPECT_EQ(f.Peek(prompt), 0u) << "a pin stayed";
  }
}

TEST(LeaseTest, RenewalCountsInTheBudgetOnce) {
  for (const bool keep_earlier : {true, false}) {
    LeaseFixture f;
    const std::vector<Token> prompt = Seeded(kBudgetObjects + 1, 1);
    f.StoreNow(prompt);
    std::vector<Lease> leases;
    for (uint64_t n = 1; n <= kBudgetObjects; ++n) {
      for (int again = 0; again < 3; ++again) {
        leases.push_back(f.Look(First(prompt, n * kTestChunk), 7));
        ASSERT_TRUE(leases.back().is_protected()) << n;
        if (!keep_earlier && leases.size() > 1) leases.erase(leases.begin());
      }
    }
    EXPECT_FALSE(f.Look(First(prompt, kTestChunk), 8).is_protected()) << "the budget is used up";
    Lease last = f.Look(prompt, 7);
    EXPECT_EQ(last.matched_tokens(), prompt.size());
    EXPECT_FALSE(last.is_protected()) << "one chunk above the budget";
    leases.clear();
    EXPECT_EQ(f.active(), 1u);
    f.Fill();
    EXPECT_EQ(f.Peek(prompt), kBudgetObjects * kTestChunk) << "only the new part is a hint";
    last.Release();
    EXPECT_EQ(f.active(), 0u);
    f.Fill();
    EXPECT_EQ(f.Peek(prompt), 0u);
    const std::vector<Token> other = Seeded(kBudgetObjects, 2);
    f.StoreNow(other);
    EXPECT_TRUE(f.Look(other, 9).is_protected()) << "all of the budget is back";
  }
}

TEST(LeaseTest, AnEarlierLeaseThatLapsedIsNotRenewedButReplaced) {
  LeaseFixture f;
  const std::vector<Token> prompt = Seeded(4, 1);
  f.StoreNow(prompt);
  const Lease first = f.Look(First(prompt, 2 * kTestChunk), 7);
  f.clock.Advance(std::chrono::seconds(31));
  EXPECT_FALSE(first.is_protected());
  Lease second = f.Look(prompt, 7);
  EXPECT_TRUE(second.is_protected());
  EXPECT_FALSE(first.is_protected());
  EXPECT_EQ(f.active(), 1u);
  f.Fill();
  EXPECT_EQ(f.Peek(prompt), prompt.size());
  f.clock.Advance(std::chrono::seconds(31));
  EXPECT_EQ(f.active(), 0u);
  f.Fill();
  EXPECT_EQ(f.Peek(prompt), 0u) << "lapsed, though held";
  // Renewal moves the deadline.
  f.StoreNow(prompt);
  Lease third = f.Look(First(prompt, kTestChunk), 7);
  f.clock.Advance(std::chrono::seconds(20));
  third = f.Look(prompt, 7);
  f.clock.Advance(std::chrono::seconds(20));
  EXPECT_TRUE(third.is_protected());
  EXPECT_EQ(f.active(), 1u);
}

TEST(LeaseTest, RenewalDoesNotPromiseWhatWasErased) {
  for (const bool stored_again : {false, true}) {
    LeaseFixture f;
    const std::vector<Token> prompt = Seeded(4, 1);
    f.StoreNow(prompt);
    const Lease first = f.Look(First(prompt, 3 * kTestChunk), 7);
    ASSERT_EQ(first.matched_tokens(), 3 * kTestChunk);
    EXPECT_EQ(*f.manager->ErasePrefix(f.root, First(prompt, 2 * kTestChunk)), 3u);
    if (stored_again) f.StoreNow(First(prompt, 2 * kTestChunk));
    const uint64_t left = (stored_again ? 2 : 1) * kTestChunk;
    Lease second = f.Look(prompt, 7);
    EXPECT_EQ(second.matched_tokens(), left);
    EXPECT_EQ(second.num_objects(), left / kTestChunk);
    EXPECT_TRUE(second.is_protected());
    EXPECT_EQ(f.active(), 1u);
    LoadHandle load = f.manager->Load(second, {0, left});
    for (uint64_t i = 0; i < left / kTestChunk; ++i) {
      Result<std::optional<LeasedChunk>> chunk = load.Next();
      ASSERT_TRUE(chunk.ok() && chunk->has_value());
      EXPECT_TRUE(PayloadIsRight(**chunk));
    }
    load = LoadHandle();
    f.Fill();
    EXPECT_EQ(f.Peek(prompt), left);
    second.Release();
    f.Fill();
    EXPECT_EQ(f.Peek(prompt), 0u);
    EXPECT_EQ(f.active(), 0u);
  }
}

TEST(LeaseTest, RenewalDoesNotPromiseAHintThatWasEvicted) {
  LeaseFixture f(TestSpec(), 0.0);
  const std::vector<Token> prompt = Seeded(4, 1);
  f.StoreNow(prompt);
  const Lease first = f.Look(First(prompt, 2 * kTestChunk), 7);
  EXPECT_EQ(first.matched_tokens(), 2 * kTestChunk);
  EXPECT_FALSE(first.is_protected());
  f.Fill();
  ASSERT_EQ(f.Peek(prompt), 0u);
  const Lease second = f.Look(prompt, 7);
  EXPECT_EQ(second.matched_tokens(), 0u);
  EXPECT_EQ(second.num_objects(), 0u);
  EXPECT_EQ(f.LoadAll(prompt), 0u);
}

TEST(LeaseTest, ATailMatchThatBecomesAFullChunk) {
  LeaseFixture f;
  const std::vector<Token> prompt = Seeded(3, 1);
  f.StoreNow(prompt);
  Lease lease = f.Look(First(prompt, kTestChunk + 4), 7);
  EXPECT_EQ(lease.matched_tokens(), kTestChunk + 4);
  EXPECT_EQ(lease.num_objects(), 2u);
  for (const size_t n :
       {size_t{kTestChunk + 5}, size_t{2 * kTestChunk}, size_t{2 * kTestChunk + 9}, size_t{3 * kTestChunk}}) {
    f.StoreNow(prompt);  // what was not protected is gone
    Lease grown = f.Look(First(prompt, n), 7);
    EXPECT_EQ(grown.matched_tokens(), n);
    EXPECT_EQ(grown.host_tokens(), n);
    EXPECT_EQ(grown.num_objects(), (n + kTestChunk - 1) / kTestChunk);
    EXPECT_TRUE(grown.is_protected());
    EXPECT_EQ(f.active(), 1u);
    f.Fill();
    EXPECT_EQ(f.Peek(First(prompt, n)), n);
    lease = std::move(grown);
  }
  lease.Release();
  f.Fill();
  EXPECT_EQ(f.Peek(prompt), 0u);
}

TEST(LeaseTest, AShrinkingLimitEndsInsideTheEarlierMatch) {
  LeaseFixture f;
  const std::vector<Token> prompt = Seeded(4, 1);
  f.StoreNow(prompt);
  Lease lease = f.Look(prompt, 7);
  for (const uint64_t limit :
       {uint64_t{63}, uint64_t{48}, uint64_t{20}, uint64_t{64}, uint64_t{0}, uint64_t{16}, UINT64_MAX}) {
    const uint64_t tokens = std::min<uint64_t>(limit, prompt.size());
    Lease next = f.Look(prompt, 7, {.max_tokens = limit});
    EXPECT_EQ(next.matched_tokens(), tokens);
    EXPECT_EQ(next.num_objects(), (tokens + kTestChunk - 1) / kTestChunk);
    EXPECT_FALSE(lease.is_protected());
    EXPECT_EQ(next.is_protected(), tokens > 0);
    EXPECT_EQ(f.active(), tokens > 0 ? 1u : 0u);
    lease = std::move(next);
  }
  lease = f.Look(prompt, 7, {.max_tokens = 20});
  f.Fill();
  EXPECT_EQ(f.Peek(prompt), 2 * kTestChunk) << "beyond the limit nothing is protected any more";
}

TEST(LeaseTest, OtherPartsUnderTheSameId) {
  LeaseFixture f(TestSpec(Cut::kWhole, {GroupSpec{}, GroupSpec{}}));
  const std::vector<Token> prompt = Seeded(2, 1);
  f.StoreNow(prompt);
  Lease lease = f.Look(First(prompt, kTestChunk), 7, {.parts = {{0, 0}}});
  EXPECT_EQ(lease.num_objects(), 1u);
  const std::vector<std::vector<ObjectPart>> sets = {{{0, 0}, {1, 0}}, {{1, 0}}, {{1, 0}, {0, 0}}, {}};
  for (const std::vector<ObjectPart>& parts : sets) {
    Lease next = f.Look(prompt, 7, {.parts = parts});
    EXPECT_EQ(next.matched_tokens(), prompt.size());
    EXPECT_EQ(next.num_objects(), 2 * (parts.empty() ? 2 : parts.size()));
    EXPECT_TRUE(next.is_protected());
    EXPECT_EQ(f.active(), 1u);
    f.Fill();
    EXPECT_EQ(f.manager->Peek(f.root, prompt, {.parts = parts})->matched_tokens, prompt.size());
    lease = std::move(next);
  }
  lease.Release();
  f.Fill();
  EXPECT_EQ(f.manager->Peek(f.root, prompt, {.parts = {{0, 0}}})->matched_tokens, 0u);
}

TEST(LeaseTest, OtherTokensOrAnotherRootUnderTheSameIdEndTheEarlierLease) {
  LeaseFixture f;
  const ChunkKey salted = *f.manager->Root(TestSpec(), {}, "salt");
  const std::vector<Token> prompt = Seeded(2, 1);
  const std::vector<Token> other = Seeded(2, 2);
  f.StoreNow(prompt);
  f.StoreNow(other);
  Lease first = f.Look(prompt, 7);
  const Lease second = f.Look(other, 7);
  EXPECT_FALSE(first.is_protected());
  EXPECT_TRUE(second.is_protected());
  EXPECT_EQ(f.active(), 1u);
  // A prompt with an item where the earlier one had none is other tokens too.
  const std::vector<Item> item = {{3, {std::byte{1}}}};
  const Lease third = f.Look({other, item}, 7);
  EXPECT_EQ(third.matched_tokens(), 3u);
  EXPECT_FALSE(second.is_protected());
  EXPECT_EQ(f.active(), 1u);
  EXPECT_EQ(f.manager->Lookup(salted, other, {.request_id = 7})->matched_tokens(), 0u);
  EXPECT_FALSE(third.is_protected());
  EXPECT_EQ(f.active(), 0u);
}

TEST(LeaseTest, ThousandsOfIds) {
  LeaseFixture f;
  const std::vector<Token> prompt = Seeded(1, 1);
  f.StoreNow(prompt);
  std::vector<Lease> held;
  for (uint64_t id = 1; id <= 3000; ++id) held.push_back(f.Look(prompt, id));
  EXPECT_EQ(f.active(), 3000u);
  const auto num_protected = [&] {
    return std::count_if(held.begin(), held.end(), [](const Lease& lease) { return lease.is_protected(); });
  };
  EXPECT_EQ(num_protected(), static_cast<int64_t>(kBudgetObjects)) << "each lease counts";
  held.erase(held.begin() + 1000, held.end());
  EXPECT_EQ(f.active(), 1000u);
  f.clock.Advance(std::chrono::seconds(31));
  EXPECT_EQ(f.active(), 0u);
  held.clear();
  EXPECT_EQ(f.active(), 0u);
  // More ids than are remembered: a forgotten one is a new one.
  for (uint64_t id = 1; id <= 70'000; ++id) f.Look(prompt, id);
  EXPECT_EQ(f.active(), 0u);
  Lease lease = f.Look(prompt, 1);
  EXPECT_TRUE(lease.is_protected());
  lease.Release();
  f.Fill();
  EXPECT_EQ(f.Peek(prompt), 0u);
}

TEST(LeaseTest, IdsFromManyThreads) {
  const uint32_t seed = 11;
  SCOPED_TRACE("seed " + std::to_string(seed));
  LeaseFixture f;
  const std::vector<Token> prompt = Seeded(6, 1);
  const std::vector<Token> other = Seeded(3, 2);
  f.StoreNow(prompt);
  f.StoreNow(other);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      std::vector<Lease> kept(4);
      for (int i = 0; i < 400; ++i) {
        const bool use_other = random() % 4 == 0;
        const std::vector<Token>& tokens = use_other ? other : prompt;
        const std::span<const Token> asked = First(tokens, random() % (tokens.size() + 1));
        const uint64_t id = 1 + random() % 3;  // shared by the threads
        if (random() % 8 == 0) {
          wrong += !f.manager->Peek(f.root, asked, {.request_id = id}).ok();
          continue;
        }
        if (random() % 50 == 0) f.manager->Stats();
        if (random() % 40 == 0) f.clock.Advance(std::chrono::seconds(16));
        if (t == 0 && random() % 60 == 0) {
          wrong += !f.manager->ErasePrefix(f.root, First(prompt, 5 * kTestChunk)).ok();
          f.Store(prompt);
        }
        Result<Lease> lease = f.manager->Lookup(f.root, asked, {.request_id = id});
        wrong += !lease.ok() || lease->matched_tokens() > asked.size();
        if (lease.ok()) kept[random() % kept.size()] = *std::move(lease);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(f.active(), 0u);
  ASSERT_TRUE(f.manager->Flush().ok());
  f.Fill();
  EXPECT_EQ(f.Peek(prompt) + f.Peek(other), 0u) << "a pin stayed";
  EXPECT_TRUE(f.Look(prompt, 1).num_objects() == 0);
  const std::vector<Token> last = Seeded(kBudgetObjects, 3);
  f.StoreNow(last);
  EXPECT_TRUE(f.Look(last, 1).is_protected()) << "all of the budget is back";
}

// --- Prepare under a request id

TEST(PrepareWithIdTest, AnswersAsWithoutAndKeepsTheLease) {
  LeaseFixture f;
  const PayloadSizes sizes = [](TokenRange, ObjectPart) { return kTestPayload; };
  const std::vector<Token> prompt = Seeded(6, 1);
  const std::vector<Token> other = Seeded(2, 2);
  f.StoreNow(First(prompt, kTestChunk));
  const Lease lease = f.Look(First(prompt, kTestChunk), 7);
  for (size_t n = kTestChunk; n <= prompt.size(); n += 5) {
    const std::span<const Token> grown = First(prompt, n);
    std::vector<ObjectId> ids;
    {
      Result<PrepareResult> with = f.manager->Prepare(7, f.root, grown, {0, n}, sizes);
      ASSERT_TRUE(with.ok() && with->status.ok());
      for (const PreparedChunk& chunk : with->chunks) ids.push_back(chunk.id);
      EXPECT_TRUE(with->chunks[0].present);
    }
    Result<PrepareResult> without = f.manager->Prepare(f.root, grown, {0, n}, sizes);
    ASSERT_TRUE(without.ok() && without->status.ok());
    ASSERT_EQ(ids.size(), without->chunks.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(ids[i], without->chunks[i].id);
      EXPECT_EQ(without->chunks[i].present, i == 0);
    }
  }
  // Another prompt under the id, and a range that is none.
  Result<PrepareResult> stranger = f.manager->Prepare(7, f.root, other, {0, other.size()}, sizes);
  ASSERT_TRUE(stranger.ok());
  TokenHasher hasher(f.root, kTestChunk);
  ASSERT_TRUE(hasher.Append(other).ok());
  ASSERT_EQ(stranger->chunks.size(), 2u);
  EXPECT_EQ(stranger->chunks[1].id.key, hasher.full_keys()[1]);
  EXPECT_EQ(f.manager->Prepare(7, f.root, prompt, {3, 20}, sizes).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(f.manager->Prepare(7, f.root, prompt, {0, 97}, sizes).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(lease.is_protected());
  EXPECT_EQ(f.active(), 1u);
  const Lease renewed = f.Look(prompt, 7);
  EXPECT_EQ(renewed.matched_tokens(), kTestChunk);
  EXPECT_FALSE(lease.is_protected()) << "the request went on with these tokens";
}

TEST(PrepareWithIdTest, ARangeThatEndsInsideThePrompt) {
  LeaseFixture f;
  const PayloadSizes sizes = [](TokenRange, ObjectPart) { return kTestPayload; };
  const std::vector<Token> tokens = Seeded(4, 1);
  const std::vector<Item> items = {{2, {std::byte{1}}}, {20, {std::byte{2}}}, {26, {std::byte{3}}}};
  for (const uint64_t id : {uint64_t{0}, uint64_t{7}}) {
    Result<PrepareResult> prepared =
        f.manager->Prepare(id, f.root, {tokens, items}, {0, kTestChunk + 9}, sizes);
    ASSERT_TRUE(prepared.ok() && prepared->status.ok());
    ASSERT_EQ(prepared->chunks.size(), 2u);
    TokenHasher hasher(f.root, kTestChunk);
    ASSERT_TRUE(hasher.Append({First(tokens, kTestChunk + 9), std::span(items).first(2)}).ok());
    EXPECT_EQ(prepared->chunks[1].id.key, hasher.TailKey());
    EXPECT_EQ(prepared->chunks[1].tokens.end, kTestChunk + 9);
  }
  const std::vector<Item> shorter(items.begin(), items.begin() + 2);
  EXPECT_EQ(StorePrompt(*f.manager, f.root, {tokens, items}, {0, kTestChunk + 9}, sizes), 2u);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.LoadAll({First(tokens, kTestChunk + 9), shorter}), kTestChunk + 9);
}

}  // namespace
}  // namespace terrace
