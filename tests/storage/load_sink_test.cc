// Sinks of memory and views, whole and in sub-ranges.
#include <gtest/gtest.h>

#include <thread>

#include "tests/storage/load_fixture.h"

namespace terrace {
namespace {

constexpr uint32_t kPlane = 64;
constexpr uint32_t kHeads = 4;
constexpr uint32_t kLayers = 3;
constexpr uint32_t kBlockTokens = 8;

// Pages of an engine: [block][layer][plane][head][token][16 bytes], blocks in an order of their own.
struct Pages {
  static constexpr uint32_t kRun = kPlane / kHeads;
  static constexpr uint32_t kHeadBytes = kBlockTokens * kRun;
  static constexpr uint32_t kPlaneBytes = kHeads * kHeadBytes;
  static constexpr uint32_t kBlockBytes = kLayers * 2 * kPlaneBytes;

  std::vector<std::byte> memory;
  std::vector<int64_t> table;
  std::vector<PlaneView> planes;
  uint64_t first_token;
  uint64_t num_tokens;

  Pages(uint64_t first, uint64_t tokens) : first_token(first), num_tokens(tokens) {
    const size_t blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
    memory.assign(blocks * kBlockBytes, SinkMemory::kUntouched);
    for (size_t i = 0; i < blocks; ++i) table.push_back(static_cast<int64_t>(blocks - 1 - i));
    for (uint32_t p = 0; p < 2; ++p) {
      planes.push_back({.layer_bases = {},
                        .base = memory.data() + p * kPlaneBytes,
                        .layer_stride = 2 * kPlaneBytes,
                        .block_stride = kBlockBytes,
                        .token_stride = kRun,
                        .head_stride = kHeadBytes,
                        .num_heads = kHeads,
                        .run_bytes = kRun});
    }
  }

  PagedKvView view() const {
    return {.part = {},
            .planes = planes,
            .block_table = table,
            .tokens_per_block = kBlockTokens,
            .first_token = first_token,
            .num_tokens = num_tokens};
  }

