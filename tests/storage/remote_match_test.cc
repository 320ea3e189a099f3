// The remote part of a lookup: what a store that answers for itself adds to the local match, when, and what
// is left of it when the store is slow, silent or wrong.
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "terrace/backend_wrapper.h"
#include "tests/support/remote_fixture.h"

namespace terrace {
namespace {

constexpr std::string_view kFailures = "terrace_manager_remote_lookup_failures_total";
constexpr std::string_view kExceptions = "terrace_manager_callback_exceptions_total";

std::vector<Token> Seeded(size_t num_chunks, Token seed) { return TestTokens(num_chunks * kTestChunk, seed); }
std::span<const Token> First(const std::vector<Token>& tokens, size_t n) {
  return std::span(tokens).first(n);
}
TimePoint Soon() { return Clock::Real()->Now() + std::chrono::milliseconds(5); }

TEST(RemoteMatchTest, TheLocalAnswerComesAtOnceAndGrowsOnce) {
  RemoteFixture f;
  f.Seed(Seeded(4, 1));
  const std::vector<Token> prompt = Seeded(5, 1);
  f.StoreNow(First(prompt, 2 * kTestChunk));
  f.shelf->holding_matches = true;
  const Lease lease = f.Look(prompt);
  EXPECT_TRUE(lease.is_pending());
  EXPECT_EQ(lease.matched_tokens(), 2 * kTestChunk);
  EXPECT_EQ(lease.num_objects(), 2u);
  EXPECT_TRUE(lease.is_protected());
  EXPECT_EQ(lease.WaitRemote(Soon()).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(lease.matched_tokens(), 2 * kTestChunk);
  ASSERT_EQ(f.shelf->queries.size(), 1u);
  const PrefixQuery& query = f.shelf->queries[0];
  EXPECT_EQ(query.root, f.root);
  EXPECT_EQ(query.first_token, 2 * kTestChunk);
  EXPECT_EQ(query.tokens_per_chunk, kTestChunk);
  EXPECT_EQ(query.keys.size(), 3u);
  EXPECT_EQ(query.content.tokens, std::vector<Token>(prompt.begin() + 2 * kTestChunk, prompt.end()));
  EXPECT_EQ(query.deadline, f.clock.Now() + std::chrono::seconds(1));
  std::thread answer([&] { f.shelf->ReleaseHeld(); });
  EXPECT_TRUE(lease.WaitRemote(kNoDeadline).ok());
  answer.join();
  EXPECT_FALSE(lease.is_pending());
  EXPECT_EQ(lease.matched_tokens(), 4 * kTestChunk);
  EXPECT_EQ(lease.host_tokens(), 2 * kTestChunk);
  EXPECT_EQ(lease.num_objects(), 4u);
  EXPECT_EQ(lease.frame_bytes() % 4096, 0u);
  EXPECT_GT(lease.frame_bytes(), 4 * kTestPayload);
  EXPECT_TRUE(lease.is_protected()) << "what is here still is";
  EXPECT_TRUE(lease.WaitRemote(Soon()).ok());
}

// A cache server that is not there: durable, but nothing can be read of it.
class AbsentStore : public BackendWrapper {
 public:
  explicit AbsentStore(std::unique_ptr<Backend> base) : BackendWrapper(std::move(base)) {}

 protected:
  Capabilities DoCapabilities() const override {
    Capabilities capabilities = base().capabilities();
    capabilities.is_durable = true;
    return capabilities;
  }
  Result<ScanPage> DoScan(std::string_view, size_t, ScanDetail) override { return UnavailableError("gone"); }
  Result<std::vector<RootRecord>> DoScanRoots() override { return UnavailableError("gone"); }
};

TEST(RemoteMatchTest, AManagerOpensWithoutTheStoreAndFindsItLater) {
  RemoteFixture f;
  const std::vector<Token> prompt = Seeded(2, 1);
  f.Seed(prompt);
  std::vector<Tier> tiers;
  tiers.push_back({.backend = *MakeHostBackend({.capacity_bytes = f.options.pool_bytes})});
  tiers.push_back({.backend = std::make_unique<AbsentStore>(MakeMatchBackend(f.shelf))});
  Result<std::unique_ptr<StorageManager>> opened = StorageManager::Open(f.options, std::move(tiers));
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  f.manager = *std::move(opened);
  f.root = *f.manager->Root(f.spec);
  EXPECT_EQ(f.LocalTokens(prompt), 0u) << "nothing was read of it";
  EXPECT_EQ(f.Load(f.Look(prompt)).loaded_tokens, prompt.size());
}

TEST(RemoteMatchTest, TheCallbackIsCalledOnceOnTheExecutor) {
  RemoteFixture f;
  f.UseSteps();
  f.Seed(Seeded(3, 1));
  const std::vector<Token> prompt = Seeded(3, 1);
  std::vector<uint64_t> told;
  const LookupOptions options{.on_remote = [&](uint64_t tokens) { told.push_back(tokens); }};
  const Lease lease = f.Look(prompt, options);
  EXPECT_EQ(lease.matched_tokens(), 3 * kTestChunk) << "it answered inline";
  EXPECT_TRUE(told.empty()) << "not inside the call";
  f.steps->RunAll();
  EXPECT_EQ(told, std::vector<uint64_t>{3 * kTestChunk});
  // A Match that fails, and one that throws, are answers too.
  f.StoreNow(First(prompt, kTestChunk));
  f.shelf->match_status = UnavailableError("not now");
  EXPECT_EQ(f.Look(Seeded(2, 1), options).matched_tokens(), kTestChunk);
  f.shelf->match_status = OkStatus();
  f.shelf->throws = true;
  const Lease thrown = f.Look(prompt, options);
  EXPECT_FALSE(thrown.is_pending());
  EXPECT_EQ(thrown.matched_tokens(), kTestChunk);
  f.shelf->throws = false;
  f.steps->RunAll();
  EXPECT_EQ(told, (std::vector<uint64_t>{3 * kTestChunk, kTestChunk, kTestChunk}));
  EXPECT_EQ(f.manager->metrics().Value(kFailures, {{"tier", "remote"}}), 2);
  // Nothing to ask for.
  const uint64_t matches = f.shelf->num_matches();
  f.Look(First(prompt, kTestChunk), options);
  f.Look(prompt, {.remote_deadline = Duration::zero(), .on_remote = options.on_remote});
  f.Look(prompt, {.max_tokens = kTestChunk, .on_remote = options.on_remote});
  f.manager->Peek(f.root, prompt, options).status().IgnoreError();
  f.steps->RunAll();
  EXPECT_EQ(f.shelf->num_matches(), matches);
  EXPECT_EQ(told.size(), 3u);
}

TEST(RemoteMatchTest, AThrowingCallbackIsCounted) {
  RemoteFixture f;
  f.UseSteps();
  f.Seed(Seeded(1, 1));
  const Lease lease =
      f.Look(Seeded(1, 1), {.on_remote = [](uint64_t) { throw std::runtime_error("by the test"); }});
  f.steps->RunAll();
  EXPECT_EQ(f.manager->metrics().Value(kExceptions), 1);
  EXPECT_EQ(f.steps->exceptions(), 0);
  EXPECT_EQ(lease.matched_tokens(), kTestChunk);
}

TEST(RemoteMatchTest, ATokenIsReleasedOnceWheneverTheLeaseEnds) {
  RemoteFixture f;
  f.Seed(Seeded(2, 1));
  const std::vector<Token> prompt = Seeded(2, 1);
  Lease lease = f.Look(prompt);
  EXPECT_TRUE(f.shelf->Released().empty());
  lease.Release();
  ASSERT_EQ(f.shelf->Released().size(), 1u);
  // Before the answer.
  f.shelf->holding_matches = true;
  lease = f.Look(prompt);
  lease.Release();
  EXPECT_EQ(f.shelf->Released().size(), 1u);
  f.shelf->ReleaseHeld();
  ASSERT_EQ(f.shelf->Released().size(), 2u);
  // Under an id: the earlier lease's when that one is dropped.
  f.shelf->holding_matches = false;
  lease = f.Look(prompt, {.request_id = 7});
  Lease renewed = f.Look(prompt, {.request_id = 7});
  EXPECT_EQ(renewed.matched_tokens(), prompt.size());
  lease.Release();
  EXPECT_EQ(f.shelf->Released().size(), 3u);
  renewed.Release();
  const std::vector<std::string> released = f.shelf->Released();
  EXPECT_EQ(released.size(), 4u);
  EXPECT_EQ(std::set<std::string>(released.begin(), released.end()).size(), 4u);
}

TEST(RemoteMatchTest, CloseWhilePending) {
  RemoteFixture f;
  f.UseSteps();
  f.Open();
  f.StoreNow(Seeded(1, 1));
  f.shelf->holding_matches = true;
  std::vector<uint64_t> told;
  const Lease lease = f.Look(Seeded(2, 1), {.on_remote = [&](uint64_t tokens) { told.push_back(tokens); }});
  EXPECT_TRUE(lease.is_pending());
  ASSERT_TRUE(f.manager->Close().ok());
  EXPECT_FALSE(lease.is_pending());
  EXPECT_TRUE(lease.WaitRemote(kNoDeadline).ok());
  EXPECT_EQ(lease.matched_tokens(), kTestChunk);
  f.steps->RunAll();
  EXPECT_EQ(told, std::vector<uint64_t>{kTestChunk});
}

TEST(RemoteMatchTest, AQuestionThatIsForgottenCountsAsNotAnswered) {
  RemoteFixture f;
  f.UseSteps();
  f.Open();
  f.StoreNow(Seeded(1, 1));
  f.shelf->never_answers = true;
  int told = 0;
  const Lease lease = f.Look(Seeded(2, 1), {.on_remote = [&](uint64_t) { ++told; }});
  EXPECT_TRUE(lease.WaitRemote(kNoDeadline).ok()) << "nobody is left to answer";
  EXPECT_EQ(lease.matched_tokens(), kTestChunk);
  f.steps->RunAll();
  EXPECT_EQ(told, 1);
  EXPECT_EQ(f.manager->metrics().Value(kFailures, {{"tier", "remote"}}), 1);
}

TEST(RemoteMatchTest, WriteBehindKeepsNoPresence) {
  RemoteFixture f;
  f.Open();
  const std::vector<Token> prompt = Seeded(2, 1);
  f.StoreNow(prompt);
  EXPECT_EQ(f.shelf->num_objects(), 2u);
  const ManagerStats stats = f.manager->Stats();
  EXPECT_EQ(stats.tiers[0].objects, 2u);
  EXPECT_EQ(stats.tiers[1].objects, 0u);
  EXPECT_EQ(stats.pending_writes, 0u);
  // A failing write loses nothing here, and is no reason to forget the chunk.
  f.shelf->put_status = UnavailableError("not now");
  const std::vector<Token> other = Seeded(2, 2);
  f.StoreNow(other);
  EXPECT_EQ(f.shelf->num_objects(), 2u);
  EXPECT_EQ(f.Load(f.Look(other)).loaded_tokens, other.size());
  EXPECT_EQ(f.manager->metrics().Value("terrace_tier_write_failures_total", {{"tier", "remote"}}), 2);
  f.shelf->put_status = OkStatus();
  for (Token i = 0; i < 80; ++i) f.StoreNow(Seeded(1, 100 + i));
  EXPECT_EQ(f.LocalTokens(prompt), 0u) << "evicted here";
  EXPECT_EQ(f.Look(prompt).matched_tokens(), prompt.size()) << "but not there";
}

TEST(RemoteMatchTest, WithoutAHostTierNothingStaysInTheIndex) {
  RemoteFixture f;
  f.with_host = false;
  f.Open();
  const std::vector<Token> prompt = Seeded(3, 1);
  f.StoreNow(prompt);
  EXPECT_EQ(f.shelf->num_objects(), 3u);
  EXPECT_EQ(f.manager->Stats().index_entries, 0u);
  EXPECT_EQ(f.manager->Stats().pool_used_bytes, 0u);
  EXPECT_EQ(f.Look(prompt).matched_tokens(), prompt.size());
}

TEST(RemoteMatchTest, EraseReachesIt) {
  RemoteFixture f;
  f.Open();
  const std::vector<Token> prompt = Seeded(3, 1);
  f.StoreNow(prompt);
  EXPECT_EQ(*f.manager->ErasePrefix(f.root, First(prompt, 2 * kTestChunk)), 2u);
  EXPECT_EQ(f.shelf->num_objects(), 1u);
  EXPECT_EQ(f.Look(prompt).matched_tokens(), kTestChunk);
  // By key, where nothing is known of it here.
  f.Open();
  EXPECT_TRUE(f.manager->ErasePrefix(f.root, First(prompt, kTestChunk)).ok());
  EXPECT_EQ(f.shelf->num_objects(), 0u);
  f.StoreNow(prompt);
  ASSERT_TRUE(f.manager->Clear().ok());
  EXPECT_EQ(f.shelf->num_objects(), 0u);
  // While the write is in flight.
  f.shelf->holding_puts = true;
  StorePrompt(*f.manager, f.root, prompt, {0, prompt.size()}, f.Sizes());
  std::atomic<bool> erased{false};
  std::thread release([&] {
    while (!erased) f.shelf->ReleaseHeld();
  });
  EXPECT_EQ(*f.manager->ErasePrefix(f.root, {}), 3u);
  erased = true;
  release.join();
  f.shelf->Set([](MatchShelf& s) { s.holding_puts = false; });
  f.shelf->ReleaseHeld();
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.shelf->num_objects(), 0u);
  EXPECT_EQ(f.Look(prompt).matched_tokens(), 0u);
}

TEST(RemoteMatchTest, LeasesAnsweredFromOtherThreads) {
  RemoteFixture f;
  f.Seed(Seeded(4, 1));
  const std::vector<Token> prompt = Seeded(4, 1);
  f.StoreNow(First(prompt, kTestChunk));
  f.shelf->holding_matches = true;
  std::atomic<bool> done{false};
  std::thread answer([&] {
    while (!done) f.shelf->ReleaseHeld();
  });
  std::atomic<int> wrong{0};
  std::atomic<int> told{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        Lease lease = f.Look(prompt, {.request_id = static_cast<uint64_t>(i % 2 ? t + 1 : 0),
                                      .on_remote = [&](uint64_t) { ++told; }});
        if (i % 3 == 0) continue;  // released, perhaps before the answer
        const uint64_t before = lease.matched_tokens();
        wrong += !lease.WaitRemote(kNoDeadline).ok() || before > lease.matched_tokens();
        wrong += lease.matched_tokens() != prompt.size() || lease.num_objects() != 4;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  answer.join();
  f.shelf->Set([](MatchShelf& s) { s.holding_matches = false; });
  f.shelf->ReleaseHeld();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(f.shelf->Released().size(), f.shelf->num_matches()) << "each token once";
  EXPECT_EQ(f.manager->Stats().active_leases, 0u);
  ASSERT_TRUE(f.manager->Close().ok());
  EXPECT_GE(told, 399) << "each that was waited for";
}

}  // namespace
}  // namespace terrace
