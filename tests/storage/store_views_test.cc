// Store of views: what lies in an engine's pages is stored as if it had been filled in place, and the pages
// are given back exactly once, whatever becomes of the store.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "terrace/token_hasher.h"
#include "tests/support/manager_fixture.h"
#include "tests/support/step_executor.h"

namespace terrace {
namespace {

constexpr uint32_t kHeads = 8;
constexpr uint32_t kHeadBytes = 64;
constexpr uint32_t kLayers = 4;

std::span<const Token> First(const std::vector<Token>& tokens, size_t n) {
  return std::span(tokens).first(n);
}

// Layers in `groups` groups in turn, heads in `shards` shards.
KvSpec PagedSpec(uint32_t groups = 1, uint32_t shards = 1) {
  KvSpec spec = TestSpec(Cut::kRanged, std::vector<GroupSpec>(groups));
  spec.payload_form = PayloadForm::kCanonical;
  PlaneSpec k{.kind = PlaneKind::kK, .heads = kHeads, .head_dim = 32, .bytes_per_token = kHeads * kHeadBytes};
  PlaneSpec v = k;
  v.kind = PlaneKind::kV;
  for (uint32_t l = 0; l < kLayers; ++l) {
    spec.layers.push_back({.group = static_cast<uint16_t>(l % groups), .planes = {k, v}});
  }
  for (uint32_t s = 0; shards > 1 && s < shards; ++s)
    spec.shards.push_back({.tensor_rank = s, .tensor_size = shards, .layer_begin = 0, .layer_end = kLayers});
  return spec;
}

// The KV of one head of one token, wherever it lies.
void FillHead(std::byte* to, uint32_t layer, uint32_t plane, uint32_t head, uint64_t token) {
  for (uint32_t b = 0; b < kHeadBytes; ++b)
    to[b] = static_cast<std::byte>(layer * 71 + plane * 37 + head * 11 + token * 3 + b + (token >> 6));
}

struct PartOf {
  const KvSpec& spec;
  ObjectPart part;
  std::vector<uint32_t> layers() const {
    std::vector<uint32_t> out;
    for (uint32_t l = 0; l < kLayers; ++l) {
      if (spec.layers[l].group == part.group) out.push_back(l);
    }
    return out;
  }
  uint32_t heads() const { return kHeads / spec.num_shards(); }
  uint32_t first_head() const { return heads() * part.shard; }
};

std::vector<std::byte> CanonicalPayload(const PartOf& part, TokenRange tokens) {
  std::vector<std::byte> payload;
  for (const uint32_t layer : part.layers()) {
    for (uint32_t plane = 0; plane < 2; ++plane) {
      for (uint64_t token = tokens.begin; token < tokens.end; ++token) {
        for (uint32_t head = 0; head < part.heads(); ++head) {
          payload.resize(payload.size() + kHeadBytes);
          FillHead(payload.data() + payload.size() - kHeadBytes, layer, plane, part.first_head() + head,
                   token);
        }
      }
    }
  }
  return payload;
}

enum class Pages {
  kLayerArrays,  // one array per layer; in a block tokens, then heads
  kCrossLayer,   // one for all; in a block layers, planes, heads, then tokens
};

// The memory of one part in an engine, and its description.
struct EnginePart {
  std::vector<std::byte> memory;
  std::vector<std::byte*> layer_bases[2];
  std::vector<PlaneView> planes;
  std::vector<int64_t> table;
  PagedKvView view;

