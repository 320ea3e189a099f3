// A start on many records: what is there at once, what comes in the background, and what becomes of records
// that say what cannot be.
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "terrace/backend_wrapper.h"
#include "terrace/token_hasher.h"
#include "tests/support/manager_fixture.h"
#include "tests/support/step_executor.h"

namespace terrace {
namespace {

constexpr size_t kAtOpen = 16384;  // objects whose contents are there when Open returns
constexpr size_t kPage = 256;

// Counts the pages of contents that were asked for, and may refuse them.
struct ScanCounts {
  std::atomic<size_t> contents{0};
  std::atomic<size_t> refuse_from{SIZE_MAX};
};
class CountingBackend final : public BackendWrapper {
 public:
  CountingBackend(std::unique_ptr<Backend> base, std::shared_ptr<ScanCounts> counts)
      : BackendWrapper(std::move(base)), counts_(std::move(counts)) {}

 protected:
  Result<ScanPage> DoScan(std::string_view cursor, size_t limit, ScanDetail detail) override {
    if (detail == ScanDetail::kContents && counts_->contents++ >= counts_->refuse_from) {
      return UnavailableError("no contents");
    }
    Result<ScanPage> page = BackendWrapper::DoScan(cursor, limit, detail);
    // As of a backend that keeps them apart.
    if (page.ok() && detail == ScanDetail::kPlaces) {
      for (ScannedObject& object : page->objects) object.meta.content = nullptr;
    }
    return page;
  }

 private:
  const std::shared_ptr<ScanCounts> counts_;
};

std::vector<Token> TokensOf(size_t n) { return TestTokens(kTestChunk, static_cast<Token>(n + 1)); }

struct RestoreFixture : ManagerFixture {
  std::shared_ptr<StepExecutor> steps = std::make_shared<StepExecutor>();
  std::shared_ptr<ScanCounts> counts = std::make_shared<ScanCounts>();
  // In the order in which the disk scans.
  std::vector<std::pair<ChunkKey, size_t>> records;

  RestoreFixture() {
    options.executor = steps;
    with_host = false;
    wrap_disk = [this](std::unique_ptr<Backend> disk) {
      return std::make_unique<CountingBackend>(std::move(disk), counts);
    };
    Open();  // for the root
    steps->RunAll();
    EXPECT_TRUE(manager->Close().ok());
    counts->contents = 0;
  }

  ObjectMeta MetaOf(const ChunkKey& parent, uint64_t first_token, std::vector<Token> tokens) {
    ObjectMeta meta;
    meta.root = root;
    meta.parent = parent;
    meta.first_token = first_token;
    meta.frame_bytes = 8192;
    meta.payload_bytes = 4096;
    meta.generation = ++platters->generation;
    meta.division = TestSpec().DivisionTag();
    meta.content = std::make_shared<const ChunkContent>(ChunkContent{std::move(tokens), {}});
    return meta;
  }

  // Chunks that hang on the root.
  void Plant(size_t n) {
    for (size_t i = 0; i < n; ++i) {
      const ObjectMeta meta = MetaOf(root, 0, TokensOf(i));
      records.emplace_back(TokenHasher::KeyOf(root, *meta.content), i);
      platters->objects[{records.back().first, {}}].meta = meta;
    }
    std::sort(records.begin(), records.end());
  }

