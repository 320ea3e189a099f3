// What hangs on a prefix that only a remote tier has: stores, where they are placed, windows and states.
#include <gtest/gtest.h>

#include "terrace/token_hasher.h"
#include "tests/support/remote_fixture.h"

namespace terrace {
namespace {

std::vector<Token> First(const std::vector<Token>& tokens, size_t n) {
  return {tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(n)};
}

std::vector<ChunkKey> KeysOf(const ChunkKey& root, const std::vector<Token>& prompt) {
  TokenHasher hasher(root, kTestChunk);
  EXPECT_TRUE(hasher.Append(TokenView(prompt)).ok());
  return {hasher.full_keys().begin(), hasher.full_keys().end()};
}

Status StoreRest(RemoteFixture& fixture, const std::vector<Token>& prompt, uint64_t begin) {
  Status status;
  StorePrompt(*fixture.manager, fixture.root, prompt, {begin, prompt.size()}, fixture.Sizes(), {}, &status);
  EXPECT_TRUE(fixture.manager->Flush().ok());
  return status;
}

TEST(RemotePrefixTest, AStoreGoesOnWhereARemoteMatchEnded) {
  RemoteFixture fixture;
  fixture.with_host = false;
  const std::vector<Token> prompt = TestTokens(4 * kTestChunk);
  fixture.Seed(First(prompt, 3 * kTestChunk));
  EXPECT_EQ(StoreRest(fixture, prompt, 3 * kTestChunk).code(), StatusCode::kFailedPrecondition)
      << "nobody has said yet that the prefix is there";
  {
    const Lease lease = fixture.Look(prompt);
    ASSERT_EQ(lease.matched_tokens(), 3 * kTestChunk);
    EXPECT_EQ(fixture.Load(lease).loaded_tokens, 3 * kTestChunk);
  }
  ASSERT_TRUE(StoreRest(fixture, prompt, 3 * kTestChunk).ok());
  EXPECT_EQ(fixture.shelf->num_objects(), 4u);
  const std::vector<ChunkKey> keys = KeysOf(fixture.root, prompt);
  {
    std::lock_guard lock(fixture.shelf->mutex);
    EXPECT_EQ(fixture.shelf->objects.at({keys[3], {}}).meta.run_key, keys[0]);
  }
  EXPECT_EQ(fixture.Load(fixture.Look(prompt)).loaded_tokens, prompt.size());
}

TEST(RemotePrefixTest, WhatTheRemoteTierLostIsNothingToHangOn) {
  RemoteFixture fixture;
  fixture.with_host = false;
  const std::vector<Token> prompt = TestTokens(3 * kTestChunk);
  fixture.Seed(First(prompt, 2 * kTestChunk));
  const Lease lease = fixture.Look(prompt);
  ASSERT_EQ(lease.matched_tokens(), 2 * kTestChunk);
  fixture.shelf->Set([](MatchShelf& shelf) { shelf.objects.clear(); });
  EXPECT_EQ(fixture.Load(lease).loaded_tokens, 0u);
  // The load ended at the first chunk: the others were not asked for, or are known to be gone too.
  const std::vector<Token> second = First(prompt, 2 * kTestChunk);
  EXPECT_EQ(StoreRest(fixture, second, kTestChunk).code(), StatusCode::kFailedPrecondition);
}

TEST(RemotePrefixTest, AnErasedPrefixIsNothingToHangOn) {
  RemoteFixture fixture;
  fixture.with_host = false;
  const std::vector<Token> prompt = TestTokens(3 * kTestChunk);
  const std::vector<Token> seeded = First(prompt, 2 * kTestChunk);
  for (const bool clear : {false, true}) {
    fixture.Seed(seeded);
    ASSERT_EQ(fixture.Look(prompt).matched_tokens(), 2 * kTestChunk);
    if (clear) {
      ASSERT_TRUE(fixture.manager->Clear().ok());
    } else {
      const std::vector<ChunkKey> keys = KeysOf(fixture.root, seeded);
      ASSERT_TRUE(fixture.manager->Erase(keys).ok());
    }
    EXPECT_EQ(StoreRest(fixture, prompt, 2 * kTestChunk).code(), StatusCode::kFailedPrecondition);
  }
}

TEST(RemotePrefixTest, QueriesAndPutsNameTheRun) {
  RemoteFixture fixture;
  fixture.options.pool_bytes = 16 << 20;
  const std::vector<Token> prompt = TestTokens((kRunChunks + 3) * kTestChunk);
  fixture.Open();
  const std::vector<ChunkKey> keys = KeysOf(fixture.root, prompt);
  const auto last_query = [&] {
    std::lock_guard lock(fixture.shelf->mutex);
    return fixture.shelf->queries.back();
  };
  fixture.Look(prompt);
  EXPECT_EQ(last_query().run_key, ChunkKey{}) << "the run begins with the query";
  EXPECT_EQ(last_query().division, 0u);
  fixture.StoreNow(First(prompt, kTestChunk));
  fixture.Look(prompt);
  EXPECT_EQ(last_query().first_token, kTestChunk);
  EXPECT_EQ(last_query().run_key, keys[0]);
  fixture.StoreNow(First(prompt, kRunChunks * kTestChunk));
  fixture.Look(prompt);
  EXPECT_EQ(last_query().run_key, ChunkKey{}) << "the next run begins here";
  fixture.StoreNow(First(prompt, (kRunChunks + 1) * kTestChunk));
  fixture.Look(prompt);
  EXPECT_EQ(last_query().run_key, keys[kRunChunks]);
  fixture.StoreNow(prompt);
  std::lock_guard lock(fixture.shelf->mutex);
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(fixture.shelf->objects.at({keys[i], {}}).meta.run_key, keys[RunBegin(i)]) << i;
  }
}

// The second run's first chunk was seen remotely, and in the middle of its run: who stores the next chunk
// knows where it belongs.
TEST(RemotePrefixTest, TheRunOfWhatWasSeenIsRemembered) {
  RemoteFixture fixture;
  fixture.with_host = false;
  fixture.options.pool_bytes = 16 << 20;
  const std::vector<Token> prompt = TestTokens((kRunChunks + 3) * kTestChunk);
  fixture.Seed(First(prompt, (kRunChunks + 2) * kTestChunk));
  ASSERT_EQ(fixture.Look(prompt).matched_tokens(), (kRunChunks + 2) * kTestChunk);
  ASSERT_TRUE(StoreRest(fixture, prompt, (kRunChunks + 2) * kTestChunk).ok());
  const std::vector<ChunkKey> keys = KeysOf(fixture.root, prompt);
  std::lock_guard lock(fixture.shelf->mutex);
  EXPECT_EQ(fixture.shelf->objects.at({keys[kRunChunks + 2], {}}).meta.run_key, keys[kRunChunks]);
}

// Of windows and states a remote tier need not have what no rule asks for.
TEST(RemotePrefixTest, WindowsAndStatesNeedWhatTheirRuleSays) {
  RemoteFixture fixture;
  fixture.spec = TestSpec(Cut::kNone, {GroupSpec{.rule = Retention::kWindow, .window_tokens = kTestChunk},
                                       GroupSpec{.rule = Retention::kState}});
  const std::vector<Token> prompt = TestTokens(4 * kTestChunk);
  fixture.Open();
  const std::vector<ChunkKey> keys = KeysOf(fixture.root, prompt);
  StorePrompt(*fixture.manager, fixture.root, prompt, {0, prompt.size()}, fixture.Sizes());
  ASSERT_TRUE(fixture.manager->Flush().ok());
  fixture.Open();
  // An answer as a store gives it that knows the rules: nothing of the first two chunks.
  bool loses_boundary = false;
  fixture.shelf->Set([&](MatchShelf& shelf) {
    shelf.lie = [&](PrefixMatch& match) {
      for (size_t i = 0; i < match.chunks.size(); ++i) {
        const bool is_state = i % 2 == 1;
        const size_t chunk = i / 2;
        if (chunk < 2 || (is_state && chunk < 3)) match.chunks[i].present = false;
        if (loses_boundary && chunk == 3) match.chunks[i].present = false;
      }
    };
  });
  {
    const Lease lease = fixture.Look(prompt);
    EXPECT_EQ(lease.matched_tokens(), prompt.size());
    EXPECT_EQ(lease.num_objects(), 3u) << "two of the window, one state";
  }
  fixture.Open();
  loses_boundary = true;
  EXPECT_EQ(fixture.Look(prompt).matched_tokens(), 0u);
}

}  // namespace
}  // namespace terrace
