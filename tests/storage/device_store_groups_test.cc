// Hybrid models: full, window and state groups of one prompt in one call, each with its own blocks, out of
// host memory and out of a device's, and back into views.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/support/eventually.h"
#include "tests/support/manager_fixture.h"
#include "tests/support/simulated_device.h"

namespace terrace {
namespace {

constexpr uint16_t kFull = 0, kWindow = 1, kState = 2;
constexpr uint64_t kWindowChunks = 3;  // a window of two chunks, and one more
constexpr uint32_t kRowBytes[] = {48, 32, 640};

KvSpec HybridSpec() {
  KvSpec spec = TestSpec(
      Cut::kNone, {{Retention::kFull, 0}, {Retention::kWindow, 2 * kTestChunk}, {Retention::kState, 0}});
  spec.payload_form = PayloadForm::kCanonical;
  for (const uint16_t group : {kFull, kWindow, kFull, kState, kWindow, kState}) {
    const PlaneSpec plane{group == kState ? PlaneKind::kRaw : PlaneKind::kLatent, DType::kU8, 1,
                          kRowBytes[group], kRowBytes[group]};
    spec.layers.push_back({group, {plane}});
  }
  return spec;
}

std::byte PatternOf(uint16_t group, uint32_t layer, uint64_t token, uint32_t at) {
  return static_cast<std::byte>(group * 89 + layer * 57 + token * 7 + (token >> 5) + at * 3 + 1);
}

// One group's blocks: two layers, [block][layer][slot][row].
struct GroupPages {
  GroupPages(uint16_t g, TokenRange t, uint32_t block_tokens, SimulatedDevice* device = nullptr)
      : group(g), tokens(t), tokens_per_block(block_tokens) {
    const uint64_t blocks = (t.end - t.begin + block_tokens - 1) / block_tokens + 1;
    for (uint64_t i = blocks - 1; i > 0; --i) table.push_back(static_cast<int64_t>(i));
    layer_bytes = uint64_t{block_tokens} * kRowBytes[g];
    bytes = blocks * 2 * layer_bytes;
    memory = device != nullptr
                 ? *device->Allocate(bytes)
                 : std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
    std::memset(memory.get(), 0xee, bytes);
    plane = {.layer_bases = {},
             .base = memory.get(),
             .layer_stride = static_cast<int64_t>(layer_bytes),
             .block_stride = static_cast<int64_t>(2 * layer_bytes),
             .token_stride = kRowBytes[g],
             .num_heads = 1,
             .run_bytes = kRowBytes[g]};
  }
  std::byte* Row(uint32_t layer, uint64_t token) const {
    const uint64_t slot = token - tokens.begin;
    const int64_t block = table[slot / tokens_per_block];
    if (block < 0) return nullptr;
    return memory.get() + (static_cast<uint64_t>(block) * 2 + layer) * layer_bytes +
           slot % tokens_per_block * kRowBytes[group];
  }
  void Compute() const {
    for (uint64_t token = tokens.begin; token < tokens.end; ++token) {
      for (uint32_t layer = 0; layer < 2; ++layer) {
        std::byte* const row = Row(layer, token);
        for (uint32_t at = 0; row != nullptr && at < kRowBytes[group]; ++at)
          row[at] = PatternOf(group, layer, token, at);
      }
    }
  }
  // Tokens of which all bytes are the computed ones, and those of which all are untouched.
  bool IsComputed(uint64_t token) const {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      for (uint32_t at = 0; at < kRowBytes[group]; ++at) {
        if (Row(layer, token)[at] != PatternOf(group, layer, token, at)) return false;
      }
    }
    return true;
  }
  PagedKvView view(std::shared_ptr<Stream> stream = nullptr) const {
    return {.part = {group, 0},
            .planes = {&plane, 1},
            .block_table = table,
            .tokens_per_block = tokens_per_block,
            .first_token = tokens.begin,
            .num_tokens = tokens.end - tokens.begin,
            .stream = std::move(stream)};
  }

  const uint16_t group;
  const TokenRange tokens;
  const uint32_t tokens_per_block;
  uint64_t layer_bytes = 0, bytes = 0;
  std::shared_ptr<std::byte> memory;
  std::vector<int64_t> table;
  PlaneView plane;
};

struct HybridWorld : ManagerFixture {
  const KvSpec spec = HybridSpec();
  const std::vector<ObjectPart> parts = {{kFull, 0}, {kWindow, 0}, {kState, 0}};
  std::shared_ptr<SimulatedDevice> device;
  std::shared_ptr<Stream> stream;