  // Of the chunk with the `i`th key: a prompt that leaves it after ten tokens.
  uint64_t MatchInside(size_t i) {
    std::vector<Token> prompt = TokensOf(records[i].second);
    prompt[10] ^= 1;
    return Match(prompt);
  }
  uint64_t MatchWhole(size_t i) { return Match(TokensOf(records[i].second)); }
};

TEST(RestoreTest, WholeChunksAreThereAtOnceAndTheirInsideLater) {
  RestoreFixture f;
  f.Plant(kAtOpen + 10 * kPage);
  f.Open();
  EXPECT_EQ(f.counts->contents.load(), kAtOpen / kPage);
  const size_t last = f.records.size() - 1;
  for (const size_t i : {size_t{0}, kAtOpen - 1, kAtOpen, last}) {
    EXPECT_EQ(f.MatchWhole(i), kTestChunk) << i;
    EXPECT_EQ(f.MatchInside(i), i < kAtOpen ? 10u : 0u) << i;
  }
  EXPECT_EQ(f.manager->Stats().index_entries, f.records.size());
  f.steps->RunAll();
  for (const size_t i : {size_t{0}, kAtOpen - 1, kAtOpen, last}) {
    EXPECT_EQ(f.MatchWhole(i), kTestChunk) << i;
    EXPECT_EQ(f.MatchInside(i), 10u) << i;
  }
  EXPECT_EQ(f.counts->contents.load(), f.records.size() / kPage);
  EXPECT_TRUE(f.manager->Close().ok());
}

TEST(RestoreTest, WhatIsErasedMeanwhileStaysAway) {
  RestoreFixture f;
  f.Plant(kAtOpen + 2 * kPage);
  f.Open();
  const size_t last = f.records.size() - 1;
  const ChunkKey erased = f.records[last].first;
  // A page that was read before the erase reaches the index after it.
  const auto kept = f.platters->objects.at({erased, {}});
  Result<uint64_t> count = f.manager->Erase({&erased, 1});
  ASSERT_TRUE(count.ok());
  EXPECT_EQ(*count, 1u);
  f.platters->objects[{erased, {}}] = kept;
  f.steps->RunAll();
  EXPECT_EQ(f.MatchWhole(last), 0u);
  EXPECT_EQ(f.MatchInside(last), 0u);
  EXPECT_EQ(f.MatchInside(last - 1), 10u);
  EXPECT_EQ(f.manager->Stats().index_entries, f.records.size() - 1);
  ASSERT_TRUE(f.manager->Clear().ok());
  EXPECT_EQ(f.manager->Stats().index_entries, 0u);
}

TEST(RestoreTest, ACloseWaitsForThePageUnderWayAndNoOther) {
  RestoreFixture f;
  f.Plant(kAtOpen + 40 * kPage);
  f.Open();
  std::future<Status> closed = std::async(std::launch::async, [&] { return f.manager->Close(); });
  while (f.manager->Peek(f.root, TokensOf(0)).ok()) std::this_thread::yield();
  f.steps->RunAll();
  EXPECT_TRUE(closed.get().ok());
  EXPECT_EQ(f.counts->contents.load(), kAtOpen / kPage);
}

TEST(RestoreTest, AFlushDoesNotWaitForContents) {
  RestoreFixture f;
  f.Plant(kAtOpen + 2 * kPage);
  f.Open();
  EXPECT_TRUE(f.manager->Flush().ok());
  EXPECT_EQ(f.MatchInside(f.records.size() - 1), 0u);
  f.steps->RunAll();
  EXPECT_TRUE(f.manager->Close().ok());
}

TEST(RestoreTest, ContentThatIsNotTheKeysIsNeverMatched) {
  RestoreFixture f;
  f.Plant(kAtOpen + kPage);
  const size_t last = f.records.size() - 1;
  // The last record tells the tokens of a prefix that is nowhere.
  const std::vector<Token> planted = TestTokens(kTestChunk, 77'777'777);
  f.platters->objects.at({f.records[last].first, {}}).meta.content =
      std::make_shared<const ChunkContent>(ChunkContent{planted, {}});
  f.Open();
  EXPECT_EQ(f.Match(planted), 0u);
  f.steps->RunAll();
  EXPECT_EQ(f.Match(planted), 0u);
  EXPECT_EQ(f.MatchWhole(last), 0u) << "the record is dropped with its object";
  EXPECT_EQ(f.manager->metrics().Value("terrace_manager_orphaned_records_total"), 1);
  EXPECT_EQ(f.platters->objects.size(), f.records.size() - 1);
  EXPECT_TRUE(f.manager->Close().ok());
}

TEST(RestoreTest, AContentThatCannotBeReadCostsTheInsideAlone) {
  RestoreFixture f;
  f.Plant(kPage);
  f.platters->objects.at({f.records[3].first, {}}).meta.content = nullptr;
  f.Open();
  EXPECT_EQ(f.MatchWhole(3), kTestChunk);
  EXPECT_EQ(f.MatchInside(3), 0u);
  EXPECT_EQ(f.MatchInside(4), 10u);
  EXPECT_TRUE(f.manager->Close().ok());
}

TEST(RestoreTest, PagesThatCannotBeReadCostTheInsideAlone) {
  RestoreFixture f;
  f.Plant(kAtOpen + 3 * kPage);
  f.counts->refuse_from = kAtOpen / kPage + 1;
  f.Open();
  f.steps->RunAll();
  EXPECT_EQ(f.counts->contents.load(), kAtOpen / kPage + 2) << "it is not asked again and again";
  EXPECT_EQ(f.MatchInside(kAtOpen), 10u);
  EXPECT_EQ(f.MatchInside(kAtOpen + kPage), 0u);
  EXPECT_EQ(f.MatchWhole(kAtOpen + kPage), kTestChunk);
  EXPECT_TRUE(f.manager->Close().ok());
}

TEST(RestoreTest, AnOpenThatCannotReadFails) {
  RestoreFixture f;
  f.Plant(kPage);
  f.counts->refuse_from = 0;
  f.manager.reset();
  std::vector<Tier> tiers;
  tiers.push_back({.backend = f.wrap_disk(MakeMemoryDisk(f.platters, f.disk_bytes))});
  EXPECT_EQ(StorageManager::Open(f.options, std::move(tiers)).status().code(), StatusCode::kUnavailable);
}

// An executor that breaks its promise: the close does not wait for what it dropped.
TEST(RestoreTest, WhatTheExecutorDropsIsNotWaitedFor) {
  RestoreFixture f;
  f.Plant(kAtOpen + 3 * kPage);
  f.Open();
  f.steps->DropAll();
  EXPECT_TRUE(f.manager->Close().ok());
}

// Whichever of the two comes first.
TEST(RestoreTest, RecordsThatHangBelowThemselvesAreDropped) {
  for (Token seed = 1; seed <= 8; ++seed) {
    RestoreFixture f;
    const ObjectMeta a = f.MetaOf(f.root, kTestChunk, TestTokens(kTestChunk, seed));
    const ObjectMeta b = f.MetaOf(f.root, kTestChunk, TestTokens(kTestChunk, seed + 100));
    const ChunkKey key_a = TokenHasher::KeyOf(f.root, *a.content);
    const ChunkKey key_b = TokenHasher::KeyOf(f.root, *b.content);
    f.platters->objects[{key_a, {}}].meta = a;
    f.platters->objects[{key_a, {}}].meta.parent = key_b;
    f.platters->objects[{key_b, {}}].meta = b;
    f.platters->objects[{key_b, {}}].meta.parent = key_a;
    const std::vector<Token> own = TestTokens(kTestChunk, seed + 200);
    ObjectMeta c = f.MetaOf(f.root, 0, own);
    const ChunkKey key_c = TokenHasher::KeyOf(f.root, *c.content);
    c.parent = key_c;
    f.platters->objects[{key_c, {}}].meta = c;
    f.Open();
    EXPECT_EQ(f.manager->Stats().index_entries, 0u);
    EXPECT_EQ(f.manager->metrics().Value("terrace_manager_orphaned_records_total"), 3);
    for (const ChunkKey& key : {key_a, key_b, key_c}) EXPECT_TRUE(f.manager->Erase({&key, 1}).ok());
    EXPECT_TRUE(f.platters->objects.empty());
    EXPECT_TRUE(f.manager->Close().ok());
  }
}

// Two prompts with a common beginning, and a third: what goes first is the tail of the oldest.
TEST(RestoreTest, OldTailsAreTheColdest) {
  ManagerFixture f;
  f.with_host = false;
  f.options.executor = nullptr;
  f.Open();
  const auto prompt_of = [](Token seed, Token tail) {
    std::vector<Token> prompt = TestTokens(4 * kTestChunk, seed);
    for (size_t i = 2 * kTestChunk; i < prompt.size(); ++i) prompt[i] += tail;
    return prompt;
  };
  const std::vector<std::vector<Token>> prompts = {prompt_of(1, 0), prompt_of(2, 0), prompt_of(1, 5)};
  for (const std::vector<Token>& prompt : prompts) {
    f.Store(prompt);
    ASSERT_TRUE(f.manager->Flush().ok());
  }
  ASSERT_EQ(f.platters->objects.size(), 10u);
  // Room for one object after the other.
  f.disk_bytes = f.platters->UsedBytes();
  f.Open();
  const auto matches = [&] {
    std::vector<uint64_t> found;
    for (const std::vector<Token>& prompt : prompts) {
      found.push_back(f.manager->Peek(f.root, prompt)->matched_tokens / kTestChunk);
    }
    return found;
  };
  using Found = std::vector<uint64_t>;
  EXPECT_EQ(matches(), (Found{4, 4, 4}));
  const std::vector<Found> expected = {{3, 4, 4}, {2, 4, 4}, {2, 3, 4}, {2, 2, 4}};
  for (size_t i = 0; i < expected.size(); ++i) {
    f.Store(TestTokens(kTestChunk, static_cast<Token>(1000 + i)));
    ASSERT_TRUE(f.manager->Flush().ok());
    EXPECT_EQ(matches(), expected[i]) << i;
  }
}

}  // namespace
}  // namespace terrace
