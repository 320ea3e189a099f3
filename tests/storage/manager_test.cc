// StorageManager: what is stored is what is found and loaded; what is erased, lost or wrong is a miss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "terrace/token_hasher.h"
#include "tests/support/manager_fixture.h"

namespace terrace {
namespace {

std::vector<std::byte> ItemBytes(std::string_view text) {
  std::vector<std::byte> out;
  for (const char c : text) out.push_back(static_cast<std::byte>(c));
  return out;
}

TEST(ManagerTest, StoredPrefixIsFoundAndLoadedFromHost) {
  ManagerFixture f;
  f.with_disk = false;
  f.Open();
  const std::vector<Token> prompt = TestTokens(4 * kTestChunk);
  EXPECT_EQ(f.Match(prompt), 0u);
  EXPECT_EQ(f.Store(prompt), 4u);
  ASSERT_TRUE(f.manager->Flush().ok());
  Result<Lease> lease = f.manager->Lookup(f.root, prompt);
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(lease->matched_tokens(), 4 * kTestChunk);
  EXPECT_EQ(lease->host_tokens(), 4 * kTestChunk);
  EXPECT_EQ(lease->num_objects(), 4u);
  EXPECT_TRUE(lease->is_protected());
  LoadReport report;
  EXPECT_EQ(f.LoadAll(prompt, {}, &report), 4 * kTestChunk);
  EXPECT_TRUE(report.status.ok());
  EXPECT_EQ(report.loaded_objects, 4u);
  EXPECT_EQ(report.recompute_from, 4 * kTestChunk);
  // Another prompt with the same first two chunks, and one that differs in the first token.
  std::vector<Token> other = prompt;
  other[2 * kTestChunk + 3] += 1;
  EXPECT_EQ(f.Match(other), 2 * kTestChunk + 3);
  other[0] += 1;
  EXPECT_EQ(f.Match(other), 0u);
  EXPECT_EQ(f.Store(prompt), 0u) << "present is not stored twice";
}

TEST(ManagerTest, SurvivesReopenAndIsPromoted) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = TestTokens(5 * kTestChunk + 3);
  EXPECT_EQ(f.Store(prompt), 6u);
  ASSERT_TRUE(f.manager->Close().ok());
  ASSERT_TRUE(f.manager->Close().ok()) << "safe to call twice";
  EXPECT_EQ(f.manager->Lookup(f.root, prompt).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(f.platters->objects.size(), 6u);
  f.Open();
  EXPECT_EQ(f.manager->Lookup(f.root, prompt)->host_tokens(), 0u);
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
  EXPECT_EQ(f.manager->Stats().tiers[1].hits, 6u);
  EXPECT_EQ(f.manager->Lookup(f.root, prompt)->host_tokens(), prompt.size());
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
  EXPECT_EQ(f.manager->Stats().tiers[0].hits, 6u);
  EXPECT_EQ(f.manager->Stats().tiers[1].hits, 6u) << "read twice";
}

TEST(ManagerTest, MatchInsideAChunkFollowsTheCut) {
  for (const Cut cut : {Cut::kWhole, Cut::kNone}) {
    ManagerFixture f;
    f.Open(TestSpec(cut));
    const std::vector<Token> stored = TestTokens(2 * kTestChunk + 10);
    f.Store(stored);
    ASSERT_TRUE(f.manager->Flush().ok());
    std::vector<Token> longer = stored;
    longer.resize(3 * kTestChunk, 5);
    EXPECT_EQ(f.Match(longer), 2 * kTestChunk + 10) << "a whole tail counts under each cut";
    longer[2 * kTestChunk + 4] += 1;
    EXPECT_EQ(f.Match(longer), cut == Cut::kWhole ? 2 * kTestChunk + 4 : 2 * kTestChunk);
    // An engine that must compute one token.
    EXPECT_EQ(f.Match(stored, stored.size() - 1), cut == Cut::kWhole ? stored.size() - 1 : 2 * kTestChunk);
    EXPECT_EQ(f.Match(stored, 2 * kTestChunk - 1), cut == Cut::kWhole ? 2 * kTestChunk - 1 : kTestChunk);
    if (cut == Cut::kWhole) {
      Result<Lease> lease = f.manager->Lookup(f.root, longer);
      LoadHandle handle = f.manager->Load(*lease, {2 * kTestChunk, lease->matched_tokens()});
      Result<std::optional<LeasedChunk>> chunk = handle.Next();
      ASSERT_TRUE(chunk.ok() && chunk->has_value());
      EXPECT_EQ((*chunk)->payload_tokens().end, 2 * kTestChunk + 10);
      EXPECT_EQ((*chunk)->matched_tokens().end, 2 * kTestChunk + 4);
      EXPECT_EQ((*chunk)->chunk_index(), 2u);
      EXPECT_TRUE(PayloadIsRight(**chunk));
    }
  }
}

TEST(ManagerTest, ItemsAreIdentity) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> tokens = TestTokens(2 * kTestChunk);
  const std::vector<Item> cat = {{5, ItemBytes("cat")}, {20, ItemBytes("x")}};
  const std::vector<Item> dog = {{5, ItemBytes("dog")}, {20, ItemBytes("x")}};
  f.Store({tokens, cat});
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.Match({tokens, cat}), 2 * kTestChunk);
  EXPECT_EQ(f.Match({tokens, dog}), 5u) << "only what stands before the image is shared";
  EXPECT_EQ(f.Match(tokens), 5u);
  f.Open();
  EXPECT_EQ(f.Match({tokens, cat}), 2 * kTestChunk);
  EXPECT_EQ(f.Match({tokens, dog}), 5u) << "after a restart";
  EXPECT_FALSE(f.manager->Lookup(f.root, {tokens, std::vector<Item>{{99, ItemBytes("x")}}}).ok());
}

