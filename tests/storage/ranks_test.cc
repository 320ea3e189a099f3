// Eight ranks of one model over one manager, tensor-parallel or in pipeline stages too: each stores its own
// shard of a request out of its own pages; the request is hashed once, its chunks are indexed once, and
// nobody waits for another rank's storage.
#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "terrace/backend_wrapper.h"
#include "tests/support/eventually.h"
#include "tests/support/manager_fixture.h"
#include "tests/support/paged_engine.h"

namespace terrace {
namespace {

constexpr uint16_t kRanks = 8;
constexpr uint32_t kLayers = 4;
constexpr uint32_t kHeads = 16;
constexpr uint32_t kHeadBytes = 32;
constexpr uint64_t kRequest = 77;

// What must come, comes within a time that is never needed.
TimePoint Soon() { return Clock::Real()->Now() + std::chrono::seconds(60); }

KvSpec SpecOfRanks(uint32_t pipeline_stages) {
  KvSpec spec = TestSpec(Cut::kRanged);
  spec.payload_form = PayloadForm::kCanonical;
  const PlaneSpec k{PlaneKind::kK, DType::kF16, kHeads, kHeadBytes / 2, kHeads * kHeadBytes};
  PlaneSpec v = k;
  v.kind = PlaneKind::kV;
  spec.layers.assign(kLayers, LayerSpec{.group = 0, .planes = {k, v}});
  const uint32_t tensor_size = kRanks / pipeline_stages, layers = kLayers / pipeline_stages;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    const uint32_t stage = rank / tensor_size;
    spec.shards.push_back({.tensor_rank = rank % tensor_size,
                           .tensor_size = tensor_size,
                           .layer_begin = stage * layers,
                           .layer_end = (stage + 1) * layers});
  }
  return spec;
}

// Holds back what concerns one rank: its part of a batch; the rest of the batch goes on, though it is told
// with the whole.
class StallingDisk final : public BackendWrapper {
 public:
  struct Stall {
    std::mutex mutex;
    std::optional<uint16_t> rank;
    std::vector<std::function<void()>> held;

    void Begin(uint16_t of_rank) {
      std::lock_guard lock(mutex);
      rank = of_rank;
    }
    size_t num_held() {
      std::lock_guard lock(mutex);
      return held.size();
    }
    void End() {
      std::vector<std::function<void()>> work;
      {
        std::lock_guard lock(mutex);
        rank.reset();
        work.swap(held);
      }
      for (const auto& run : work) run();
    }
  };

  StallingDisk(std::unique_ptr<Backend> base, std::shared_ptr<Stall> stall)
      : BackendWrapper(std::move(base)), stall_(std::move(stall)) {}

 protected:
  void DoGet(std::vector<GetOp> ops, GetDone done) override {
    Divide<GetResult>(std::move(ops), std::move(done), [this](std::vector<GetOp> some, GetDone then) {
      BackendWrapper::DoGet(std::move(some), std::move(then));
    });
  }
  void DoPut(std::vector<PutOp> ops, PutDone done) override {
    Divide<Status>(std::move(ops), std::move(done), [this](std::vector<PutOp> some, PutDone then) {
      BackendWrapper::DoPut(std::move(some), std::move(then));
    });
  }
  Status DoClose(TimePoint deadline) override {
    stall_->End();
    return BackendWrapper::DoClose(deadline);
  }

 private:
  template <typename ResultOf, typename Op, typename Done, typename Pass>
  void Divide(std::vector<Op> ops, Done done, Pass pass) {
    struct Whole {
      std::mutex mutex;
      std::vector<ResultOf> results;
      int left = 2;
      Done done;
    };
    auto whole = std::make_shared<Whole>();
    whole->results.resize(ops.size());
    whole->done = std::move(done);
    std::vector<Op> parts[2];  // to go on, to be held
    std::vector<size_t> places[2];
    std::unique_lock lock(stall_->mutex);
    for (size_t i = 0; i < ops.size(); ++i) {
      const int held = stall_->rank == ops[i].id.part.shard ? 1 : 0;
      parts[held].push_back(std::move(ops[i]));
      places[held].push_back(i);
    }
    const auto run = [whole, pass](const std::shared_ptr<std::vector<Op>>& some, std::vector<size_t> at) {
      const auto end = [whole, at = std::move(at)](std::span<const ResultOf> results) {
        bool all = false;
        {
          std::lock_guard whole_lock(whole->mutex);
          for (size_t i = 0; i < at.size(); ++i) whole->results[at[i]] = results[i];
          all = --whole->left == 0;
        }
        if (all) whole->done(whole->results);
      };
      if (some->empty()) return end({});
      pass(std::move(*some), end);
    };
    if (!parts[1].empty()) {
      stall_->held.push_back([run, some = std::make_shared<std::vector<Op>>(std::move(parts[1])),
                              at = places[1]] { run(some, at); });
    } else {
      whole->left = 1;
    }
    lock.unlock();
    run(std::make_shared<std::vector<Op>>(std::move(parts[0])), std::move(places[0]));
  }