  explicit HybridWorld(uint64_t device_seed = 0) {
    options.clock = nullptr;
    if (device_seed != 0) {
      device = SimulatedDevice::Make({.seed = device_seed});
      stream = device->EngineStream();
      options.devices = {
          {.device = device, .to_host = CopyStrategy::kBatched, .to_device = CopyStrategy::kBatched}};
    }
    Open(spec);
  }
  Result<StoreHandle> StorePages(const std::vector<Token>& prompt, TokenRange range,
                                 const std::vector<const GroupPages*>& pages) {
    std::vector<PagedKvView> views;
    for (const GroupPages* p : pages) {
      if (device) {
        device->Enqueue(*stream, [p] { p->Compute(); });
      } else {
        p->Compute();
      }
      views.push_back(p->view(stream));
    }
    return manager->Store(root, prompt, range, views);
  }
  StoreReport StoreAndFlush(const std::vector<Token>& prompt, TokenRange range,
                            const std::vector<const GroupPages*>& pages) {
    Result<StoreHandle> handle = StorePages(prompt, range, pages);
    if (!handle.ok()) return {.status = handle.status()};
    StoreReport report = handle->Wait(std::chrono::steady_clock::now() + std::chrono::minutes(1));
    EXPECT_TRUE(manager->Flush().ok());
    if (device)
      device->Synchronize();  // what is there already is not copied, and its computing not waited for
    return report;
  }
  // Into fresh views of other block sizes; whether every token that a decoder at the match's end reads is
  // right.
  uint64_t LoadRight(const std::vector<Token>& prompt, LoadOrder order = LoadOrder::kChunkMajor) {
    Result<Lease> lease = manager->Lookup(root, prompt, {.parts = parts});
    EXPECT_TRUE(lease.ok());
    const uint64_t n = lease->matched_tokens();
    if (n == 0) return 0;
    const uint64_t window_from = n > 2 * kTestChunk ? n - 2 * kTestChunk : 0;
    const GroupPages full(kFull, {0, n}, 24), window(kWindow, {window_from, n}, 8),
        state(kState, {n - 1, n}, 1);
    const std::vector<PagedKvView> views = {full.view(), window.view(), state.view()};
    LoadHandle load = manager->Load(*lease, {0, n}, {.memory = {}, .views = views}, order);
    const LoadReport report = load.Wait();
    EXPECT_TRUE(report.status.ok()) << report.status.ToString();
    EXPECT_EQ(report.recompute_from, n);
    for (const GroupPages* pages : {&full, &window, &state}) {
      for (uint64_t token = pages->tokens.begin; token < pages->tokens.end; ++token)
        EXPECT_TRUE(pages->IsComputed(token)) << "group " << pages->group << ", token " << token;
    }
    return report.loaded_tokens;
  }
};

constexpr uint64_t kEnd = 6 * kTestChunk;

TEST(DeviceStoreGroupsTest, AStateIsOneRowOfItsPayload) {
  const KvSpec spec = HybridSpec();
  ASSERT_TRUE(spec.Validate().ok());
  EXPECT_EQ(spec.PayloadBytes({kFull, 0}, kTestChunk), 2u * kTestChunk * kRowBytes[kFull]);
  EXPECT_EQ(spec.PayloadBytes({kState, 0}, kTestChunk), 2u * kRowBytes[kState]);
  EXPECT_EQ(spec.PayloadBytes({kState, 0}, 1), 2u * kRowBytes[kState]);
  EXPECT_EQ(spec.PayloadBytes({kState, 0}, 0), 0u);
}

// The engine holds the whole prompt of the full group, the last three chunks of the window, one state.
TEST(DeviceStoreGroupsTest, WhatAnEngineHoldsAtTheEndIsEnough) {
  for (const uint64_t seed : {0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u}) {
    for (const uint64_t end : {kEnd, kEnd + 5}) {
      SCOPED_TRACE("device seed " + std::to_string(seed) + ", " + std::to_string(end) + " tokens");
      HybridWorld world(seed);
      const std::vector<Token> prompt = TestTokens(end);
      const GroupPages full(kFull, {0, end}, 8, world.device.get());
      const GroupPages window(kWindow, {kEnd - kWindowChunks * kTestChunk, end}, 16, world.device.get());
      const GroupPages state(kState, {end - 1, end}, 1, world.device.get());
      const StoreReport report = world.StoreAndFlush(prompt, {0, end}, {&full, &window, &state});
      ASSERT_TRUE(report.status.ok()) << report.status.ToString();
      const uint64_t tail = end > kEnd ? 1 : 0;
      EXPECT_EQ(report.stored_objects, (6 + tail) + (kWindowChunks + tail) + 1);
      EXPECT_EQ(report.stored_tokens, end);
      EXPECT_EQ(world.LoadRight(prompt), end);
      EXPECT_EQ(world.LoadRight(prompt, LoadOrder::kLayerMajor), end);
      // Again: all that was held is there.
      const StoreReport again = world.StoreAndFlush(prompt, {0, end}, {&full, &window, &state});
      EXPECT_TRUE(again.status.ok());
      EXPECT_EQ(again.stored_objects, 0u);
      EXPECT_EQ(again.present_objects, report.stored_objects);
      // What lies in a window without what stands before it outlives a restart.
      world.Open(world.spec);
      EXPECT_EQ(world.manager->Stats().tiers[1].objects, report.stored_objects);
      EXPECT_EQ(world.LoadRight(prompt), end);
    }
  }
}

TEST(DeviceStoreGroupsTest, BlocksThatWereGivenUpAreNegative) {
  HybridWorld world;
  const std::vector<Token> prompt = TestTokens(kEnd);
  const GroupPages full(kFull, {0, kEnd}, 16);
  GroupPages window(kWindow, {0, kEnd}, 8);
  for (size_t block = 0; block < 5; ++block) window.table[block] = -1;  // up to the middle of the third chunk
  GroupPages state(kState, {kTestChunk - 1, kEnd}, 1);
  for (size_t slot = 0; slot + 1 < state.table.size(); ++slot) {
    if ((slot + 1) % kTestChunk != 1 || slot / kTestChunk % 2 == 0) state.table[slot] = -1;
  }
  const StoreReport report = world.StoreAndFlush(prompt, {0, kEnd}, {&full, &window, &state});
  ASSERT_TRUE(report.status.ok()) << report.status.ToString();
  const auto states = std::count_if(state.table.begin(), state.table.end(), [](int64_t b) { return b >= 0; });
  EXPECT_GT(states, 1);
  EXPECT_EQ(report.stored_objects, 6 + kWindowChunks + static_cast<uint64_t>(states));
  EXPECT_EQ(world.LoadRight(prompt), kEnd);
}

// Prefill in steps: a window's earlier chunks were stored when they were there.
TEST(DeviceStoreGroupsTest, StepByStep) {
  for (const uint64_t seed : {0u, 1u, 2u, 3u}) {
    HybridWorld world(seed);
    const std::vector<Token> prompt = TestTokens(kEnd);
    for (uint64_t begin = 0; begin < kEnd; begin += 2 * kTestChunk) {
      const uint64_t end = begin + 2 * kTestChunk;
      const GroupPages full(kFull, {begin, end}, 8, world.device.get());
      const GroupPages window(kWindow, {begin, end}, 8, world.device.get());
      const GroupPages state(kState, {end - 1, end}, 1, world.device.get());
      const StoreReport report = world.StoreAndFlush(prompt, {begin, end}, {&full, &window, &state});
      ASSERT_TRUE(report.status.ok()) << report.status.ToString();
      EXPECT_EQ(report.stored_objects, 2u + 2u + 1u);
      EXPECT_EQ(world.LoadRight({prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(end)}), end);
    }
    // The whole of it, with a window that holds less than its rule asks for, but for what is stored.
    const GroupPages full(kFull, {0, kEnd}, 8, world.device.get());
    const GroupPages window(kWindow, {kEnd - kTestChunk, kEnd}, 8, world.device.get());
    const GroupPages state(kState, {kEnd - 1, kEnd}, 1, world.device.get());
    const StoreReport report = world.StoreAndFlush(prompt, {0, kEnd}, {&full, &window, &state});
    EXPECT_TRUE(report.status.ok()) << report.status.ToString();
    EXPECT_EQ(report.present_objects, 6u + 1u + 1u);
  }
}

TEST(DeviceStoreGroupsTest, WhatNoRuleCouldServeIsRefused) {
  HybridWorld world;
  const std::vector<Token> prompt = TestTokens(kEnd);
  const GroupPages full(kFull, {0, kEnd}, 8), part_of_full(kFull, {kTestChunk, kEnd}, 8);
  const GroupPages window(kWindow, {kEnd - kWindowChunks * kTestChunk, kEnd}, 8),
      short_window(kWindow, {kEnd - 2 * kTestChunk, kEnd}, 8), early_window(kWindow, {0, kEnd - 1}, 8);
  const GroupPages state(kState, {kEnd - 1, kEnd}, 1), early_state(kState, {0, kEnd - 1}, 1);
  for (const std::vector<const GroupPages*>& pages :
       {std::vector<const GroupPages*>{&part_of_full, &window, &state},
        std::vector<const GroupPages*>{&full, &early_window, &state},
        std::vector<const GroupPages*>{&full, &window, &early_state}}) {
    const Result<StoreHandle> refused = world.StorePages(prompt, {0, kEnd}, pages);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().ToString().find("cover"), std::string::npos) << refused.status().ToString();
  }
  // Known only once it is looked at what is stored.
  const StoreReport report = world.StoreAndFlush(prompt, {0, kEnd}, {&full, &short_window, &state});
  EXPECT_EQ(report.status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(report.status.ToString().find("window"), std::string::npos) << report.status.ToString();
  EXPECT_EQ(report.stored_tokens, kEnd - kWindowChunks * kTestChunk);
  EXPECT_EQ(world.LoadRight(prompt), 0u);
}

}  // namespace
}  // namespace terrace