  // The plain formula of PagedKvView, for tokens [begin, end) of the prompt.
  void Scatter(const LoadFixture& f, uint64_t begin, uint64_t end) {
    for (uint64_t token = std::max(begin, first_token); token < std::min(end, first_token + num_tokens);
         ++token) {
      const std::vector<std::byte> payload = f.Payload(token / kTestChunk);
      const uint64_t chunk_tokens = payload.size() / (kLayers * 2 * kPlane);
      const uint64_t i = token - first_token;
      if (table[i / kBlockTokens] < 0) continue;
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        for (uint32_t p = 0; p < 2; ++p) {
          for (uint32_t head = 0; head < kHeads; ++head) {
            std::byte* to = planes[p].base + layer * planes[p].layer_stride +
                            table[i / kBlockTokens] * planes[p].block_stride +
                            static_cast<int64_t>(i % kBlockTokens) * planes[p].token_stride +
                            head * planes[p].head_stride;
            const uint64_t from =
                ((layer * 2 + p) * chunk_tokens + token % kTestChunk) * kPlane + head * kRun;
            std::memcpy(to, payload.data() + from, kRun);
          }
        }
      }
    }
  }
};

TEST(LoadSinkTest, ViewsGetEachSubRangeByteForByte) {
  LoadFixture f(CanonicalSpec(kLayers, kPlane));
  f.Begin(4 * kTestChunk + 5);
  const Lease lease = f.Look();
  ASSERT_EQ(lease.matched_tokens(), f.prompt.size());
  const std::vector<TokenRange> ranges = {
      {0, f.prompt.size()}, {0, 3}, {3, 4}, {5, 37}, {16, 32}, {31, 33}, {20, 69}, {64, 67}, {7, 7}};
  for (const LoadOrder order : {LoadOrder::kChunkMajor, LoadOrder::kLayerMajor}) {
    for (const TokenRange range : ranges) {
      SCOPED_TRACE(std::to_string(range.begin) + ".." + std::to_string(range.end));
      Pages pages(0, f.prompt.size());
      Pages expected(0, f.prompt.size());
      expected.Scatter(f, range.begin, range.end);
      const PagedKvView view = pages.view();
      const LoadReport report =
          f.manager->Load(lease, range, {.memory = {}, .views = {&view, 1}}, order).Wait();
      ASSERT_TRUE(report.status.ok()) << report.status.ToString();
      EXPECT_EQ(report.loaded_tokens, range.end - range.begin);
      EXPECT_EQ(report.recompute_from, range.end);
      EXPECT_TRUE(pages.memory == expected.memory);
      EXPECT_EQ(pages.memory == Pages(0, f.prompt.size()).memory, range.begin == range.end);
    }
  }
}

TEST(LoadSinkTest, TokensOutsideAViewAndInBlocksThatAreNotThereAreSkipped) {
  LoadFixture f(CanonicalSpec(kLayers, kPlane));
  f.Begin(4 * kTestChunk);
  const Lease lease = f.Look();
  Pages pages(11, 30);
  Pages expected(11, 30);
  for (Pages* p : {&pages, &expected}) p->table[1] = -1;
  expected.Scatter(f, 0, f.prompt.size());
  const PagedKvView view = pages.view();
  const LoadReport report =
      f.manager->Load(lease, {0, f.prompt.size()}, {.memory = {}, .views = {&view, 1}}).Wait();
  EXPECT_EQ(report.loaded_tokens, f.prompt.size());
  EXPECT_TRUE(pages.memory == expected.memory);
}

TEST(LoadSinkTest, AMatchInsideAChunkCopiesTheMatchedTokensOnly) {
  LoadFixture f(CanonicalSpec(kLayers, kPlane));
  f.Begin(2 * kTestChunk);
  std::vector<Token> other = f.prompt;
  other[kTestChunk + 6] += 1;
  const Lease lease = *f.manager->Lookup(f.root, other);
  ASSERT_EQ(lease.matched_tokens(), kTestChunk + 6u);
  Pages pages(0, 2 * kTestChunk);
  Pages expected(0, 2 * kTestChunk);
  expected.Scatter(f, 0, kTestChunk + 6);
  const PagedKvView view = pages.view();
  EXPECT_TRUE(
      f.manager->Load(lease, {0, kTestChunk + 6}, {.memory = {}, .views = {&view, 1}}).Wait().status.ok());
  EXPECT_TRUE(pages.memory == expected.memory);
}

TEST(LoadSinkTest, WrongSinksAreRefusedByName) {
  LoadFixture f(CanonicalSpec(kLayers, kPlane));
  f.Begin(2 * kTestChunk);
  const Lease lease = f.Look();
  Pages pages(0, f.prompt.size());
  const PagedKvView view = pages.view();
  SinkMemory memory(2, f.spec.PayloadBytes({}, kTestChunk));
  const auto refused = [&](const LoadSink& sink, TokenRange range) {
    const Status status = f.manager->Load(lease, range, sink).Wait().status;
    return status.code() == StatusCode::kInvalidArgument ? std::string(status.message()) : "taken";
  };
  EXPECT_NE(refused({.memory = memory.spans, .views = {&view, 1}}, {0, 32}).find("memory and views"),
            std::string::npos);
  const std::vector<PagedKvView> twice = {view, view};
  EXPECT_NE(refused({.memory = {}, .views = twice}, {0, 32}).find("twice"), std::string::npos);
  PagedKvView bad = view;
  bad.tokens_per_block = 0;
  EXPECT_NE(refused({.memory = {}, .views = {&bad, 1}}, {0, 32}).find("tokens_per_block"), std::string::npos);
  EXPECT_NE(refused(memory.sink(), {3, 32}).find("multiple of 16"), std::string::npos);
  EXPECT_NE(refused({.memory = {}, .views = {&view, 1}}, {0, 33}).find("at most the match (32)"),
            std::string::npos);
  EXPECT_EQ(refused({.memory = {}, .views = {&view, 1}}, {3, 30}), "taken");
  LoadFixture whole([] {
    KvSpec spec = CanonicalSpec(kLayers, kPlane);
    spec.cut = Cut::kWhole;
    return spec;
  }());
  whole.Begin(2 * kTestChunk);
  const Lease other = whole.Look();
  const LoadReport report = whole.manager->Load(other, {3, 32}, {.memory = {}, .views = {&view, 1}}).Wait();
  EXPECT_EQ(report.status.code(), StatusCode::kInvalidArgument);
}

TEST(LoadSinkTest, MemoryIsFilledWithoutAnyoneWaiting) {
  LoadFixture f;
  f.options.load_window_bytes = 9 << 20;  // two frames
  f.Begin(6 * kTestChunk);
  const Lease lease = f.Look();
  SinkMemory memory(6, kWidePayload);
  LoadHandle handle = f.manager->Load(lease, {0, f.prompt.size()}, memory.sink());
  EXPECT_EQ(handle.Next().status().code(), StatusCode::kFailedPrecondition);
  while (handle.report().loaded_objects < 6) std::this_thread::yield();
  for (size_t chunk = 0; chunk < 6; ++chunk) EXPECT_EQ(memory.objects[chunk], f.Payload(chunk));
  EXPECT_TRUE(handle.Wait().status.ok());
}

TEST(LoadSinkTest, AFailureInTheMiddleLeavesTheChunksBeforeIt) {
  LoadFixture f;
  f.Begin(5 * kTestChunk);
  f.Corrupt(3, kWidePayload - 1);
  const Lease lease = f.Look();
  SinkMemory memory(5, kWidePayload);
  const LoadReport report = f.manager->Load(lease, {0, f.prompt.size()}, memory.sink()).Wait();
  EXPECT_EQ(report.status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(report.recompute_from, 3u * kTestChunk);
  EXPECT_EQ(report.loaded_bytes, 3 * kWidePayload);
  for (size_t chunk = 0; chunk < 3; ++chunk) EXPECT_EQ(memory.objects[chunk], f.Payload(chunk));
  EXPECT_TRUE(memory.IsUntouched(3));
  EXPECT_TRUE(memory.IsUntouched(4));
}

TEST(LoadSinkTest, ADeadlineOfWaitCancels) {
  LoadFixture f;
  f.Begin(2 * kTestChunk);
  f.platters->holding_gets = true;
  const Lease lease = f.Look();
  SinkMemory memory(2, kWidePayload);
  LoadHandle handle = f.manager->Load(lease, {0, f.prompt.size()}, memory.sink());
  EXPECT_EQ(handle.Wait(std::chrono::steady_clock::now()).status.code(), StatusCode::kDeadlineExceeded);
  f.platters->holding_gets = false;
  f.platters->ReleaseHeld();
  EXPECT_EQ(handle.Wait().status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(memory.IsUntouched(0));
}

}  // namespace
}  // namespace terrace