  const std::shared_ptr<Stall> stall_;
};

struct RanksFixture : ManagerFixture {
  const KvSpec spec;
  const std::vector<Token> prompt;
  std::shared_ptr<StallingDisk::Stall> stall = std::make_shared<StallingDisk::Stall>();

  RanksFixture(uint32_t pipeline_stages, size_t num_tokens)
      : spec(SpecOfRanks(pipeline_stages)), prompt(TestTokens(num_tokens)) {
    options.pool_bytes = 16 << 20;
    wrap_disk = [this](std::unique_ptr<Backend> disk) {
      return std::make_unique<StallingDisk>(std::move(disk), stall);
    };
    Open(spec);
  }

  // A rank's pages for `tokens`, in a layout and with blocks of its own.
  std::unique_ptr<PagedEngine> Pages(uint16_t rank, TokenRange tokens, size_t layout) const {
    const ShardSpec& shard = spec.shards[rank];
    const uint32_t block_tokens[] = {8, 16, 4, 5};
    PagedGeometry geometry{.num_layers = shard.layer_end - shard.layer_begin,
                           .tokens_per_block = block_tokens[(rank + layout) % 4],
                           .num_heads = kHeads / shard.tensor_size,
                           .head_bytes = kHeadBytes,
                           .element_bytes = 2};
    geometry.num_blocks = (tokens.end - tokens.begin) / geometry.tokens_per_block + 3;
    const PagedEngine::Origin origin{.first_layer = shard.layer_begin,
                                     .first_head = shard.tensor_rank * geometry.num_heads};
    return std::make_unique<PagedEngine>(kKAndVLayouts[(rank + layout) % std::size(kKAndVLayouts)], geometry,
                                         origin, tokens.begin, tokens.end - tokens.begin, rank);
  }

  // What a rank does with a request's tokens once they are computed.
  StoreReport StoreRank(uint16_t rank, TokenRange tokens, uint64_t request = kRequest) {
    const std::unique_ptr<PagedEngine> pages = Pages(rank, tokens, 0);
    pages->Compute(tokens);
    const PagedKvView view = pages->view({0, rank});
    Result<StoreHandle> handle =
        manager->Store(root, prompt, tokens, {&view, 1}, {.request_id = request, .on_source_free = {}});
    if (!handle.ok()) return {.status = handle.status()};
    return handle->Wait(Soon());
  }
  // Tokens that the rank finds, loads into pages of another layout and has right there.
  uint64_t LoadRank(uint16_t rank, uint64_t request = 0) {
    Result<Lease> lease = manager->Lookup(root, prompt, {.request_id = request, .parts = {{0, rank}}});
    EXPECT_TRUE(lease.ok());
    const TokenRange tokens = {0, lease->matched_tokens()};
    const std::unique_ptr<PagedEngine> pages = Pages(rank, {0, prompt.size()}, 3);
    const PagedKvView view = pages->view({0, rank});
    const LoadReport report = manager->Load(*lease, tokens, {.memory = {}, .views = {&view, 1}}).Wait(Soon());
    EXPECT_TRUE(report.status.ok()) << report.status.ToString();
    EXPECT_TRUE(pages->Holds(tokens)) << "rank " << rank;
    return report.loaded_tokens;
  }
  uint64_t Matched(std::vector<ObjectPart> parts, uint64_t request = 0) {
    Result<Lease> lease = manager->Lookup(root, prompt, {.request_id = request, .parts = std::move(parts)});
    EXPECT_TRUE(lease.ok());
    return lease->matched_tokens();
  }
  static std::vector<ObjectPart> AllRanks() {
    std::vector<ObjectPart> parts;
    for (uint16_t rank = 0; rank < kRanks; ++rank) parts.push_back({0, rank});
    return parts;
  }
  int64_t hashed() const { return manager->metrics().Value("terrace_index_hashed_tokens_total"); }
  size_t OnDisk(uint16_t rank) {
    std::lock_guard lock(platters->mutex);
    return static_cast<size_t>(std::ranges::count_if(
        platters->objects, [&](const auto& object) { return object.first.part.shard == rank; }));
  }
};

// Both divisions: eight tensor-parallel ranks, two pipeline stages of four.
class RanksTest : public testing::TestWithParam<uint32_t> {};

TEST_P(RanksTest, HashedAndIndexedOnceAndLoadedInOne) {
  const size_t num_tokens = 4 * kTestChunk + 5;
  RanksFixture f(GetParam(), num_tokens);
  EXPECT_EQ(f.Matched(RanksFixture::AllRanks(), kRequest), 0u);
  EXPECT_EQ(f.hashed(), static_cast<int64_t>(num_tokens));
  // The workers, all at once.
  std::vector<StoreReport> reports(kRanks);
  std::vector<std::thread> workers;
  for (uint16_t rank = 0; rank < kRanks; ++rank)
    workers.emplace_back([&, rank] { reports[rank] = f.StoreRank(rank, {0, num_tokens}); });
  for (std::thread& worker : workers) worker.join();
  for (const StoreReport& report : reports) {
    EXPECT_TRUE(report.status.ok()) << report.status.ToString();
    EXPECT_EQ(report.stored_objects, 5u);
    EXPECT_EQ(report.stored_tokens, num_tokens);
  }
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.hashed(), static_cast<int64_t>(num_tokens)) << "eight ranks, one hash";
  EXPECT_EQ(f.manager->Stats().index_entries, 5u) << "one entry per key, whoever has it";
  EXPECT_EQ(f.manager->Stats().tiers[0].objects, 5u * kRanks);
  EXPECT_EQ(f.manager->Stats().tiers[1].objects, 5u * kRanks);

