// FrameStore: what is matched, protected and fetched.
#include <gtest/gtest.h>

#include <thread>

#include "tests/storage/frame_fixture.h"
#include "tests/support/fault_backend.h"

namespace terrace {
namespace {

StatusCode CodeOf(const Status& status) { return status.code(); }

TEST(FrameStoreTest, WhatWasPublishedIsMatchedAndFetchedFromTheHostTier) {
  FrameFixture fixture;
  fixture.with_disk = false;
  fixture.OpenStore();
  const std::vector<Token> prompt = TestTokens(3 * kTestChunk + 5);
  const std::vector<TestFrame> frames = fixture.Frames(prompt);
  EXPECT_EQ(fixture.MatchTokens(prompt), 0u);
  fixture.PutAll(frames);
  const PrefixMatch match = fixture.store->Match(fixture.Query(prompt));
  ASSERT_TRUE(match.status.ok());
  EXPECT_EQ(match.matched_tokens, prompt.size());
  EXPECT_TRUE(match.lease_token.empty());
  ASSERT_EQ(match.chunks.size(), frames.size());
  const std::thread::id here = std::this_thread::get_id();
  std::vector<FetchOp> ops;
  for (size_t i = 0; i < frames.size(); ++i) {
    EXPECT_TRUE(match.chunks[i].present);
    EXPECT_EQ(match.chunks[i].key, frames[i].id.key);
    EXPECT_EQ(match.chunks[i].frame_bytes, frames[i].bytes.size());
    ops.push_back({.id = frames[i].id});
  }
  bool is_done = false;
  fixture.store->Fetch(std::move(ops), [&](const std::vector<FetchResult>& results) {
    EXPECT_EQ(std::this_thread::get_id(), here);
    ASSERT_EQ(results.size(), frames.size());
    for (size_t i = 0; i < frames.size(); ++i) EXPECT_TRUE(FrameFixture::Holds(results[i], frames[i])) << i;
    is_done = true;
  });
  EXPECT_TRUE(is_done) << "all lies in the host tier";
  // An engine in this process finds the same.
  EXPECT_EQ(fixture.LoadAll(prompt), prompt.size());
}

TEST(FrameStoreTest, ASlowerTierIsReadVerifiedAndPromoted) {
  FrameFixture fixture;
  fixture.OpenStore();
  const std::vector<Token> prompt = TestTokens(4 * kTestChunk);
  const std::vector<TestFrame> frames = fixture.Frames(prompt);
  fixture.PutAll(frames);
  ASSERT_TRUE(fixture.store->Flush().ok());
  fixture.OpenStore();  // the host tier is empty now
  EXPECT_EQ(fixture.MatchTokens(prompt), prompt.size());
  EXPECT_EQ(fixture.platters->gets, 0u);
  std::vector<FetchResult> results = fixture.FetchFrames(frames);
  for (size_t i = 0; i < frames.size(); ++i) EXPECT_TRUE(FrameFixture::Holds(results[i], frames[i])) << i;
  EXPECT_EQ(fixture.platters->gets, frames.size());
  results = fixture.FetchFrames(frames);
  for (size_t i = 0; i < frames.size(); ++i) EXPECT_TRUE(FrameFixture::Holds(results[i], frames[i])) << i;
  EXPECT_EQ(fixture.platters->gets, frames.size()) << "it was promoted";
}

TEST(FrameStoreTest, AMissInABatchKeepsItsPlace) {
  FrameFixture fixture;
  fixture.OpenStore();
  const std::vector<TestFrame> frames = fixture.Frames(TestTokens(3 * kTestChunk));
  fixture.PutAll({frames[0], frames[1]});
  const std::vector<FetchResult> results =
      fixture.FetchAll({{.id = frames[2].id}, {.id = frames[0].id}, {.id = {}}, {.id = frames[1].id}});
  EXPECT_EQ(CodeOf(results[0].status), StatusCode::kNotFound);
  EXPECT_TRUE(FrameFixture::Holds(results[1], frames[0]));
  EXPECT_EQ(CodeOf(results[2].status), StatusCode::kNotFound);
  EXPECT_TRUE(FrameFixture::Holds(results[3], frames[1]));
  EXPECT_TRUE(fixture.FetchAll(std::vector<FetchOp>()).empty());
  // The same object twice at once.
  const std::vector<FetchResult> twice = fixture.FetchAll({{.id = frames[0].id}, {.id = frames[0].id}});
  EXPECT_TRUE(FrameFixture::Holds(twice[0], frames[0]));
  EXPECT_TRUE(FrameFixture::Holds(twice[1], frames[0]));
}

TEST(FrameStoreTest, WrongBytesOnDiskAreAMissAndDropped) {
  FrameFixture fixture;
  fixture.OpenStore();
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  const std::vector<TestFrame> frames = fixture.Frames(prompt);
  fixture.PutAll(frames);
  ASSERT_TRUE(fixture.store->Flush().ok());
  fixture.OpenStore();
  {
    std::lock_guard lock(fixture.platters->mutex);
    fixture.platters->objects.at(frames[0].id).frame[50'000] ^= std::byte{1};
  }
  EXPECT_EQ(CodeOf(fixture.FetchOne(frames[0].id).status), StatusCode::kNotFound);
  EXPECT_EQ(fixture.manager->Stats().corrupt_objects, 1u);
  EXPECT_EQ(fixture.MatchTokens(prompt), 0u);
  EXPECT_EQ(fixture.store->Has({{frames[0].id}}), std::vector<bool>{false});
}

// Another save of another object lies under its name: a right frame, and not this one.
TEST(FrameStoreTest, ASwappedFrameOnDiskIsAMiss) {
  FrameFixture fixture;
  fixture.OpenStore();
  const std::vector<TestFrame> frames = fixture.Frames(TestTokens(2 * kTestChunk));
  fixture.PutAll(frames);
  ASSERT_TRUE(fixture.store->Flush().ok());
  fixture.OpenStore();
  {
    std::lock_guard lock(fixture.platters->mutex);
    std::swap(fixture.platters->objects.at(frames[0].id).frame,
              fixture.platters->objects.at(frames[1].id).frame);
  }
  EXPECT_EQ(CodeOf(fixture.FetchOne(frames[0].id).status), StatusCode::kNotFound);
  EXPECT_EQ(fixture.manager->Stats().corrupt_objects, 1u);
}

TEST(FrameStoreTest, ADeviceErrorIsNotAMiss) {
  FrameFixture fixture;
  FaultBackend* faults = nullptr;
  fixture.wrap_disk = [&](std::unique_ptr<Backend> disk) {
    auto wrapped = std::make_unique<FaultBackend>(std::move(disk), FaultOptions{});
    faults = wrapped.get();
    return wrapped;
  };
  fixture.with_host = false;
  fixture.OpenStore();
  const std::vector<TestFrame> frames = fixture.Frames(TestTokens(kTestChunk));
  fixture.PutAll(frames);
  ASSERT_TRUE(fixture.store->Flush().ok());
  FaultOptions failing;
  failing.get.error = 1;
  faults->SetOptions(failing);
  EXPECT_EQ(CodeOf(fixture.FetchOne(frames[0].id).status), StatusCode::kUnavailable);
  faults->SetOptions({});
  EXPECT_TRUE(FrameFixture::Holds(fixture.FetchOne(frames[0].id), frames[0]));
}

TEST(FrameStoreTest, AMatchEndsInsideAChunkWhereItMayBeCut) {
  for (const Cut cut : {Cut::kWhole, Cut::kNone}) {
    SCOPED_TRACE(static_cast<int>(cut));
    FrameFixture fixture;
    fixture.OpenStore(TestSpec(cut));
    const std::vector<Token> stored = TestTokens(2 * kTestChunk);
    fixture.PutAll(fixture.Frames(stored));
    std::vector<Token> asked = stored;
    asked[kTestChunk + 7] += 1;
    const PrefixMatch match = fixture.store->Match(fixture.Query(asked));
    ASSERT_TRUE(match.status.ok());
    EXPECT_EQ(match.matched_tokens, cut == Cut::kNone ? kTestChunk : kTestChunk + 7);
    ASSERT_EQ(match.chunks.size(), cut == Cut::kNone ? 1u : 2u);
    if (cut == Cut::kWhole) {
      EXPECT_EQ(match.chunks[1].key, fixture.Frames(stored)[1].id.key);
    }
    // From the second chunk on, of which the first need not be asked for.
    EXPECT_EQ(fixture.MatchTokens(stored, kTestChunk), kTestChunk);
    EXPECT_EQ(fixture.MatchTokens(asked, kTestChunk), cut == Cut::kNone ? 0u : 7u);
  }
}

TEST(FrameStoreTest, BadQueriesAreRefused) {
  FrameFixture fixture;
  fixture.OpenStore();
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  fixture.PutAll(fixture.Frames(prompt));
  const auto code_of = [&](const std::function<void(PrefixQuery&)>& change) {
    PrefixQuery query = fixture.Query(prompt);
    change(query);
    const PrefixMatch match = fixture.store->Match(query);
    EXPECT_TRUE(match.chunks.empty() && match.matched_tokens == 0);
    return match.status.code();
  };
  EXPECT_EQ(code_of([](PrefixQuery& q) { q.tokens_per_chunk = 8; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](PrefixQuery& q) { q.first_token = 3; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](PrefixQuery& q) { q.keys.resize(3); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](PrefixQuery& q) { q.parts = {{.group = 1}}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](PrefixQuery& q) {
              q.content.items = {{99, {std::byte{1}}}};
            }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](PrefixQuery& q) { q.root.bytes[0] ^= std::byte{1}; }), StatusCode::kOk)
      << "an unknown root matches nothing";
}

TEST(FrameStoreTest, WindowsAndStatesMatchByTheirRule) {
  FrameFixture fixture;
  KvSpec spec = TestSpec(Cut::kNone, {GroupSpec{.rule = Retention::kWindow, .window_tokens = kTestChunk},
                                      GroupSpec{.rule = Retention::kState}});
  fixture.OpenStore(spec);
  const std::vector<Token> prompt = TestTokens(5 * kTestChunk);
  fixture.PutAll(fixture.Frames(prompt, 0, kTestPayload, {0, 0}));
  // The state of the fourth chunk alone.
  fixture.PutAll({fixture.Frames(prompt, 0, kTestPayload, {1, 0})[3]});
  const PrefixMatch match = fixture.store->Match(fixture.Query(prompt));
  ASSERT_TRUE(match.status.ok());
  EXPECT_EQ(match.matched_tokens, 4 * kTestChunk);
  ASSERT_EQ(match.chunks.size(), 8u);
  EXPECT_TRUE(match.chunks[4].present && match.chunks[6].present) << "the window's last two";
  EXPECT_TRUE(match.chunks[7].present) << "the boundary's state";
  EXPECT_FALSE(match.chunks[5].present);
}

TEST(FrameStoreTest, ALeaseProtectsAgainstEvictionUntilItIsReleasedOrLapses) {
  FrameFixture fixture;
  fixture.with_disk = false;
  fixture.options.pool_bytes = 4 << 20;
  fixture.OpenStore();
  const std::vector<Token> kept = TestTokens(2 * kTestChunk);
  fixture.PutAll(fixture.Frames(kept));
  const auto flood = [&](Token seed) {
    for (Token s = seed; s < seed + 60; ++s) fixture.PutAll(fixture.Frames(TestTokens(kTestChunk, s)));
  };
  PrefixQuery query = fixture.Query(kept);
  query.lease = std::chrono::seconds(10);
  const PrefixMatch first = fixture.store->Match(query);
  const PrefixMatch second = fixture.store->Match(query);
  ASSERT_FALSE(first.lease_token.empty() || second.lease_token.empty());
  EXPECT_NE(first.lease_token, second.lease_token);
  flood(100);
  EXPECT_EQ(fixture.MatchTokens(kept), kept.size());
  EXPECT_TRUE(fixture.store->Release(first.lease_token));
  EXPECT_FALSE(fixture.store->Release(first.lease_token));
  EXPECT_FALSE(fixture.store->Release("guessed"));
  flood(200);
  EXPECT_EQ(fixture.MatchTokens(kept), kept.size()) << "the other lease protects it";
  fixture.clock.Advance(std::chrono::seconds(11));
  EXPECT_FALSE(fixture.store->Release(second.lease_token)) << "it has lapsed";
  flood(300);
  EXPECT_EQ(fixture.MatchTokens(kept), 0u);
  EXPECT_EQ(fixture.manager->Stats().active_leases, 0u);
}

TEST(FrameStoreTest, AboveTheBudgetAMatchIsAHint) {
  FrameFixture fixture;
  fixture.options.lease_budget = 0.01;
  fixture.OpenStore();
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  fixture.PutAll(fixture.Frames(prompt));
  PrefixQuery query = fixture.Query(prompt);
  query.lease = std::chrono::seconds(10);
  const PrefixMatch match = fixture.store->Match(query);
  EXPECT_EQ(match.matched_tokens, prompt.size());
  EXPECT_TRUE(match.lease_token.empty());
  EXPECT_EQ(fixture.manager->Stats().active_leases, 0u);
}

TEST(FrameStoreTest, PinsProtectByName) {
  FrameFixture fixture;
  fixture.with_disk = false;
  fixture.options.pool_bytes = 4 << 20;
  fixture.OpenStore();
  const std::vector<Token> kept = TestTokens(2 * kTestChunk);
  fixture.PutAll(fixture.Frames(kept));
  const Result<uint64_t> pinned = fixture.store->Pin("name", fixture.Query(kept));
  ASSERT_TRUE(pinned.ok()) << pinned.status().ToString();
  EXPECT_EQ(*pinned, kept.size());
  for (Token s = 100; s < 160; ++s) fixture.PutAll(fixture.Frames(TestTokens(kTestChunk, s)));
  EXPECT_EQ(fixture.MatchTokens(kept), kept.size());
  PrefixQuery unknown = fixture.Query(kept);
  unknown.root.bytes[0] ^= std::byte{1};
  EXPECT_EQ(CodeOf(fixture.store->Pin("other", unknown).status()), StatusCode::kNotFound);
  EXPECT_EQ(CodeOf(fixture.store->Pin("", fixture.Query(kept)).status()), StatusCode::kInvalidArgument);
  EXPECT_TRUE(fixture.store->Unpin("name"));
  EXPECT_FALSE(fixture.store->Unpin("name"));
  for (Token s = 200; s < 260; ++s) fixture.PutAll(fixture.Frames(TestTokens(kTestChunk, s)));
  EXPECT_EQ(fixture.MatchTokens(kept), 0u);
}

TEST(FrameStoreTest, APinAboveTheBudgetIsRefused) {
  FrameFixture fixture;
  fixture.options.pin_budget = 0.01;
  fixture.OpenStore();
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  fixture.PutAll(fixture.Frames(prompt));
  EXPECT_EQ(CodeOf(fixture.store->Pin("name", fixture.Query(prompt)).status()),
            StatusCode::kResourceExhausted);
}

TEST(FrameStoreTest, AFetchWaitsForRoomAndEndsAtItsDeadline) {
  FrameFixture fixture;
  fixture.with_host = false;
  fixture.options.pool_bytes = 1 << 20;
  fixture.OpenStore();
  const TestFrame frame = fixture.Frames(TestTokens(kTestChunk))[0];
  ASSERT_TRUE(fixture.Put(frame).ok());
  ASSERT_TRUE(fixture.store->Flush().ok());
  // All of the pool is held.
  std::vector<std::shared_ptr<ArrivingFrame>> held;
  const auto hold_all = [&] {
    while (true) {
      Result<std::shared_ptr<ArrivingFrame>> one = fixture.store->Allocate(60 << 10);
      if (!one.ok()) break;
      held.push_back(*one);
    }
  };
  // The loads' reserve is taken by frames that were fetched.
  std::vector<FetchResult> fetched;
  hold_all();
  const uint64_t buffer_bytes = RoundUp(kTierPageBytes + frame.bytes.size(), 64 << 10);
  while (fixture.manager->Stats().pool_used_bytes + buffer_bytes <= fixture.options.pool_bytes) {
    fetched.push_back(fixture.FetchOne(frame.id));
    ASSERT_TRUE(fetched.back().status.ok()) << fetched.back().status.ToString();
  }
  ASSERT_FALSE(fetched.empty());
  std::mutex mutex;
  std::condition_variable arrived;
  std::vector<FetchResult> late;
  const auto collect = [&](std::vector<FetchResult> results) {
    std::lock_guard lock(mutex);
    late.push_back(std::move(results.at(0)));
    arrived.notify_all();
  };
  const auto wait_for = [&](size_t n) {
    std::unique_lock lock(mutex);
    return arrived.wait_for(lock, std::chrono::seconds(60), [&] { return late.size() == n; });
  };
  fixture.store->Fetch({{.id = frame.id}}, collect);
  {
    std::lock_guard lock(mutex);
    EXPECT_TRUE(late.empty()) << "it waits";
  }
  fetched.pop_back();
  ASSERT_TRUE(wait_for(1));
  EXPECT_TRUE(FrameFixture::Holds(late[0], frame));
  // One that is cancelled, and one whose deadline comes.
  auto cancel = std::make_shared<std::atomic<bool>>(false);
  fixture.store->Fetch({{.id = frame.id, .cancel = cancel}}, collect);
  *cancel = true;
  ASSERT_TRUE(wait_for(2));
  EXPECT_EQ(CodeOf(late[1].status), StatusCode::kCancelled);
  fixture.store->Fetch({{.id = frame.id}}, collect);
  fixture.clock.Advance(fixture.options.io_deadline);
  ASSERT_TRUE(wait_for(3));
  EXPECT_EQ(CodeOf(late[2].status), StatusCode::kResourceExhausted);
  // And one that waits while the manager is closed.
  fixture.store->Fetch({{.id = frame.id}}, collect);
  ASSERT_TRUE(fixture.manager->Close().ok());
  ASSERT_TRUE(wait_for(4));
  EXPECT_EQ(CodeOf(late[3].status), StatusCode::kFailedPrecondition);
}

TEST(FrameStoreTest, ABatchThatHoldsHalfThePoolDoesNotWaitForItself) {
  FrameFixture fixture;
  fixture.with_host = false;
  fixture.options.pool_bytes = 1 << 20;
  fixture.OpenStore();
  const std::vector<TestFrame> frames = fixture.Frames(TestTokens(12 * kTestChunk));
  for (const TestFrame& frame : frames) {
    ASSERT_TRUE(fixture.Put(frame).ok());
    ASSERT_TRUE(fixture.store->Flush().ok());
  }
  const std::vector<FetchResult> results = fixture.FetchFrames(frames);  // the clock stands still
  size_t served = 0;
  for (size_t i = 0; i < frames.size(); ++i) {
    if (results[i].status.ok()) {
      EXPECT_TRUE(FrameFixture::Holds(results[i], frames[i]));
      ++served;
    } else {
      EXPECT_EQ(CodeOf(results[i].status), StatusCode::kResourceExhausted);
    }
  }
  EXPECT_GT(served, 0u);
  EXPECT_LT(served, frames.size());
}

}  // namespace
}  // namespace terrace