  EnginePart(const PartOf& part, Pages pages, uint32_t block_tokens, TokenRange tokens) {
    const std::vector<uint32_t> layers = part.layers();
    const auto num_layers = static_cast<int64_t>(layers.size());
    const int64_t num_tokens = static_cast<int64_t>(tokens.end - tokens.begin);
    const int64_t blocks = (num_tokens + block_tokens - 1) / block_tokens + 1;
    for (int64_t i = blocks - 1; i > 0; --i) table.push_back(i);
    const int64_t block_bytes = int64_t{block_tokens} * part.heads() * kHeadBytes;
    memory.assign(static_cast<size_t>(num_layers * 2 * blocks * block_bytes), std::byte{0xee});
    for (int64_t p = 0; p < 2; ++p) {
      PlaneView plane{.num_heads = part.heads(), .run_bytes = kHeadBytes};
      if (pages == Pages::kLayerArrays) {
        for (int64_t l = 0; l < num_layers; ++l)
          layer_bases[p].push_back(memory.data() + (l * 2 + p) * blocks * block_bytes);
        plane.layer_bases = layer_bases[p];
        plane.block_stride = block_bytes;
        plane.token_stride = int64_t{part.heads()} * kHeadBytes;
        plane.head_stride = kHeadBytes;
      } else {
        plane.base = memory.data() + p * block_bytes;
        plane.layer_stride = 2 * block_bytes;
        plane.block_stride = num_layers * 2 * block_bytes;
        plane.token_stride = kHeadBytes;
        plane.head_stride = int64_t{block_tokens} * kHeadBytes;
      }
      planes.push_back(plane);
    }
    view = {.part = part.part,
            .planes = planes,
            .block_table = table,
            .tokens_per_block = block_tokens,
            .first_token = tokens.begin,
            .num_tokens = static_cast<uint64_t>(num_tokens)};
    for (uint64_t token = tokens.begin; token < tokens.end; ++token) {
      const auto i = static_cast<int64_t>(token - tokens.begin);
      for (int64_t l = 0; l < num_layers; ++l) {
        for (uint32_t p = 0; p < 2; ++p) {
          std::byte* base = pages == Pages::kLayerArrays ? layer_bases[p][static_cast<size_t>(l)]
                                                         : planes[p].base + l * planes[p].layer_stride;
          base += table[static_cast<size_t>(i / block_tokens)] * planes[p].block_stride;
          for (uint32_t h = 0; h < part.heads(); ++h)
            FillHead(base + i % block_tokens * planes[p].token_stride + h * planes[p].head_stride,
                     layers[static_cast<size_t>(l)], p, part.first_head() + h, token);
        }
      }
    }
  }
};

std::vector<ObjectPart> AllParts(const KvSpec& spec) {
  std::vector<ObjectPart> parts;
  for (uint16_t g = 0; g < spec.groups.size(); ++g) {
    for (uint16_t s = 0; s < spec.num_shards(); ++s) parts.push_back({g, s});
  }
  return parts;
}

struct ViewFixture : ManagerFixture {
  KvSpec spec;
  std::shared_ptr<StepExecutor> steps;
  std::vector<std::unique_ptr<EnginePart>> engine;  // what is being stored
  Pages pages = Pages::kLayerArrays;
  uint32_t block_tokens = 8;