  // One lookup for all, and one load into the pages of all.
  Result<Lease> lease =
      f.manager->Lookup(f.root, f.prompt, {.request_id = kRequest, .parts = RanksFixture::AllRanks()});
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(f.hashed(), static_cast<int64_t>(num_tokens));
  EXPECT_EQ(lease->matched_tokens(), num_tokens);
  EXPECT_EQ(lease->num_objects(), 5u * kRanks);
  std::vector<std::unique_ptr<PagedEngine>> pages;
  std::vector<PagedKvView> views;
  for (uint16_t rank = 0; rank < kRanks; ++rank) {
    pages.push_back(f.Pages(rank, {0, num_tokens}, 5));
    views.push_back(pages.back()->view({0, rank}));
  }
  const LoadReport report =
      f.manager->Load(*lease, {0, num_tokens}, {.memory = {}, .views = views}).Wait(Soon());
  EXPECT_TRUE(report.status.ok()) << report.status.ToString();
  EXPECT_EQ(report.loaded_tokens, num_tokens);
  for (uint16_t rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(pages[rank]->Holds({0, num_tokens})) << rank;
  // Or rank by rank.
  for (uint16_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(f.LoadRank(rank, kRequest), num_tokens);
  EXPECT_EQ(f.hashed(), static_cast<int64_t>(num_tokens));
}

// The ranks come before any lookup, in no order: whoever is the first hashes for all. Then the request grows.
TEST_P(RanksTest, WithoutALookupBeforeAndAsTheRequestGrows) {
  const size_t num_tokens = 6 * kTestChunk;
  for (uint64_t request = 1; request <= 8; ++request) {
    RanksFixture f(GetParam(), num_tokens);
    const auto at_once = [&](TokenRange tokens) {
      const std::span<const Token> so_far = std::span(f.prompt).first(tokens.end);
      std::vector<std::thread> workers;
      std::atomic<int> failed{0};
      for (uint16_t rank = 0; rank < kRanks; ++rank) {
        workers.emplace_back([&, rank] {
          const std::unique_ptr<PagedEngine> pages = f.Pages(rank, tokens, 0);
          pages->Compute(tokens);
          const PagedKvView view = pages->view({0, rank});
          Result<StoreHandle> handle = f.manager->Store(f.root, so_far, tokens, {&view, 1},
                                                        {.request_id = request, .on_source_free = {}});
          failed += !handle.ok() || !handle->Wait(Soon()).status.ok();
        });
      }
      for (std::thread& worker : workers) worker.join();
      EXPECT_EQ(failed, 0);
      EXPECT_EQ(f.hashed(), static_cast<int64_t>(tokens.end));
    };
    at_once({0, 2 * kTestChunk});
    at_once({2 * kTestChunk, 5 * kTestChunk});
    at_once({5 * kTestChunk, num_tokens});
    ASSERT_TRUE(f.manager->Flush().ok());
    EXPECT_EQ(f.manager->Stats().index_entries, 6u);
    EXPECT_EQ(f.Matched(RanksFixture::AllRanks(), request), num_tokens);
    for (uint16_t rank = 0; rank < kRanks; rank += 3) EXPECT_EQ(f.LoadRank(rank, request), num_tokens);
    EXPECT_EQ(f.hashed(), static_cast<int64_t>(num_tokens));
  }
}

TEST_P(RanksTest, TheCommonPrefixAndEachRanksOwn) {
  RanksFixture f(GetParam(), 5 * kTestChunk);
  const auto own = [](uint16_t rank) { return uint64_t{(rank * 3u) % 4 + 2} * kTestChunk; };
  for (uint16_t rank = 0; rank < kRanks; ++rank)
    EXPECT_EQ(f.StoreRank(rank, {0, own(rank)}).stored_tokens, own(rank));
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.manager->Stats().index_entries, 5u);
  EXPECT_EQ(f.Matched(RanksFixture::AllRanks()), 2u * kTestChunk);
  EXPECT_EQ(f.Matched({{0, 1}, {0, 3}, {0, 5}, {0, 7}}), 3u * kTestChunk);
  for (uint16_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(f.LoadRank(rank), own(rank)) << rank;
  EXPECT_EQ(f.hashed(), 5 * kTestChunk * (1 + 2 + kRanks)) << "anonymous lookups hash for themselves";
}

TEST_P(RanksTest, WritesOfOneRankThatDoNotEndHoldUpNobody) {
  RanksFixture f(GetParam(), 4 * kTestChunk);
  const uint16_t slow = 3;
  f.stall->Begin(slow);
  EXPECT_EQ(f.StoreRank(slow, {0, f.prompt.size()}).stored_objects, 4u) << "the copy waits for no disk";
  ASSERT_TRUE(Eventually([&] { return f.stall->num_held() > 0; }));
  for (uint16_t rank = 0; rank < kRanks; ++rank) {
    if (rank == slow) continue;
    EXPECT_EQ(f.StoreRank(rank, {0, f.prompt.size()}).stored_objects, 4u) << rank;
  }
  // Down to the disk, and up again.
  for (uint16_t rank = 0; rank < kRanks; ++rank) {
    if (rank == slow) continue;
    EXPECT_TRUE(Eventually([&] { return f.OnDisk(rank) == 4; })) << rank << " has " << f.OnDisk(rank);
    EXPECT_EQ(f.LoadRank(rank), f.prompt.size());
  }
  EXPECT_EQ(f.OnDisk(slow), 0u);
  EXPECT_GT(f.stall->num_held(), 0u);
  EXPECT_EQ(f.Matched(RanksFixture::AllRanks()), f.prompt.size()) << "what is in host memory is there";
  EXPECT_EQ(f.LoadRank(slow), f.prompt.size());
  f.stall->End();
  ASSERT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.OnDisk(slow), 4u);
}

TEST_P(RanksTest, ReadsOfOneRankThatDoNotEndHoldUpNobody) {
  RanksFixture f(GetParam(), 4 * kTestChunk);
  for (uint16_t rank = 0; rank < kRanks; ++rank) f.StoreRank(rank, {0, f.prompt.size()});
  ASSERT_TRUE(f.manager->Flush().ok());
  f.Open(f.spec);  // all on the disk
  const uint16_t slow = 6;
  f.stall->Begin(slow);
  Result<Lease> lease = f.manager->Lookup(f.root, f.prompt, {.parts = {{0, slow}}});
  ASSERT_TRUE(lease.ok());
  const std::unique_ptr<PagedEngine> pages = f.Pages(slow, {0, f.prompt.size()}, 2);
  const PagedKvView view = pages->view({0, slow});
  LoadHandle load = f.manager->Load(*lease, {0, f.prompt.size()}, {.memory = {}, .views = {&view, 1}});
  ASSERT_TRUE(Eventually([&] { return f.stall->num_held() > 0; }));
  // Lookups of all, loads and stores of the others, more than once.
  const std::vector<Token> next = TestTokens(2 * kTestChunk, 9);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(f.Matched(RanksFixture::AllRanks()), f.prompt.size());
    for (uint16_t rank = 0; rank < kRanks; ++rank) {
      if (rank == slow) continue;
      EXPECT_EQ(f.LoadRank(rank), f.prompt.size()) << rank;
    }
  }
  for (uint16_t rank = 0; rank < kRanks; ++rank) {
    const std::unique_ptr<PagedEngine> more = f.Pages(rank, {0, next.size()}, 0);
    more->Compute({0, next.size()});
    const PagedKvView more_view = more->view({0, rank});
    Result<StoreHandle> handle = f.manager->Store(f.root, next, {0, next.size()}, {&more_view, 1});
    ASSERT_TRUE(handle.ok());
    EXPECT_EQ(handle->Wait(Soon()).stored_objects, 2u) << rank;
  }
  EXPECT_GT(f.stall->num_held(), 0u);
  EXPECT_EQ(load.report().loaded_tokens, 0u);
  EXPECT_TRUE(load.report().status.ok()) << "still at it";
  f.stall->End();
  EXPECT_EQ(load.Wait(Soon()).loaded_tokens, f.prompt.size());
  EXPECT_TRUE(pages->Holds({0, f.prompt.size()}));
  ASSERT_TRUE(f.manager->Flush().ok());
}

INSTANTIATE_TEST_SUITE_P(PipelineStages, RanksTest, testing::Values(1u, 2u));

}  // namespace
}  // namespace terrace