TEST(ManagerTest, RootsKeepModelsAdaptersAndSaltsApart) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Flush().ok());
  const Adapter lora{TokenHasher::KeyOf({}, {}), 0.5f};
  KvSpec other = TestSpec();
  other.model_revision = "2";
  const ChunkKey same = *f.manager->Root(TestSpec());
  for (const ChunkKey& root : {*f.manager->Root(other), *f.manager->Root(TestSpec(), {&lora, 1}),
                               *f.manager->Root(TestSpec(), {}, "tenant")}) {
    EXPECT_NE(root, same);
    EXPECT_EQ(f.manager->Lookup(root, prompt)->matched_tokens(), 0u);
  }
  EXPECT_EQ(f.manager->Lookup(same, prompt)->matched_tokens(), 2 * kTestChunk);
  EXPECT_EQ(f.manager->Lookup(ChunkKey{}, prompt).status().code(), StatusCode::kNotFound);
}

TEST(ManagerTest, AHoleStopsAStore) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = TestTokens(3 * kTestChunk);
  Status status;
  EXPECT_EQ(f.Store(prompt, kTestChunk, {}, &status), 0u);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(f.manager->Stats().index_entries, 0u);
}

TEST(ManagerTest, PreparedIsPresentToOthersUntilAbandoned) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = TestTokens(kTestChunk);
  const auto sizes = [](TokenRange, ObjectPart) { return kTestPayload; };
  Result<PrepareResult> first = f.manager->Prepare(f.root, prompt, {0, kTestChunk}, sizes);
  ASSERT_TRUE(first.ok() && first->chunks.size() == 1 && first->chunks[0].writable);
  EXPECT_EQ(f.Match(prompt), 0u) << "visible before it was committed";
  Result<PrepareResult> second = f.manager->Prepare(f.root, prompt, {0, kTestChunk}, sizes);
  EXPECT_TRUE(second->chunks[0].present);
  first->chunks.clear();
  EXPECT_EQ(f.manager->Stats().index_entries, 0u);
  EXPECT_EQ(f.manager->Stats().pool_used_bytes, 0u);
  EXPECT_EQ(f.Store(prompt), 1u);
  // A size that cannot be had ends the Prepare and leaves nothing behind.
  Result<PrepareResult> failed = f.manager->Prepare(
      f.root, TestTokens(kTestChunk, 9), {0, kTestChunk},
      [](TokenRange, ObjectPart) -> Result<uint64_t> { return UnavailableError("engine"); });
  EXPECT_EQ(failed->status.code(), StatusCode::kUnavailable);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.manager->Stats().index_entries, 1u);
}