  explicit ViewFixture(bool by_steps = true, KvSpec s = PagedSpec()) : spec(std::move(s)) {
    if (by_steps) options.executor = steps = std::make_shared<StepExecutor>();
    Reopen();
  }
  void Reopen() {
    Open(spec);
    Settle();
  }
  void Settle() {
    if (steps) steps->RunAll();
    ASSERT_TRUE(manager->Flush().ok());
  }
  // All parts of tokens `range`, out of pages that hold just these. The descriptions end with the call.
  Result<StoreHandle> StoreViews(const TokenView& prompt, TokenRange range, const StoreOptions& more = {}) {
    std::vector<PagedKvView> views;
    const size_t first = engine.size();
    for (const ObjectPart part : AllParts(spec)) {
      engine.push_back(std::make_unique<EnginePart>(PartOf{spec, part}, pages, block_tokens, range));
      views.push_back(engine.back()->view);
    }
    Result<StoreHandle> handle = manager->Store(root, prompt, range, views, more);
    for (size_t i = first; i < engine.size(); ++i) {
      engine[i]->planes.assign(engine[i]->planes.size(), PlaneView{});
      engine[i]->table.assign(engine[i]->table.size(), -1);
      for (auto& bases : engine[i]->layer_bases) bases.assign(bases.size(), nullptr);
    }
    return handle;
  }
  // Loads all parts of the match, compares them with what canonical payloads should be; the tokens.
  uint64_t LoadRight(const TokenView& prompt) {
    Result<Lease> lease = manager->Lookup(root, prompt, {.parts = AllParts(spec)});
    EXPECT_TRUE(lease.ok());
    LoadHandle load = manager->Load(*lease, {0, lease->matched_tokens()});
    while (true) {
      Result<std::optional<LeasedChunk>> chunk = load.Next();
      EXPECT_TRUE(chunk.ok());
      if (!chunk.ok() || !chunk->has_value()) return load.report().loaded_tokens;
      const std::vector<std::byte> expected =
          CanonicalPayload({spec, (*chunk)->id().part}, (*chunk)->payload_tokens());
      const Bytes payload = (*chunk)->payload();
      EXPECT_TRUE(payload.size() == expected.size() &&
                  std::memcmp(payload.data(), expected.data(), expected.size()) == 0)
          << "chunk " << (*chunk)->chunk_index();
    }
  }
};

TEST(StoreViewsTest, BytesEqualThoseOfPrepareAndCommit) {
  for (const auto& [groups, shards] : {std::pair{1u, 1u}, {2u, 1u}, {1u, 2u}, {2u, 2u}}) {
    for (const Pages pages : {Pages::kLayerArrays, Pages::kCrossLayer}) {
      for (const uint32_t block_tokens : {8u, 16u, 24u}) {
        SCOPED_TRACE(std::to_string(groups) + " groups, " + std::to_string(shards) + " shards, blocks of " +
                     std::to_string(block_tokens) + ", pages " + std::to_string(static_cast<int>(pages)));
        ViewFixture by_view(true, PagedSpec(groups, shards));
        ViewFixture in_place(true, PagedSpec(groups, shards));
        by_view.pages = pages;
        by_view.block_tokens = block_tokens;
        const std::vector<Token> tokens = TestTokens(3 * kTestChunk + 5);
        const std::vector<Item> items = {{0, {std::byte{1}}}, {20, {std::byte{2}}}, {50, {std::byte{3}}}};
        const TokenView prompt(tokens, items);
        Result<StoreHandle> handle = by_view.StoreViews(prompt, {0, tokens.size()});
        ASSERT_TRUE(handle.ok()) << handle.status().ToString();
        by_view.Settle();
        const StoreReport report = handle->Wait();
        EXPECT_TRUE(report.status.ok()) << report.status.ToString();
        EXPECT_EQ(report.stored_objects, 4u * groups * shards);
        EXPECT_EQ(report.present_objects, 0u);
        EXPECT_EQ(report.stored_tokens, tokens.size());
        Result<PrepareResult> prepared = in_place.manager->Prepare(
            in_place.root, prompt, {0, tokens.size()},
            [&](TokenRange range, ObjectPart part) -> Result<uint64_t> {
              return in_place.spec.PayloadBytes(part, static_cast<uint32_t>(range.end - range.begin));
            },
            AllParts(in_place.spec));
        ASSERT_TRUE(prepared.ok() && prepared->status.ok());
        std::vector<WritableChunk> filled;
        for (PreparedChunk& chunk : prepared->chunks) {
          const std::vector<std::byte> payload =
              CanonicalPayload({in_place.spec, chunk.id.part}, chunk.tokens);
          ASSERT_EQ(chunk.writable->payload().size(), payload.size());
          std::memcpy(chunk.writable->payload().data(), payload.data(), payload.size());
          filled.push_back(*std::move(chunk.writable));
        }
        in_place.manager->Commit(std::move(filled));
        in_place.Settle();
        EXPECT_EQ(in_place.LoadRight(prompt), tokens.size());
        EXPECT_EQ(by_view.LoadRight(prompt), tokens.size());
        // Down to the frames.
        ASSERT_EQ(by_view.platters->objects.size(), in_place.platters->objects.size());
        for (const auto& [id, object] : in_place.platters->objects)
          EXPECT_EQ(by_view.platters->objects[id].frame, object.frame);
      }
    }
  }
}

TEST(StoreViewsTest, TheSourceIsFreeOnceAndOnlyAfterTheCopy) {
  ViewFixture f;
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  std::vector<StoreReport> told;
  StoreHandle handle =
      *f.StoreViews(prompt, {0, prompt.size()}, {.on_source_free = [&](const StoreReport& r) {
                      told.push_back(r);
                      for (const auto& part : f.engine)
                        std::fill(part->memory.begin(), part->memory.end(), std::byte{0});
                    }});
  EXPECT_TRUE(told.empty());
  const TimePoint soon = Clock::Real()->Now() + std::chrono::milliseconds(5);
  EXPECT_EQ(handle.Wait(soon).status.code(), StatusCode::kDeadlineExceeded);
  f.Settle();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].stored_objects, 2u);
  EXPECT_EQ(told[0].stored_tokens, prompt.size());
  EXPECT_TRUE(told[0].status.ok());
  EXPECT_EQ(f.LoadRight(prompt), prompt.size());
  handle.Cancel();
  EXPECT_TRUE(handle.Wait().status.ok()) << "too late";
  handle = StoreHandle();
  // A callback that throws is counted, and stops nothing.
  f.StoreViews(prompt, {0, prompt.size()}, {.on_source_free = [](const StoreReport&) { throw 1; }})
      .status()
      .IgnoreError();
  f.Settle();
  EXPECT_EQ(f.manager->metrics().Value("terrace_manager_callback_exceptions_total"), 1);
  EXPECT_EQ(f.steps->exceptions(), 0);
  EXPECT_EQ(told.size(), 1u);
}

