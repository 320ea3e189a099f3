// Peek sees what Lookup would find and leaves no trace; Pin protects until it is told otherwise.
#include <gtest/gtest.h>

#include <random>

#include "tests/support/manager_fixture.h"

namespace terrace {
namespace {

// A pool for 16 objects; half of it may be leased, a quarter (four objects) pinned.
constexpr uint64_t kSmallPool = 16 * (uint64_t{128} << 10);

std::vector<Token> Seeded(size_t num_chunks, Token seed) { return TestTokens(num_chunks * kTestChunk, seed); }

uint64_t PeekTokens(ManagerFixture& f, const TokenView& prompt, const LookupOptions& options = {}) {
  Result<PrefixPresence> seen = f.manager->Peek(f.root, prompt, options);
  EXPECT_TRUE(seen.ok()) << seen.status().ToString();
  return seen.ok() ? seen->matched_tokens : UINT64_MAX;
}

// Stores more than the pool holds, of which nothing is used again: what nobody protects is evicted.
void Fill(ManagerFixture& f, Token seed) {
  for (Token i = 0; i < 40; ++i) {
    f.Store(Seeded(1, seed + i));
    ASSERT_TRUE(f.manager->Flush().ok());
  }
}

TEST(PeekTest, AnswersAsLookupDoes) {
  const uint32_t seed = 5;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (const Cut cut : {Cut::kWhole, Cut::kNone}) {
    ManagerFixture f;
    f.Open(TestSpec(cut, {GroupSpec{}, GroupSpec{}}));
    const std::vector<Token> stored = TestTokens(5 * kTestChunk + 7);
    f.Store(stored);
    ASSERT_TRUE(f.manager->Flush().ok());
    for (const bool promoted : {true, false}) {
      if (!promoted) {  // on disk, but for the first chunks' first part
        f.Open(TestSpec(cut, {GroupSpec{}, GroupSpec{}}));
        f.LoadAll(Seeded(2, 1), {{0, 0}});
      }
      for (int i = 0; i < 60; ++i) {
        std::vector<Token> prompt(stored.begin(), stored.begin() + random() % (stored.size() + 1));
        if (!prompt.empty() && random() % 3 == 0) prompt[random() % prompt.size()] += 1;
        LookupOptions options;
        if (random() % 2 == 0) options.max_tokens = random() % (prompt.size() + 2);
        if (random() % 2 == 0) options.parts = {{static_cast<uint16_t>(random() % 2), 0}};
        Result<PrefixPresence> seen = f.manager->Peek(f.root, prompt, options);
        Result<Lease> lease = f.manager->Lookup(f.root, prompt, options);
        ASSERT_TRUE(seen.ok() && lease.ok());
        EXPECT_EQ(seen->matched_tokens, lease->matched_tokens());
        EXPECT_EQ(seen->host_tokens, lease->host_tokens());
        EXPECT_EQ(seen->num_objects, lease->num_objects());
        EXPECT_EQ(seen->frame_bytes, lease->frame_bytes());
        EXPECT_LE(seen->host_frame_bytes, seen->frame_bytes);
        EXPECT_EQ(seen->frame_bytes, seen->num_objects * f.Frame());
        if (promoted) {
          EXPECT_EQ(seen->host_frame_bytes, seen->frame_bytes);
        }
      }
    }
    const PrefixPresence both = *f.manager->Peek(f.root, stored);
    EXPECT_EQ(both.host_tokens, 0u) << "of each chunk one part is missing in the host tier";
    EXPECT_EQ(both.host_frame_bytes, 2 * f.Frame());
  }
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = Seeded(1, 1);
  EXPECT_EQ(f.manager->Peek(ChunkKey{}, prompt).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(f.manager->Peek(f.root, prompt, {.parts = {{3, 0}}}).status().code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(f.manager->Close().ok());
  EXPECT_EQ(f.manager->Peek(f.root, prompt).status().code(), StatusCode::kFailedPrecondition);
}

TEST(PeekTest, NeitherProtectsNorTouches) {
  for (const bool by_lookup : {false, true}) {
    ManagerFixture f;
    f.with_disk = false;
    f.options.pool_bytes = kSmallPool;
    f.Open();
    const std::vector<Token> older = Seeded(1, 1);
    const std::vector<Token> newer = Seeded(1, 2);
    f.Store(older);
    ASSERT_TRUE(f.manager->Flush().ok());
    f.Store(newer);
    ASSERT_TRUE(f.manager->Flush().ok());
    if (by_lookup) {
      EXPECT_EQ(f.Match(older), older.size());
    } else {
      EXPECT_EQ(PeekTokens(f, older, {.request_id = 9}), older.size());
    }
    for (Token i = 100; PeekTokens(f, older) > 0 && PeekTokens(f, newer) > 0; ++i) {
      ASSERT_LT(i, 200u);
      f.Store(Seeded(1, i));
      ASSERT_TRUE(f.manager->Flush().ok());
    }
    EXPECT_EQ(PeekTokens(f, older) == 0, !by_lookup) << "what was peeked at is as cold as before";
    EXPECT_EQ(f.manager->Stats().active_leases, 0u);
    EXPECT_EQ(f.manager->Stats().lookups, by_lookup ? 1u : 0u);
  }
}

TEST(PeekTest, LeavesTheLeaseOfItsRequestAlone) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = Seeded(4, 1);
  const std::vector<Token> other = Seeded(4, 2);
  f.Store(prompt);
  f.Store(other);
  ASSERT_TRUE(f.manager->Flush().ok());
  const std::span<const Token> shorter = std::span(prompt).first(2 * kTestChunk);
  Lease lease = *f.manager->Lookup(f.root, shorter, {.request_id = 7});
  f.clock.Advance(std::chrono::seconds(20));
  EXPECT_EQ(PeekTokens(f, prompt, {.request_id = 7}), prompt.size());
  EXPECT_EQ(PeekTokens(f, other, {.request_id = 7}), other.size());
  EXPECT_EQ(PeekTokens(f, std::span(prompt).first(3), {.request_id = 7}), 3u);
  EXPECT_TRUE(lease.is_protected());
  EXPECT_EQ(f.manager->Stats().active_leases, 1u);
  f.clock.Advance(std::chrono::seconds(11));
  EXPECT_FALSE(lease.is_protected()) << "a peek does not renew";
  EXPECT_EQ(f.manager->Stats().active_leases, 0u);
  // What is renewed after a peek at tokens that did not come.
  lease = *f.manager->Lookup(f.root, shorter, {.request_id = 7});
  std::vector<Token> guessed(shorter.begin(), shorter.end());
  guessed.resize(3 * kTestChunk, 4711);
  EXPECT_EQ(PeekTokens(f, guessed, {.request_id = 7}), shorter.size());
  Lease grown = *f.manager->Lookup(f.root, prompt, {.request_id = 7});
  EXPECT_EQ(grown.matched_tokens(), prompt.size());
  EXPECT_TRUE(grown.is_protected());
  EXPECT_FALSE(lease.is_protected());
  EXPECT_EQ(f.manager->Stats().active_leases, 1u);
}

TEST(PinTest, SurvivesPressureUntilUnpin) {
  ManagerFixture f;
  f.with_disk = false;
  f.options.pool_bytes = kSmallPool;
  f.Open();
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk + 5);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(*f.manager->Pin("system", f.root, prompt), prompt.size());
  EXPECT_EQ(f.manager->Stats().pinned_names, 1u);
  Fill(f, 100);
  f.clock.Advance(std::chrono::hours(1));
  Fill(f, 200);
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
  EXPECT_TRUE(f.manager->Unpin("system"));
  EXPECT_FALSE(f.manager->Unpin("system"));
  EXPECT_EQ(f.manager->Stats().pinned_names, 0u);
  Fill(f, 300);
  EXPECT_EQ(f.Match(prompt), 0u);
}

TEST(PinTest, AboveTheBudgetNothingIsPinned) {
  ManagerFixture f;
  f.with_disk = false;
  f.options.pool_bytes = kSmallPool;
  f.Open();
  const std::vector<Token> five = Seeded(5, 1);
  f.Store(five);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.manager->Pin("a", f.root, five).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(f.manager->Stats().pinned_names, 0u);
  EXPECT_FALSE(f.manager->Unpin("a"));
  Fill(f, 100);
  EXPECT_EQ(f.Match(five), 0u);
  const std::vector<Token> four = Seeded(4, 2);
  f.Store(four);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(*f.manager->Pin("a", f.root, four), four.size()) << "what was refused took nothing";
  Fill(f, 200);
  EXPECT_EQ(f.Match(four), four.size());
}

TEST(PinTest, ANameInUseIsReplacedOrStays) {
  ManagerFixture f;
  f.with_disk = false;
  f.options.pool_bytes = kSmallPool;
  f.Open();
  const std::vector<Token> large = Seeded(4, 1);
  const std::vector<Token> small = Seeded(2, 2);
  f.Store(large);
  f.Store(small);
  ASSERT_TRUE(f.manager->Flush().ok());
  ASSERT_EQ(*f.manager->Pin("x", f.root, large), large.size());
  ASSERT_EQ(*f.manager->Pin("x", f.root, large), large.size()) << "its own bytes are not in its way";
  EXPECT_EQ(f.manager->Pin("y", f.root, small).status().code(), StatusCode::kResourceExhausted);
  ASSERT_EQ(*f.manager->Pin("x", f.root, small), small.size());
  EXPECT_EQ(f.manager->Stats().pinned_names, 1u);
  Fill(f, 100);
  EXPECT_EQ(f.Match(large), 0u);
  EXPECT_EQ(f.Match(small), small.size());
  const std::vector<Token> five = Seeded(5, 3);
  f.Store(five);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.manager->Pin("x", f.root, five).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(f.manager->Pin("y", f.root, std::span(five).first(3 * kTestChunk)).status().code(),
            StatusCode::kResourceExhausted)
      << "what the name protected counts again";
  EXPECT_EQ(*f.manager->Pin("y", f.root, std::span(five).first(2 * kTestChunk)), 2 * kTestChunk);
  Fill(f, 200);
  EXPECT_EQ(f.Match(small), small.size()) << "and stays";
  EXPECT_EQ(f.Match(five), 2 * kTestChunk);
  EXPECT_TRUE(f.manager->Unpin("x"));
  EXPECT_TRUE(f.manager->Unpin("y"));
  Fill(f, 300);
  EXPECT_EQ(f.Match(small) + f.Match(five), 0u);
}

TEST(PinTest, EraseAndClearEndIt) {
  for (const bool clear : {false, true}) {
    ManagerFixture f;
    f.options.pool_bytes = kSmallPool;
    f.Open();
    const std::vector<Token> prompt = Seeded(4, 1);
    const std::vector<Token> other = Seeded(4, 2);
    f.Store(prompt);
    ASSERT_TRUE(f.manager->Flush().ok());
    ASSERT_EQ(*f.manager->Pin("a", f.root, prompt), prompt.size());
    if (clear) {
      ASSERT_TRUE(f.manager->Clear().ok());
      EXPECT_EQ(f.manager->Stats().pinned_names, 0u);
    } else {
      EXPECT_EQ(*f.manager->ErasePrefix(f.root, std::span(prompt).first(kTestChunk)), 4u);
    }
    EXPECT_EQ(f.Match(prompt), 0u);
    EXPECT_EQ(f.manager->Stats().index_entries, 0u);
    f.Store(other);
    ASSERT_TRUE(f.manager->Flush().ok());
    EXPECT_EQ(*f.manager->Pin("b", f.root, other), other.size()) << "the budget is free again";
    f.Store(prompt);
    ASSERT_TRUE(f.manager->Flush().ok());
    EXPECT_EQ(f.LoadAll(prompt), prompt.size());
    f.manager->Unpin("a");
    EXPECT_EQ(f.LoadAll(prompt), prompt.size());
    EXPECT_TRUE(f.manager->Unpin("b"));
  }
}

TEST(PinTest, OfAPrefixThatErasedInPartKeepsTheRest) {
  ManagerFixture f;
  f.with_disk = false;
  f.options.pool_bytes = kSmallPool;
  f.Open();
  const std::vector<Token> prompt = Seeded(4, 1);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Flush().ok());
  ASSERT_EQ(*f.manager->Pin("a", f.root, prompt), prompt.size());
  EXPECT_EQ(*f.manager->ErasePrefix(f.root, std::span(prompt).first(3 * kTestChunk)), 2u);
  Fill(f, 100);
  EXPECT_EQ(f.Match(prompt), 2 * kTestChunk);
  EXPECT_TRUE(f.manager->Unpin("a"));
  Fill(f, 200);
  EXPECT_EQ(f.Match(prompt), 0u);
}

TEST(PinTest, ProtectsWhatLiesInLowerTiers) {
  ManagerFixture f;
  f.options.pool_bytes = kSmallPool;
  f.disk_bytes = 16 * (f.Frame() + kTierPageBytes);
  f.Open();
  const std::vector<Token> prompt = Seeded(3, 1);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Flush().ok());
  f.Open();
  EXPECT_EQ(f.LoadAll(std::span(prompt).first(kTestChunk)), kTestChunk);
  ASSERT_EQ(f.manager->Lookup(f.root, prompt)->host_tokens(), kTestChunk);
  ASSERT_EQ(*f.manager->Pin("a", f.root, prompt), prompt.size());
  Fill(f, 100);
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
  EXPECT_TRUE(f.manager->Unpin("a"));
  Fill(f, 200);
  EXPECT_EQ(f.Match(prompt), 0u);
}