TEST(ManagerTest, PoolOfZeroAndOfOneChunk) {
  const std::vector<Token> prompt = TestTokens(3 * kTestChunk);
  {
    ManagerFixture f;
    f.options.pool_bytes = 0;
    f.Open();
    Status status;
    EXPECT_EQ(f.Store(prompt, 0, {}, &status), 0u);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(f.Match(prompt), 0u);
  }
  ManagerFixture f;
  f.options.pool_bytes = 128 * 1024;  // one frame
  f.with_disk = false;
  f.Open();
  Status status;
  EXPECT_EQ(f.Store(prompt, 0, {}, &status), 1u);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << "a parent is never evicted for its child";
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.LoadAll(prompt), kTestChunk);
  // With a disk below, every chunk passes through the one buffer.
  ManagerFixture g;
  g.options.pool_bytes = 128 * 1024;
  g.Open();
  for (uint64_t end = kTestChunk; end <= prompt.size(); end += kTestChunk) {
    EXPECT_EQ(g.Store(std::span(prompt).first(end), end - kTestChunk), 1u);
    ASSERT_TRUE(g.manager->Flush().ok());
  }
  EXPECT_EQ(g.LoadAll(prompt), prompt.size());
  EXPECT_LE(g.manager->Stats().pool_used_bytes, 128u * 1024);
}

TEST(ManagerTest, TenTimesTheCapacityLeavesTheLastAndNothingUnreachable) {
  ManagerFixture f;
  f.options.pool_bytes = 2 << 20;
  f.disk_bytes = 30 * (f.Frame() + kTierPageBytes);
  f.Open();
  for (Token seed = 1; seed <= 60; ++seed) {
    EXPECT_EQ(f.Store(TestTokens(5 * kTestChunk, seed)), 5u);
    ASSERT_TRUE(f.manager->Flush().ok());
    EXPECT_EQ(f.LoadAll(TestTokens(5 * kTestChunk, seed)), 5 * kTestChunk) << seed;
  }
  EXPECT_LE(f.platters->max_used_bytes, f.disk_bytes);
  EXPECT_GE(f.platters->objects.size(), 25u);
  for (const auto& [id, object] : f.platters->objects) {
    if (object.meta.first_token == 0) continue;
    EXPECT_TRUE(f.platters->objects.contains({object.meta.parent, id.part})) << "unreachable";
  }
  f.Open();
  for (Token seed = 57; seed <= 60; ++seed)
    EXPECT_EQ(f.LoadAll(TestTokens(5 * kTestChunk, seed)), 5 * kTestChunk) << seed;
  EXPECT_EQ(f.Match(TestTokens(5 * kTestChunk, 1)), 0u);
}

TEST(ManagerTest, APrefixOfTwiceTheHostTierLoadsThroughTheWindow) {
  ManagerFixture f;
  f.options.pool_bytes = 10 * 128 * 1024;
  f.Open();
  const std::vector<Token> prompt = TestTokens(20 * kTestChunk);
  for (uint64_t end = kTestChunk; end <= prompt.size(); end += kTestChunk) {
    ASSERT_EQ(f.Store(std::span(prompt).first(end), end - kTestChunk), 1u) << end;
    ASSERT_TRUE(f.manager->Flush().ok());
  }
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
  std::vector<std::thread> threads;
  std::atomic<int> whole{0};
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) whole += f.LoadAll(prompt) == prompt.size();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(whole.load(), 40);
}