TEST(StoreViewsTest, CancelledBeforeTheCopy) {
  ViewFixture f;
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  int told = 0;
  StoreHandle handle =
      *f.StoreViews(prompt, {0, prompt.size()}, {.on_source_free = [&](const StoreReport&) { ++told; }});
  handle.Cancel();
  handle.Cancel();
  f.Settle();
  const StoreReport report = handle.Wait();
  EXPECT_EQ(report.status.code(), StatusCode::kCancelled);
  EXPECT_EQ(report.stored_objects + report.present_objects + report.stored_tokens, 0u);
  EXPECT_EQ(told, 1);
  EXPECT_EQ(f.Match(prompt), 0u);
  EXPECT_EQ(f.manager->Stats().index_entries, 0u);
  EXPECT_EQ(f.manager->Stats().pool_used_bytes, 0u);
}

TEST(StoreViewsTest, AFullPoolEndsItEarly) {
  ViewFixture f;
  f.with_disk = false;
  f.options.pool_bytes = 4 * (uint64_t{128} << 10);
  f.Reopen();
  const std::vector<Token> other = TestTokens(3 * kTestChunk, 9);
  const std::vector<Token> prompt = TestTokens(3 * kTestChunk, 1);
  // Buffers in the hands of a caller.
  Result<PrepareResult> held = f.manager->Prepare(
      f.root, other, {0, other.size()},
      [&](TokenRange, ObjectPart) -> Result<uint64_t> { return f.spec.PayloadBytes({}, kTestChunk); });
  ASSERT_TRUE(held.ok());
  std::vector<PrepareResult> more;
  Result<StoreHandle> handle = f.StoreViews(prompt, {0, prompt.size()});
  ASSERT_TRUE(handle.ok());
  f.steps->RunAll();
  const StoreReport report = handle->Wait();
  EXPECT_EQ(report.status.code(), StatusCode::kResourceExhausted);
  EXPECT_LT(report.stored_tokens, prompt.size());
  EXPECT_EQ(report.stored_tokens, report.stored_objects * kTestChunk);
  f.Settle();
  EXPECT_EQ(f.LoadRight(prompt), report.stored_tokens);
  held->chunks.clear();
  handle = f.StoreViews(prompt, {0, prompt.size()});
  f.Settle();
  EXPECT_TRUE(handle->Wait().status.ok());
  EXPECT_EQ(handle->Wait().present_objects, report.stored_objects);
  EXPECT_EQ(f.LoadRight(prompt), prompt.size());
}