TEST(PinTest, CloseEndsIt) {
  ManagerFixture f;
  f.options.pool_bytes = kSmallPool;
  f.Open();
  const std::vector<Token> prompt = Seeded(2, 1);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Flush().ok());
  ASSERT_EQ(*f.manager->Pin("a", f.root, prompt), prompt.size());
  ASSERT_TRUE(f.manager->Close().ok());
  EXPECT_EQ(f.manager->Stats().pinned_names, 0u);
  EXPECT_FALSE(f.manager->Unpin("a"));
  EXPECT_EQ(f.manager->Pin("b", f.root, prompt).status().code(), StatusCode::kFailedPrecondition);
  f.Open();
  EXPECT_EQ(f.manager->Stats().pinned_names, 0u);
  ASSERT_EQ(*f.manager->Pin("a", f.root, prompt), prompt.size());
  f.manager.reset();  // not closed before
}

TEST(PinTest, BadCallsAreRefused) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = Seeded(1, 1);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.manager->Pin("", f.root, prompt).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.manager->Pin(std::string(257, 'n'), f.root, prompt).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(f.manager->Pin("a", ChunkKey{}, prompt).status().code(), StatusCode::kNotFound);
  const std::vector<ObjectPart> bad = {{0, 5}};
  EXPECT_EQ(f.manager->Pin("a", f.root, prompt, bad).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.manager->Stats().pinned_names, 0u);
  EXPECT_EQ(*f.manager->Pin(std::string(256, 'n'), f.root, prompt), prompt.size());
  EXPECT_EQ(*f.manager->Pin("absent", f.root, Seeded(1, 9)), 0u);
  EXPECT_TRUE(f.manager->Unpin("absent"));
  EXPECT_FALSE(f.manager->Unpin(""));
}

}  // namespace
}  // namespace terrace