TEST(ManagerTest, AFlippedBitOnDiskIsAMissAndDropsWhatHangsBelow) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = TestTokens(4 * kTestChunk);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Flush().ok());
  TokenHasher hasher(f.root, kTestChunk);
  ASSERT_TRUE(hasher.Append(prompt).ok());
  const ObjectId second{hasher.full_keys()[1], {}};
  for (const size_t at : {size_t{0}, size_t{70}, size_t{4096}, size_t{4096 + kTestPayload - 1}}) {
    f.Open();
    f.platters->objects.at(second).frame[at] ^= std::byte{4};
    LoadReport report;
    EXPECT_EQ(f.LoadAll(prompt, {}, &report), kTestChunk);
    EXPECT_EQ(report.recompute_from, kTestChunk);
    EXPECT_EQ(report.status.code(), StatusCode::kDataLoss);
    EXPECT_EQ(f.manager->Stats().corrupt_objects, 1u);
    EXPECT_EQ(f.Match(prompt), kTestChunk);
    EXPECT_FALSE(f.platters->objects.contains(second));
    // Computed again, stored again, right again.
    EXPECT_GE(f.Store(prompt), 1u);
    ASSERT_TRUE(f.manager->Flush().ok());
    EXPECT_EQ(f.LoadAll(prompt), prompt.size());
  }
}

TEST(ManagerTest, AValidFrameInAnothersPlaceIsAMiss) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> a = TestTokens(kTestChunk, 1);
  const std::vector<Token> b = TestTokens(kTestChunk, 2);
  f.Store(a);
  f.Store(b);
  ASSERT_TRUE(f.manager->Close().ok());
  std::vector<MemoryPlatters::Object*> objects;
  for (auto& [id, object] : f.platters->objects) objects.push_back(&object);
  ASSERT_EQ(objects.size(), 2u);
  std::swap(objects[0]->frame, objects[1]->frame);
  f.Open();
  EXPECT_EQ(f.Match(a), kTestChunk);
  EXPECT_EQ(f.LoadAll(a), 0u);
  EXPECT_EQ(f.LoadAll(b), 0u);
  EXPECT_EQ(f.manager->Stats().corrupt_objects, 2u);
}

TEST(ManagerTest, ARecordThatNamesOtherTokensThanItsKeyIsDroppedAtOpen) {
  ManagerFixture f;
  f.Open();
  f.Store(TestTokens(kTestChunk));
  ASSERT_TRUE(f.manager->Close().ok());
  auto& [id, object] = *f.platters->objects.begin();
  auto content = std::make_shared<ChunkContent>(*object.meta.content);
  content->tokens[3] ^= 1;
  object.meta.content = content;
  f.Open();
  EXPECT_EQ(f.Match(content->tokens), 0u);
  EXPECT_EQ(f.manager->Stats().index_entries, 0u);
  EXPECT_EQ(f.manager->metrics().Value("terrace_manager_orphaned_records_total"), 1);
}

TEST(ManagerTest, EraseTakesTheSubtreeFromEveryTierAndItStaysGone) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = TestTokens(4 * kTestChunk);
  const std::vector<Token> other = TestTokens(2 * kTestChunk, 5);
  f.Store(prompt);
  f.Store(other);
  ASSERT_TRUE(f.manager->Flush().ok());
  TokenHasher hasher(f.root, kTestChunk);
  ASSERT_TRUE(hasher.Append(prompt).ok());
  Result<Lease> lease = f.manager->Lookup(f.root, prompt);
  Result<uint64_t> erased = f.manager->Erase(hasher.full_keys().subspan(1, 1));
  ASSERT_TRUE(erased.ok());
  EXPECT_EQ(*erased, 3u);
  EXPECT_EQ(f.Match(prompt), kTestChunk);
  EXPECT_EQ(f.Match(other), 2 * kTestChunk);
  // A lease does not bring it back: the load ends before it.
  LoadHandle handle = f.manager->Load(*lease, {0, 4 * kTestChunk});
  EXPECT_TRUE(handle.Next()->has_value());
  EXPECT_FALSE(handle.Next()->has_value());
  EXPECT_EQ(handle.report().recompute_from, kTestChunk);
  lease->Release();
  f.Open();
  EXPECT_EQ(f.Match(prompt), kTestChunk);
  EXPECT_EQ(f.Match(other), 2 * kTestChunk);
  EXPECT_EQ(f.Store(prompt), 3u);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
}