TEST(StoreViewsTest, AHoleBeforeTheRange) {
  ViewFixture f;
  const std::vector<Token> prompt = TestTokens(4 * kTestChunk + 3);
  int told = 0;
  const StoreOptions options{.on_source_free = [&](const StoreReport& r) {
    ++told;
    EXPECT_EQ(r.status.code(), StatusCode::kFailedPrecondition);
  }};
  StoreHandle handle = *f.StoreViews(prompt, {2 * kTestChunk, prompt.size()}, options);
  f.Settle();
  EXPECT_EQ(handle.Wait().stored_tokens, 0u);
  EXPECT_EQ(told, 1);
  EXPECT_EQ(f.manager->Stats().index_entries, 0u);
  // In the right order, each range out of pages of its own.
  handle = *f.StoreViews(prompt, {0, 2 * kTestChunk});
  StoreHandle second = *f.StoreViews(prompt, {2 * kTestChunk, prompt.size()}, {.request_id = 5});
  f.Settle();
  EXPECT_EQ(second.Wait().stored_tokens, 2 * kTestChunk + 3);
  EXPECT_EQ(f.LoadRight(prompt), prompt.size());
}

TEST(StoreViewsTest, WhatIsBeingStoredIsPresent) {
  ViewFixture f;
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  StoreHandle first = *f.StoreViews(prompt, {0, prompt.size()});
  StoreHandle second = *f.StoreViews(prompt, {0, prompt.size()});
  f.Settle();
  EXPECT_EQ(first.Wait().stored_objects, 2u);
  EXPECT_EQ(second.Wait().present_objects, 2u);
  EXPECT_EQ(second.Wait().stored_objects, 0u);
  EXPECT_EQ(second.Wait().stored_tokens, prompt.size());
  EXPECT_EQ(f.manager->Stats().stored_objects, 2u);
  // In the hands of a Prepare.
  const std::vector<Token> other = TestTokens(kTestChunk, 2);
  Result<PrepareResult> held = f.manager->Prepare(
      f.root, other, {0, kTestChunk},
      [&](TokenRange, ObjectPart) -> Result<uint64_t> { return f.spec.PayloadBytes({}, kTestChunk); });
  StoreHandle third = *f.StoreViews(other, {0, kTestChunk});
  f.steps->RunAll();
  EXPECT_EQ(third.Wait().present_objects, 1u);
  // And erased between the call and the copy: it is a store of its own.
  held->chunks.clear();
  StoreHandle fourth = *f.StoreViews(other, {0, kTestChunk});
  EXPECT_EQ(*f.manager->ErasePrefix(f.root, {}), 2u);
  f.Settle();
  EXPECT_EQ(fourth.Wait().stored_objects, 1u);
  EXPECT_EQ(f.LoadRight(other), kTestChunk);
}

