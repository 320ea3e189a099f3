// Stored out of one layout, loaded into another: each pair of the engines' layouts through a manager, whole
// and in parts, and pages that lie beyond 4 GiB.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string>

#include "tests/support/manager_fixture.h"
#include "tests/support/paged_engine.h"

namespace terrace {
namespace {

TimePoint Soon() { return Clock::Real()->Now() + std::chrono::seconds(60); }

// Two KV heads, which shapes mistake for K and V.
constexpr PagedGeometry kGeometry{.num_layers = 3,
                                  .num_blocks = 40,
                                  .tokens_per_block = 8,
                                  .num_heads = 2,
                                  .head_bytes = 48,
                                  .v_head_bytes = 0,
                                  .element_bytes = 2};

KvSpec SpecOf(const PagedGeometry& g, std::span<const PlaneKind> kinds) {
  KvSpec spec = TestSpec(Cut::kRanged);
  spec.payload_form = PayloadForm::kCanonical;
  LayerSpec layer;
  for (const PlaneKind kind : kinds) {
    const bool is_v = kind == PlaneKind::kV && g.v_head_bytes != 0;
    const uint32_t head_bytes = is_v ? g.v_head_bytes : g.head_bytes;
    layer.planes.push_back(
        {kind, DType::kBF16, g.num_heads, head_bytes / g.element_bytes, g.num_heads * head_bytes});
  }
  spec.layers.assign(g.num_layers, layer);
  return spec;
}

constexpr PlaneKind kKAndV[] = {PlaneKind::kK, PlaneKind::kV};
constexpr PlaneKind kLatentOnly[] = {PlaneKind::kLatent};

PagedGeometry WithBlocksOf(PagedGeometry geometry, uint32_t block_tokens) {
  geometry.tokens_per_block = block_tokens;
  return geometry;
}

struct RelayoutFixture : ManagerFixture {
  const KvSpec spec;
  Token next_prompt = 1;
  std::vector<Token> prompt;

  explicit RelayoutFixture(KvSpec s = SpecOf(kGeometry, kKAndV)) : spec(std::move(s)) { Open(spec); }