TEST(ManagerTest, EraseAndClearCatchWhatIsInFlight) {
  for (const bool clear : {false, true}) {
    ManagerFixture f;
    f.Open();
    ASSERT_TRUE(f.manager->Flush().ok());
    f.platters->holding_puts = true;
    const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
    f.Store(prompt);
    while (f.platters->num_held() < 2) std::this_thread::yield();
    EXPECT_EQ(f.Match(prompt), 2 * kTestChunk) << "in the host tier already";
    TokenHasher hasher(f.root, kTestChunk);
    ASSERT_TRUE(hasher.Append(prompt).ok());
    std::atomic<bool> returned{false};
    std::thread eraser([&] {
      if (clear) {
        EXPECT_TRUE(f.manager->Clear().ok());
      } else {
        EXPECT_EQ(*f.manager->Erase(hasher.full_keys().first(1)), 2u);
      }
      returned = true;
    });
    while (f.Match(prompt) != 0) std::this_thread::yield();
    EXPECT_FALSE(returned) << "a write in flight could still land";
    f.platters->ReleaseHeld();
    eraser.join();
    EXPECT_TRUE(f.platters->objects.empty());
    f.platters->holding_puts = false;
    f.Open();
    EXPECT_EQ(f.Match(prompt), 0u);
  }
}

TEST(ManagerTest, ALongerChunkSupersedesTheShorterOneInEachTier) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  f.Store(std::span(prompt).first(kTestChunk + 5));
  f.Store(std::span(prompt).first(kTestChunk + 9), kTestChunk);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.platters->objects.size(), 2u);
  f.Store(prompt, kTestChunk);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.platters->objects.size(), 2u);
  EXPECT_EQ(f.manager->Stats().index_entries, 2u);
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
  // Where nothing can be cut, each boundary is of use.
  ManagerFixture g;
  g.Open(TestSpec(Cut::kNone));
  g.Store(std::span(prompt).first(kTestChunk + 5));
  g.Store(prompt, kTestChunk);
  ASSERT_TRUE(g.manager->Flush().ok());
  EXPECT_EQ(g.platters->objects.size(), 3u);
}

TEST(ManagerTest, WriteBehindPublishesParentsFirstWhateverTheOrderOfCompletion) {
  ManagerFixture f;
  f.Open();
  ASSERT_TRUE(f.manager->Flush().ok());
  f.platters->holding_puts = true;
  const std::vector<Token> prompt = TestTokens(4 * kTestChunk);
  f.Store(prompt);
  while (f.platters->num_held() < 4) std::this_thread::yield();
  EXPECT_EQ(f.manager->Stats().tiers[1].objects, 0u);
  f.platters->ReleaseHeld(/*last_first=*/true);
  f.platters->holding_puts = false;
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.manager->Stats().tiers[1].objects, 4u);
}