TEST(StoreViewsTest, CloseDrainsWhatIsQueued) {
  ViewFixture f(false);
  // The copies may all come before the first one is written: then a pool of 8 MiB keeps 48 of them, as what
  // is told says.
  for (const uint64_t pool_bytes : {32 << 20, 8 << 20}) {
    SCOPED_TRACE(std::to_string(pool_bytes) + " bytes of pool");
    f.platters->objects.clear();
    f.options.pool_bytes = pool_bytes;
    f.Reopen();
    std::vector<std::optional<StoreReport>> told(50);
    std::vector<std::vector<Token>> prompts;
    for (Token i = 0; i < 50; ++i) {
      prompts.push_back(TestTokens(kTestChunk, 10 + i));
      ASSERT_TRUE(f.StoreViews(prompts.back(), {0, kTestChunk},
                               {.on_source_free = [&told, i](const StoreReport& r) { told[i] = r; }})
                      .ok());
    }
    ASSERT_TRUE(f.manager->Close().ok());
    EXPECT_EQ(f.StoreViews(prompts[0], {0, kTestChunk}).status().code(), StatusCode::kFailedPrecondition);
    f.Reopen();
    for (size_t i = 0; i < prompts.size(); ++i) {
      ASSERT_TRUE(told[i].has_value());
      EXPECT_EQ(f.LoadRight(prompts[i]), told[i]->stored_tokens);
      if (i < 48 || pool_bytes > (8 << 20)) EXPECT_TRUE(told[i]->status.ok()) << told[i]->status.ToString();
    }
  }
}

TEST(StoreViewsTest, FlushWaitsForTheWritesOfWhatIsYetToBeCopied) {
  ViewFixture f(false);
  for (Token i = 0; i < 50; ++i) {
    const std::vector<Token> prompt = TestTokens(4 * kTestChunk, 10 + i);
    ASSERT_TRUE(f.StoreViews(prompt, {0, prompt.size()}).ok());
    ASSERT_TRUE(f.manager->Flush().ok());
    std::lock_guard lock(f.platters->mutex);
    ASSERT_EQ(f.platters->objects.size(), 4 * (i + 1));
  }
}

TEST(StoreViewsTest, AnExecutorThatDropsItsWorkFreesTheSourceToo) {
  ViewFixture f;
  const std::vector<Token> prompt = TestTokens(kTestChunk);
  std::vector<StatusCode> told;
  StoreHandle handle =
      *f.StoreViews(prompt, {0, kTestChunk},
                    {.on_source_free = [&](const StoreReport& r) { told.push_back(r.status.code()); }});
  f.steps->DropAll();
  EXPECT_EQ(told, std::vector<StatusCode>{StatusCode::kCancelled});
  EXPECT_TRUE(f.manager->Close().ok()) << "nothing is left to wait for";
  EXPECT_EQ(handle.Wait().status.code(), StatusCode::kCancelled);
  EXPECT_EQ(handle.Wait().stored_objects, 0u);
  f.manager.reset();
  EXPECT_EQ(told.size(), 1u);
}

TEST(StoreViewsTest, AtMostAThousandWait) {
  ViewFixture f;
  const std::vector<Token> prompt = TestTokens(kTestChunk);
  EnginePart part({f.spec, {}}, Pages::kLayerArrays, 8, {0, kTestChunk});
  int told = 0;
  const StoreOptions options{.on_source_free = [&](const StoreReport&) { ++told; }};
  for (int i = 0; i < 1024; ++i)
    ASSERT_TRUE(f.manager->Store(f.root, prompt, {0, kTestChunk}, {&part.view, 1}, options).ok());
  EXPECT_EQ(f.manager->Store(f.root, prompt, {0, kTestChunk}, {&part.view, 1}, options).status().code(),
            StatusCode::kResourceExhausted);
  f.Settle();
  EXPECT_EQ(told, 1024) << "the refused one never had the source";
  EXPECT_TRUE(f.manager->Store(f.root, prompt, {0, kTestChunk}, {&part.view, 1}, options).ok());
  f.Settle();
  EXPECT_EQ(told, 1025);
  EXPECT_EQ(f.LoadRight(prompt), kTestChunk);
}

TEST(StoreViewsTest, WhatAnExecutorDropsWaitsNoMore) {
  ViewFixture f;
  const std::vector<Token> prompt = TestTokens(kTestChunk);
  EnginePart part({f.spec, {}}, Pages::kLayerArrays, 8, {0, kTestChunk});
  for (int i = 0; i < 1100; ++i) {
    ASSERT_TRUE(f.manager->Store(f.root, prompt, {0, kTestChunk}, {&part.view, 1}).ok()) << i;
    f.steps->DropAll();
  }
  ASSERT_TRUE(f.manager->Store(f.root, prompt, {0, kTestChunk}, {&part.view, 1}).ok());
  f.Settle();
  EXPECT_EQ(f.LoadRight(prompt), kTestChunk);
}