  // A new prompt, stored out of pages of this layout.
  void StoreFrom(PageLayout layout, const PagedGeometry& geometry, size_t num_tokens) {
    prompt = TestTokens(num_tokens, next_prompt++);
    PagedEngine engine(layout, geometry, {}, 0, num_tokens, next_prompt);
    engine.Compute({0, num_tokens});
    StoreOutOf(engine);
  }
  void StoreOutOf(const PagedEngine& engine) {
    const PagedKvView view = engine.view();
    Result<StoreHandle> handle = manager->Store(root, prompt, {0, prompt.size()}, {&view, 1});
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    const StoreReport report = handle->Wait(Soon());
    ASSERT_TRUE(report.status.ok()) << report.status.ToString();
    ASSERT_EQ(report.present_objects, 0u);
    ASSERT_TRUE(manager->Flush().ok());
  }
  LoadReport LoadInto(const PagedKvView& view, TokenRange tokens, LoadOrder order = LoadOrder::kChunkMajor) {
    Result<Lease> lease = manager->Lookup(root, prompt);
    EXPECT_TRUE(lease.ok());
    EXPECT_EQ(lease->matched_tokens(), prompt.size());
    return manager->Load(*lease, tokens, {.memory = {}, .views = {&view, 1}}, order).Wait(Soon());
  }
  // Into pages of which all else must stay as it is. `change`: of the table.
  void CheckLoad(PageLayout layout, const PagedGeometry& geometry, TokenRange of_view, TokenRange tokens,
                 const std::function<void(std::vector<int64_t>&)>& change = nullptr) {
    for (const LoadOrder order : {LoadOrder::kChunkMajor, LoadOrder::kLayerMajor}) {
      const uint64_t num_tokens = of_view.end - of_view.begin;
      PagedEngine loaded(layout, geometry, {}, of_view.begin, num_tokens, next_prompt + 1);
      PagedEngine expected(layout, geometry, {}, of_view.begin, num_tokens, next_prompt + 1);
      std::vector<int64_t> table = loaded.table();
      if (change) change(table);
      loaded.SetTable(table);
      expected.SetTable(table);
      expected.Compute(tokens);
      const LoadReport report = LoadInto(loaded.view(), tokens, order);
      EXPECT_TRUE(report.status.ok()) << report.status.ToString();
      EXPECT_EQ(report.loaded_tokens, tokens.end - tokens.begin);
      EXPECT_TRUE(loaded.IsSame(expected));
    }
  }
};

TEST(RelayoutTest, EachPairOfLayouts) {
  RelayoutFixture f;
  for (const PageLayout from : kKAndVLayouts) {
    for (const uint32_t from_block : {8u, 5u}) {
      f.StoreFrom(from, WithBlocksOf(kGeometry, from_block), 5 * kTestChunk + 7);
      for (const PageLayout to : kKAndVLayouts) {
        for (const uint32_t to_block : {8u, 32u}) {
          SCOPED_TRACE(std::to_string(static_cast<int>(from)) + " in blocks of " +
                       std::to_string(from_block) + " to " + std::to_string(static_cast<int>(to)) + " of " +
                       std::to_string(to_block));
          f.CheckLoad(to, WithBlocksOf(kGeometry, to_block), {0, f.prompt.size()}, {0, f.prompt.size()});
        }
      }
    }
  }
}

TEST(RelayoutTest, LatentsAndHeadsOfTwoSizes) {
  PagedGeometry latent = kGeometry;
  latent.num_heads = 1;
  latent.head_bytes = 1152;
  RelayoutFixture of_latents(SpecOf(latent, kLatentOnly));
  for (const uint32_t from : {1u, 16u, 6u}) {
    of_latents.StoreFrom(PageLayout::kLatent, WithBlocksOf(latent, from), 2 * kTestChunk + 3);
    for (const uint32_t to : {1u, 4u})
      of_latents.CheckLoad(PageLayout::kLatent, WithBlocksOf(latent, to), {0, 35}, {0, 35});
  }
  PagedGeometry two = kGeometry;
  two.v_head_bytes = 32;
  RelayoutFixture of_two(SpecOf(two, kKAndV));
  for (const PageLayout from : {PageLayout::kFused, PageLayout::kApart}) {
    of_two.StoreFrom(from, two, 2 * kTestChunk);
    for (const PageLayout to : {PageLayout::kFused, PageLayout::kApart})
      of_two.CheckLoad(to, WithBlocksOf(two, 3), {0, 32}, {0, 32});
  }
}

TEST(RelayoutTest, ReversedTablesAndBlocksThatAreNotThere) {
  RelayoutFixture f;
  const uint64_t n = 4 * kTestChunk;
  for (const PageLayout from : {PageLayout::kFlashAttentionTokensFirst, PageLayout::kFused}) {
    f.prompt = TestTokens(n, f.next_prompt++);
    PagedEngine engine(from, kGeometry, {}, 0, n);
    std::vector<int64_t> table = engine.table();
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int64_t>(table.size() - i);
    engine.SetTable(table);
    engine.Compute({0, n});
    f.StoreOutOf(engine);
    for (const PageLayout to : kKAndVLayouts) {
      f.CheckLoad(to, kGeometry, {0, n}, {0, n}, [](std::vector<int64_t>& of) {
        for (size_t i = 0; i < of.size(); ++i) of[i] = static_cast<int64_t>(39 - i);
      });
      f.CheckLoad(to, kGeometry, {0, n}, {0, n}, [](std::vector<int64_t>& of) {
        of[0] = -1;  // a shared prefix that is there already, a block that was freed
        of[1] = -1;
        of[5] = INT64_MIN;
      });
    }
  }
}

TEST(RelayoutTest, PartsOfBlocksPartsOfChunksAndViewsOfPartsOfAChunk) {
  RelayoutFixture f;
  const uint64_t n = 4 * kTestChunk + 9;
  f.StoreFrom(PageLayout::kFlashInferHeadsFirst, kGeometry, n);
  const TokenRange views[] = {{0, n}, {5, n}, {16, 48}, {21, 30}, {30, 35}, {33, 34}, {70, 73}};
  const TokenRange ranges[] = {{0, n}, {0, 1}, {3, 23}, {24, 32}, {31, 33}, {33, 34}, {40, n}, {9, 9}};
  for (const PageLayout to : kKAndVLayouts) {
    for (const TokenRange view : views) {
      for (const TokenRange range : ranges) {
        SCOPED_TRACE(std::to_string(static_cast<int>(to)) + ", view of " + std::to_string(view.begin) + ".." +
                     std::to_string(view.end) + ", load of " + std::to_string(range.begin) + ".." +
                     std::to_string(range.end));
        f.CheckLoad(to, kGeometry, view, range);
      }
    }
  }
  // A store out of a view that begins inside of a chunk: the chunks that it has whole.
  f.prompt = TestTokens(n, f.next_prompt++);
  PagedEngine first(PageLayout::kApart, kGeometry, {}, 0, 37);
  first.Compute({0, 37});
  PagedEngine rest(PageLayout::kFused, kGeometry, {}, 21, n - 21);
  rest.Compute({21, n});
  const PagedKvView first_view = first.view(), rest_view = rest.view();
  EXPECT_EQ(f.manager->Store(f.root, f.prompt, {16, n}, {&rest_view, 1}).status().code(),
            StatusCode::kInvalidArgument);
  Result<StoreHandle> handle = f.manager->Store(f.root, f.prompt, {0, 32}, {&first_view, 1});
  ASSERT_TRUE(handle.ok());
  EXPECT_EQ(handle->Wait(Soon()).stored_tokens, 32u);
  handle = f.manager->Store(f.root, f.prompt, {32, n}, {&rest_view, 1});
  ASSERT_TRUE(handle.ok());
  EXPECT_EQ(handle->Wait(Soon()).stored_tokens, n - 32);
  ASSERT_TRUE(f.manager->Flush().ok());
  f.CheckLoad(PageLayout::kCrossLayerHeadsFirst, kGeometry, {0, n}, {0, n});
}

// Contracts: what could scramble KV or touch memory that is not the view's is refused at the call, and
// nothing is written.
TEST(RelayoutTest, BadDestinationsAreRefusedBeforeAnythingIsTouched) {
  RelayoutFixture f;
  const uint64_t n = 2 * kTestChunk;
  f.StoreFrom(PageLayout::kFlashAttentionTokensFirst, kGeometry, n);
  PagedEngine engine(PageLayout::kFlashInferTokensFirst, kGeometry, {}, 0, n);
  PagedEngine untouched(PageLayout::kFlashInferTokensFirst, kGeometry, {}, 0, n);
  const auto refused = [&](const PagedKvView& view, std::string_view why) {
    const LoadReport report = f.LoadInto(view, {0, n});
    EXPECT_EQ(report.status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(report.status.message().find(why), std::string::npos) << report.status.ToString();
    EXPECT_EQ(report.loaded_tokens, 0u);
    EXPECT_TRUE(engine.IsSame(untouched));
  };
  const std::vector<int64_t> good = engine.table();
  std::vector<int64_t> table = good;
  table[3] = table[1];
  PagedKvView view = engine.view();
  view.block_table = table;
  refused(view, "twice");
  table = good;
  table[2] = 40;  // one block behind the last
  refused(view, "PagedKvView.memory");
  table = good;
  std::vector<PlaneView> planes(view.planes.begin(), view.planes.end());
  view.planes = planes;
  EXPECT_TRUE(view.Validate(f.spec, true).ok());
  planes[1].layer_bases = planes[0].layer_bases;  // V where K is
  refused(view, "planes[1].layer_bases[");
  planes[1] = view.planes[0];
  planes[1].layer_bases = engine.view().planes[1].layer_bases;
  planes[0].block_stride /= 2;  // as if the plane dimension came first
  refused(view, "planes[1].layer_bases[");
  std::vector<std::byte*> gone(3, nullptr);
  planes.assign(engine.view().planes.begin(), engine.view().planes.end());
  planes[1].layer_bases = gone;
  refused(view, "null");
  planes.assign(engine.view().planes.begin(), engine.view().planes.end());
  const MutableBytes freed[1] = {};
  view.memory = freed;
  refused(view, "PagedKvView.memory");
  // A store reads, so blocks may repeat; what lies outside is refused all the same.
  PagedKvView source = engine.view();
  table[2] = 40;
  source.block_table = table;
  f.prompt = TestTokens(n, f.next_prompt++);
  EXPECT_EQ(f.manager->Store(f.root, f.prompt, {0, n}, {&source, 1}).status().code(),
            StatusCode::kInvalidArgument);
  table[2] = table[0];
  EXPECT_TRUE(f.manager->Store(f.root, f.prompt, {0, n}, {&source, 1})->Wait(Soon()).status.ok());
}

// 12 GiB of address space of which some pages are touched.
struct SparseMemory {
  static constexpr size_t kBytes = size_t{12} << 30;
  MutableBytes bytes;

  SparseMemory() {
    void* const at =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at != MAP_FAILED) bytes = {static_cast<std::byte*>(at), kBytes};
  }
  ~SparseMemory() {
    if (!bytes.empty()) munmap(bytes.data(), kBytes);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
};

TEST(RelayoutTest, PagesBeyondFourGibibytes) {
  // A block of all layers and planes: 3 * 2 * 8 * 2 * 48 bytes.
  constexpr uint64_t kBlockBytes = 4608;
  PagedGeometry geometry = kGeometry;
  geometry.num_blocks = SparseMemory::kBytes / kBlockBytes;
  const auto last = static_cast<int64_t>(geometry.num_blocks) - 1;
  const auto at = [](uint64_t gib) { return static_cast<int64_t>((gib << 30) / kBlockBytes); };
  RelayoutFixture f;
  const uint64_t n = 3 * kTestChunk;
  const std::vector<int64_t> tables[] = {{last, 0, at(4), at(8) + 1, at(2), at(4) - 1},
                                         {at(4), at(11), 3, last, at(6), at(4) + 1}};
  const PageLayout layouts[] = {PageLayout::kCrossLayerTokensFirst, PageLayout::kCrossLayerHeadsFirst};
  for (size_t i = 0; i < 2; ++i) {
    f.prompt = TestTokens(n, f.next_prompt++);
    {
      SparseMemory memory;
      ASSERT_FALSE(memory.bytes.empty());
      PagedEngine from(layouts[i], geometry, {}, memory.bytes, tables[i], n);
      from.Compute({0, n});
      f.StoreOutOf(from);
    }
    SparseMemory memory;
    ASSERT_FALSE(memory.bytes.empty());
    PagedEngine to(layouts[1 - i], geometry, {}, memory.bytes, tables[1 - i], n);
    const LoadReport report = f.LoadInto(to.view(), {0, n});
    EXPECT_TRUE(report.status.ok()) << report.status.ToString();
    EXPECT_TRUE(to.Holds({0, n}));
    // And the small layout gets the same: what was stored came from where it should.
    f.CheckLoad(PageLayout::kApart, kGeometry, {0, n}, {0, n});
  }
  // Layers far apart: one tensor of all layers, layer by layer.
  SparseMemory memory;
  const PlaneView strides{
      .block_stride = 8 * 96, .token_stride = 96, .head_stride = 48, .num_heads = 2, .run_bytes = 48};
  std::vector<PlaneView> planes(2, strides);
  for (size_t p = 0; p < 2; ++p) {
    planes[p].base = memory.bytes.data() + (p << 31) + 64;
    planes[p].layer_stride = int64_t{4} << 30;
  }
  const MutableBytes bounds[] = {memory.bytes};
  PagedKvView view{.part = {},
                   .planes = planes,
                   .block_table = {},
                   .tokens_per_block = 8,
                   .first_token = 0,
                   .num_tokens = n,
                   .stream = nullptr,
                   .memory = bounds};
  const std::vector<int64_t> table = {5, 4, 3, 2, 1, 0};
  view.block_table = table;
  EXPECT_TRUE(f.LoadInto(view, {0, n}).status.ok());
  f.prompt = TestTokens(n, f.next_prompt++);
  Result<StoreHandle> handle = f.manager->Store(f.root, f.prompt, {0, n}, {&view, 1});
  ASSERT_TRUE(handle.ok());
  EXPECT_TRUE(handle->Wait(Soon()).status.ok());
  ASSERT_TRUE(f.manager->Flush().ok());
  f.CheckLoad(PageLayout::kFused, kGeometry, {0, n}, {0, n});
}

}  // namespace
}  // namespace terrace