TEST(ManagerTest, LeasesProtectUntilTheyLapse) {
  ManagerFixture f;
  f.options.pool_bytes = 10 * 128 * 1024;
  f.with_disk = false;
  f.Open();
  const std::vector<Token> kept = TestTokens(4 * kTestChunk, 1);
  f.Store(kept);
  ASSERT_TRUE(f.manager->Flush().ok());
  Result<Lease> lease = f.manager->Lookup(f.root, kept, {.request_id = 7});
  ASSERT_TRUE(lease->is_protected());
  for (Token seed = 2; seed < 10; ++seed) {
    f.Store(TestTokens(4 * kTestChunk, seed));
    ASSERT_TRUE(f.manager->Flush().ok());
  }
  EXPECT_EQ(f.Match(kept), 4 * kTestChunk);
  EXPECT_EQ(f.manager->Stats().active_leases, 1u);
  // The same request, grown: renewed. Other tokens under its id: released first.
  f.clock.Advance(std::chrono::seconds(20));
  std::vector<Token> grown = kept;
  grown.push_back(1);
  Result<Lease> renewed = f.manager->Lookup(f.root, grown, {.request_id = 7});
  EXPECT_TRUE(renewed->is_protected());
  EXPECT_FALSE(lease->is_protected());
  EXPECT_EQ(renewed->matched_tokens(), 4 * kTestChunk);
  f.clock.Advance(std::chrono::seconds(20));
  EXPECT_TRUE(renewed->is_protected());
  Result<Lease> other = f.manager->Lookup(f.root, TestTokens(kTestChunk, 77), {.request_id = 7});
  EXPECT_FALSE(renewed->is_protected());
  EXPECT_EQ(f.manager->Stats().active_leases, 0u);
  // After the deadline nothing is protected, and a load serves what is still there.
  Result<Lease> lapsed = f.manager->Lookup(f.root, kept);
  ASSERT_EQ(lapsed->matched_tokens(), 4 * kTestChunk);
  f.clock.Advance(std::chrono::seconds(31));
  EXPECT_FALSE(lapsed->is_protected());
  for (Token seed = 20; seed < 30; ++seed) {
    f.Store(TestTokens(4 * kTestChunk, seed));
    ASSERT_TRUE(f.manager->Flush().ok());
  }
  EXPECT_EQ(f.Match(kept), 0u);
  LoadHandle handle = f.manager->Load(*lapsed, {0, 4 * kTestChunk});
  EXPECT_FALSE(handle.Next()->has_value());
  EXPECT_EQ(handle.report().status.code(), StatusCode::kNotFound);
  EXPECT_EQ(handle.report().recompute_from, 0u);
}

TEST(ManagerTest, LeasesAboveTheBudgetAreHints) {
  ManagerFixture f;
  f.options.pool_bytes = 16 * 128 * 1024;
  f.Open();
  std::vector<Lease> leases;
  int protected_leases = 0;
  for (Token seed = 1; seed <= 3; ++seed) {
    f.Store(TestTokens(4 * kTestChunk, seed));
    ASSERT_TRUE(f.manager->Flush().ok());
    leases.push_back(*f.manager->Lookup(f.root, TestTokens(4 * kTestChunk, seed)));
    protected_leases += leases.back().is_protected();
  }
  EXPECT_EQ(protected_leases, 2) << "half of the pool is eight frames";
  EXPECT_EQ(f.manager->metrics().Value("terrace_manager_lease_hints_total"), 1);
  leases.clear();
  EXPECT_EQ(f.manager->Stats().active_leases, 0u);
}

TEST(ManagerTest, CallerMemoryGetsTheBytes) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = TestTokens(3 * kTestChunk);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Close().ok());
  f.Open();
  Result<Lease> lease = f.manager->Lookup(f.root, prompt);
  std::vector<std::vector<std::byte>> memory(3, std::vector<std::byte>(kTestPayload));
  std::vector<MutableBytes> spans(memory.begin(), memory.end());
  const LoadReport report = f.manager->Load(*lease, {0, prompt.size()}, {.memory = spans}).Wait();
  ASSERT_TRUE(report.status.ok()) << report.status.ToString();
  EXPECT_EQ(report.loaded_tokens, prompt.size());
  EXPECT_EQ(report.loaded_bytes, 3 * kTestPayload);
  TokenHasher hasher(f.root, kTestChunk);
  ASSERT_TRUE(hasher.Append(prompt).ok());
  for (size_t i = 0; i < 3; ++i) {
    const ObjectId id{hasher.full_keys()[i], {}};
    EXPECT_TRUE(ExpectedPayload(id).Equals(memory[i]));
  }
  spans.pop_back();
  EXPECT_EQ(f.manager->Load(*lease, {0, prompt.size()}, {.memory = spans}).Wait().status.code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(f.manager->Load(*lease, {3, prompt.size()}).report().status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.manager->Load(*lease, {0, prompt.size() + 1}).report().status.code(),
            StatusCode::kInvalidArgument);
}