TEST(StoreViewsTest, BadCallsAreRefusedByField) {
  ViewFixture f(true, PagedSpec(2, 1));
  const std::vector<Token> prompt = TestTokens(2 * kTestChunk);
  EnginePart part({f.spec, {}}, Pages::kLayerArrays, 8, {0, prompt.size()});
  bool told = false;
  const auto refusal = [&](const PagedKvView& view, TokenRange range = {0, 2 * kTestChunk}) {
    const Status status = f.manager
                              ->Store(f.root, prompt, range, {&view, 1},
                                      {.on_source_free = [&](const StoreReport&) { told = true; }})
                              .status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
    return status.ToString();
  };
  const auto with = [&](auto&& change) {
    PagedKvView view = part.view;
    change(view);
    return refusal(view);
  };
  const auto names = [](const std::string& text, std::string_view field) {
    EXPECT_NE(text.find(field), std::string::npos) << text;
  };
  names(with([](PagedKvView& v) { v.planes = {}; }), "planes");
  names(with([](PagedKvView& v) { v.tokens_per_block = 0; }), "tokens_per_block");
  names(with([](PagedKvView& v) { v.block_table = v.block_table.first(3); }), "block_table");
  names(with([](PagedKvView& v) {
          v.num_tokens = UINT64_MAX;
          v.first_token = 1;
        }),
        "num_tokens");
  names(with([](PagedKvView& v) { v.part = {2, 0}; }), "group");
  names(with([](PagedKvView& v) { v.part = {0, 1}; }), "shard");
  names(with([](PagedKvView& v) {
          v.first_token = 1;
          v.num_tokens -= 1;
        }),
        "cover");
  names(with([](PagedKvView& v) { v.num_tokens -= 1; }), "cover");
  std::vector<PlaneView> planes = part.planes;
  planes[1].run_bytes = 32;
  names(with([&](PagedKvView& v) { v.planes = planes; }), "planes[1].num_heads * run_bytes");
  names(refusal(part.view, {3, 2 * kTestChunk}), "token range");
  names(refusal(part.view, {0, 2 * kTestChunk + 1}), "token range");
  EXPECT_EQ(f.manager->Store(f.root, prompt, {0, kTestChunk}, {}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(f.manager->Store(ChunkKey{}, prompt, {0, kTestChunk}, {&part.view, 1}).status().code(),
            StatusCode::kNotFound);
  const ChunkKey opaque = *f.manager->Root(TestSpec());
  f.Settle();
  const Status status = f.manager->Store(opaque, prompt, {0, kTestChunk}, {&part.view, 1}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  names(status.ToString(), "opaque");
  EXPECT_FALSE(told);
  // A block that is not there shows when its chunk is copied: nothing of that chunk is stored.
  std::vector<int64_t> table = part.table;
  table[2] = -1;
  PagedKvView view = part.view;
  view.block_table = table;
  StoreHandle handle = *f.manager->Store(f.root, prompt, {0, prompt.size()}, {&view, 1});
  f.Settle();
  EXPECT_EQ(handle.Wait().status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(handle.Wait().stored_tokens, kTestChunk);
  EXPECT_EQ(f.manager->Peek(f.root, prompt, {.parts = {{0, 0}}})->matched_tokens, kTestChunk);
  EXPECT_EQ(f.manager->Stats().index_entries, 1u);
  // An empty range stores nothing, and frees the source.
  handle = *f.manager->Store(f.root, prompt, {0, 0}, {&part.view, 1},
                             {.on_source_free = [&](const StoreReport&) { told = true; }});
  f.Settle();
  EXPECT_TRUE(told && handle.Wait().status.ok());
}

}  // namespace
}  // namespace terrace