TEST(ManagerTest, CancelledLoadReturnsItsBuffersWhenTheDeviceLetsGo) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = TestTokens(4 * kTestChunk);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Close().ok());
  f.Open();
  f.platters->holding_gets = true;
  {
    Result<Lease> lease = f.manager->Lookup(f.root, prompt);
    LoadHandle handle = f.manager->Load(*lease, {0, prompt.size()});
    EXPECT_EQ(f.platters->num_held(), 1u) << "four objects, one batch";
    EXPECT_EQ(handle.Next(std::chrono::steady_clock::now()).status().code(), StatusCode::kDeadlineExceeded);
    handle.Cancel();
    EXPECT_FALSE(handle.Next()->has_value()) << "the caller's part ends at once";
    EXPECT_EQ(handle.report().status.code(), StatusCode::kCancelled);
  }
  EXPECT_GT(f.manager->Stats().pool_used_bytes, 0u) << "the device may still write";
  f.platters->holding_gets = false;
  f.platters->ReleaseHeld();
  EXPECT_EQ(f.manager->Stats().pool_used_bytes, 0u);
  EXPECT_EQ(f.manager->Stats().active_leases, 0u);
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
}

TEST(ManagerTest, HandlesAndChunksMayOutliveTheManager) {
  ManagerFixture f;
  f.Open();
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Flush().ok());
  Result<Lease> lease = f.manager->Lookup(f.root, prompt);
  LoadHandle handle = f.manager->Load(*lease, {0, prompt.size()});
  std::optional<LeasedChunk> held = *handle.Next();
  Result<PrepareResult> prepared = f.manager->Prepare(f.root, TestTokens(kTestChunk, 9), {0, kTestChunk},
                                                      [](TokenRange, ObjectPart) { return kTestPayload; });
  ASSERT_TRUE(prepared->chunks[0].writable.has_value());
  f.manager.reset();
  EXPECT_TRUE(PayloadIsRight(*held));
  FillPayload(*prepared->chunks[0].writable);
  handle.Cancel();
}

TEST(ManagerTest, CloseWithWorkInFlightWritesItBehind) {
  ManagerFixture f;
  f.Open();
  f.Store(TestTokens(20 * kTestChunk));
  f.manager.reset();
  EXPECT_EQ(f.platters->objects.size(), 20u);
}

TEST(ManagerTest, CloseNamesADeadlineThatPasses) {
  ManagerFixture f;
  f.Open();
  ASSERT_TRUE(f.manager->Flush().ok());
  f.platters->holding_puts = true;
  f.Store(TestTokens(kTestChunk));
  while (f.platters->num_held() < 1) std::this_thread::yield();
  EXPECT_EQ(f.manager->Flush(std::chrono::steady_clock::now()).code(), StatusCode::kDeadlineExceeded);
  f.platters->holding_puts = false;
  EXPECT_EQ(f.manager->Close(std::chrono::steady_clock::now()).code(), StatusCode::kDeadlineExceeded);
}

TEST(ManagerTest, DiskAloneWorks) {
  ManagerFixture f;
  f.with_host = false;
  f.Open();
  const std::vector<Token> prompt = TestTokens(3 * kTestChunk + 1);
  f.Store(prompt);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.LoadAll(prompt), prompt.size());
  EXPECT_EQ(f.manager->Stats().pool_used_bytes, 0u);
}

TEST(ManagerTest, NoTierKeepsNothing) {
  ManagerFixture f;
  f.with_host = f.with_disk = false;
  f.Open();
  f.Store(TestTokens(kTestChunk));
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.Match(TestTokens(kTestChunk)), 0u);
  EXPECT_EQ(f.manager->Stats().dropped_objects, 1u);
  EXPECT_EQ(f.manager->Stats().index_entries, 0u);
}

TEST(ManagerTest, GroupsAndShardsFollowTheirRules) {
  // Group 0 full, group 1 a window of two chunks, group 2 a state.
  const KvSpec spec = [] {
    KvSpec s = TestSpec(
        Cut::kNone, {{Retention::kFull, 0}, {Retention::kWindow, 2 * kTestChunk}, {Retention::kState, 0}});
    s.shards = {{0, 2, 0, 0}, {1, 2, 0, 0}};
    return s;
  }();
  ManagerFixture f;
  f.Open(spec);
  const std::vector<Token> prompt = TestTokens(6 * kTestChunk);
  const std::vector<ObjectPart> all = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}};
  // Shard 0 stores everything, shard 1 four chunks only.
  f.Store(prompt, 0, {{0, 0}, {1, 0}, {2, 0}});
  f.Store(std::span(prompt).first(4 * kTestChunk), 0, {{0, 1}, {1, 1}, {2, 1}});
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.manager->Lookup(f.root, prompt)->matched_tokens(), 6 * kTestChunk);
  Result<Lease> both = f.manager->Lookup(f.root, prompt, {.parts = all});
  EXPECT_EQ(both->matched_tokens(), 4 * kTestChunk) << "what each asked shard has";
  // 4 chunks x 2 full, 3 x 2 window (two and one more), 1 x 2 state.
  EXPECT_EQ(both->num_objects(), 8u + 6u + 2u);
  LoadReport report;
  EXPECT_EQ(f.LoadAll(prompt, all, &report), 4 * kTestChunk);
  EXPECT_EQ(report.loaded_objects, 16u);
  EXPECT_EQ(f.manager->Stats().index_entries, 6u) << "one entry per key";
  // A state alone needs nothing before it.
  const std::vector<ObjectPart> state = {{2, 0}};
  EXPECT_EQ(f.manager->Lookup(f.root, prompt, {.parts = state})->num_objects(), 1u);
  const std::vector<Token> lone = TestTokens(3 * kTestChunk + 5, 9);
  f.Store(lone, 3 * kTestChunk, state);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.LoadAll(lone, state), lone.size());
  EXPECT_EQ(f.manager->Lookup(f.root, prompt, {.parts = {{3, 0}}}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ManagerTest, ShardsOfAnotherDivisionAreNeverAnswered) {
  const auto divided = [](uint32_t ranks) {
    KvSpec spec = TestSpec();
    for (uint32_t rank = 0; rank < ranks; ++rank) spec.shards.push_back({rank, ranks, 0, 0});
    return spec;
  };
  ASSERT_EQ(TestSpec().DivisionTag(), 0u);
  ASSERT_NE(divided(2).DivisionTag(), divided(4).DivisionTag());
  ManagerFixture f;
  f.Open(divided(2));
  const std::vector<Token> prompt = TestTokens(3 * kTestChunk);
  EXPECT_EQ(f.Store(prompt), 3u);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.Match(prompt), 3 * kTestChunk);
  const ChunkKey root = f.root;
  // The same keys, payloads of the same size.
  f.Open(divided(4));
  EXPECT_EQ(f.root, root);
  EXPECT_EQ(f.Match(prompt), 0u);
  EXPECT_EQ(f.Store(std::span(prompt).first(kTestChunk)), 1u);
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.LoadAll(prompt), kTestChunk);
  EXPECT_EQ(f.platters->objects.size(), 1u) << "what hung below the other division's chunk";
  // A frame of the other division behind a record of this one.
  f.manager->Flush().IgnoreError();
  f.platters->objects.begin()->second.meta.division = divided(2).DivisionTag();
  f.Open(divided(2));
  EXPECT_EQ(f.Match(prompt), kTestChunk);
  EXPECT_EQ(f.LoadAll(prompt), 0u);
  EXPECT_EQ(f.manager->Stats().corrupt_objects, 1u);
}

TEST(ManagerTest, TwoManagersInOneProcess) {
  ManagerFixture a;
  ManagerFixture b;
  a.Open();
  b.Open();
  a.Store(TestTokens(kTestChunk));
  ASSERT_TRUE(a.manager->Flush().ok());
  EXPECT_EQ(a.Match(TestTokens(kTestChunk)), kTestChunk);
  EXPECT_EQ(b.Match(TestTokens(kTestChunk)), 0u);
}

TEST(ManagerTest, OptionsAreValidatedByName) {
  StorageOptions options;
  options.lease_budget = 2;
  const Status status = StorageManager::Open(options, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("lease_budget"), testing::HasSubstr("0..1")));
}

}  // namespace
}  // namespace terrace
