// Every layout of the engines through all ways of copying - the host's, the body's thread by thread, piece by
// piece - against index formulas written by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/host_launcher.h"
#include "lib/codec/paged_copy.h"
#include "tests/core/paged_layouts.h"
#include "tests/kernels/access_log.h"

namespace terrace {
namespace {

constexpr uint64_t kSeed = 4711;
constexpr int64_t kLargeBlockBytes = 64 << 10;

// The bytes of one side: what they are before and after a copy. Before, each byte that the copy writes is
// another one than after it, so that one that is left out is seen.
struct Sides {
  Memory before;
  Memory after;

  void Expect(size_t memory, int64_t at, std::byte value) {
    after[memory][static_cast<size_t>(at)] = value;
    before[memory][static_cast<size_t>(at)] = ~value;
  }
};

std::string DescriptionOf(const Geometry& g) {
  return std::to_string(g.heads) + " heads of " + std::to_string(g.head_bytes) + " bytes, blocks of " +
         std::to_string(g.block_tokens) + ", seed " + std::to_string(kSeed);
}

class KernelLayoutsTest : public testing::TestWithParam<Layout> {
 protected:
  template <typename Check>
  void ForEachGeometry(const Check& check) {
    for (const int64_t heads : {1, 2, 3, 8}) {
      if (GetParam().latent && heads > 1) continue;
      for (const int64_t head_bytes : {128, 160, 256, 1152}) {
        for (const int64_t block_tokens : {1, 16, 32, 128}) {
          Geometry g;
          g.heads = heads;
          g.head_bytes = head_bytes;
          g.block_tokens = block_tokens;
          g.kv = GetParam().latent ? 1 : 2;
          const bool is_large = g.S() > kLargeBlockBytes;
          g.layers = is_large ? 1 : 2;
          g.blocks = is_large ? 3 : 5;
          SCOPED_TRACE(DescriptionOf(g));
          check(g, is_large);
          if (HasFatalFailure()) return;
        }
      }
    }
  }

  // Tokens counted from the view's first one.
  static std::vector<TokenRange> RangesOf(uint64_t n, bool is_large) {
    if (is_large) return {{n / 3, n - 7}};
    return {{0, 0}, {n / 2, n / 2 + 1}, {n / 3, n - n / 4}, {0, n}};
  }

  EmulatedGrid NextGrid() {
    return {1 + static_cast<uint32_t>(random_() % 4), 32 * (1 + static_cast<uint32_t>(random_() % 3)),
            random_() | 1};
  }

  // Runs a copy in every way. `memory` is where it writes.
  void CheckAllWays(const PagedCopyArgs& args, Bytes source, Memory& memory, const Sides& sides) {
    const auto parts = 1 + static_cast<uint32_t>(random_() % 3);
    memory = sides.before;
    for (uint32_t part = 0; part < parts; ++part) RunOnHost(args, part, parts);
    ASSERT_TRUE(memory == sides.after) << "on the host in " << parts << " parts";

    memory = sides.before;
    ForEachCopyPiece(args, [](const CopyPiece& piece) { std::memcpy(piece.dst, piece.src, piece.bytes); });
    ASSERT_TRUE(memory == sides.after) << "piece by piece";

    const EmulatedGrid grid = NextGrid();
    memory = sides.before;
    AccessLog log;
    // A source that is more than one allocation is left to the address sanitizer.
    log.AddSource(source);
    for (const auto& allocation : memory) log.AddDestination(allocation);
    RunLogged(args, grid, log);
    ASSERT_TRUE(memory == sides.after) << "emulated, grid seed " << grid.seed;
    ASSERT_TRUE(source.empty() || log.num_outside() == 0);
    ASSERT_EQ(log.num_misaligned(), 0u);
    for (size_t i = 0; i < memory.size(); ++i) {
      for (size_t at = 0; at < memory[i].size(); ++at) {
        const bool is_written = sides.before[i][at] != sides.after[i][at];
        ASSERT_EQ(log.stores(i, at), is_written ? 1 : 0) << "byte " << at << " of allocation " << i;
      }
    }
  }

  void CheckGather(Pages& pages, TokenRange payload_tokens, TokenRange tokens, LayerSpan layers) {
    Memory memory(1, std::vector<std::byte>(pages.PayloadBytes(payload_tokens), kUntouched));
    Sides sides = {memory, memory};
    pages.ForEachRun(payload_tokens, tokens, layers, [&](Place from, int64_t to) {
      const std::byte* run = pages.memory[static_cast<size_t>(from.allocation)].data() + from.offset;
      for (int64_t b = 0; b < pages.g.head_bytes; ++b) sides.Expect(0, to + b, run[b]);
    });
    const Result<KernelCopy> copy = MakeKernelCopy(pages.CopyOf(payload_tokens), tokens, layers,
                                                   CopyDirection::kToHost, memory[0].data());
    ASSERT_TRUE(copy.ok()) << copy.status().ToString();
    const Bytes source = pages.memory.size() == 1 ? Bytes(pages.memory[0]) : Bytes();
    CheckAllWays(copy->args, source, memory, sides);
  }

  void CheckScatter(Pages& pages, TokenRange payload_tokens, TokenRange tokens, LayerSpan layers) {
    std::vector<std::byte> payload(pages.PayloadBytes(payload_tokens));
    FillRandom(payload, random_);
    for (auto& allocation : pages.memory) std::fill(allocation.begin(), allocation.end(), kUntouched);
    Sides sides = {pages.memory, pages.memory};
    pages.ForEachRun(payload_tokens, tokens, layers, [&](Place to, int64_t from) {
      for (int64_t b = 0; b < pages.g.head_bytes; ++b) {
        sides.Expect(static_cast<size_t>(to.allocation), to.offset + b,
                     payload[static_cast<size_t>(from + b)]);
      }
    });
    const Result<KernelCopy> copy = MakeKernelCopy(pages.CopyOf(payload_tokens), tokens, layers,
                                                   CopyDirection::kToDevice, payload.data());
    ASSERT_TRUE(copy.ok()) << copy.status().ToString();
    CheckAllWays(copy->args, payload, pages.memory, sides);
  }

  std::mt19937_64 random_{kSeed};
};

// Blocks in descending and in mixed order, with neighbours; payloads that begin before the tokens.
std::vector<int64_t> TableOf(const Geometry& g) {
  return g.blocks == 3 ? std::vector<int64_t>{2, 0} : std::vector<int64_t>{4, 1, 2, 0};
}

TEST_P(KernelLayoutsTest, GatherInEveryWay) {
  ForEachGeometry([&](const Geometry& g, bool is_large) {
    Pages pages(GetParam(), g, TableOf(g));
    pages.Fill(random_);
    const uint64_t begin = pages.view.first_token;
    for (const TokenRange range : RangesOf(pages.view.num_tokens, is_large)) {
      const TokenRange tokens = {begin + range.begin, begin + range.end};
      CheckGather(pages, {tokens.begin - random_() % 3, tokens.end + random_() % 3}, tokens,
                  {0, static_cast<uint32_t>(g.layers)});
      if (HasFatalFailure()) return;
    }
  });
}

TEST_P(KernelLayoutsTest, ScatterInEveryWay) {
  ForEachGeometry([&](const Geometry& g, bool is_large) {
    std::vector<int64_t> table = TableOf(g);
    if (!is_large && random_() % 2 == 0) table[1 + random_() % 2] = -3;
    Pages pages(GetParam(), g, table);
    const uint64_t begin = pages.view.first_token;
    for (const TokenRange range : RangesOf(pages.view.num_tokens, is_large)) {
      const TokenRange tokens = {begin + range.begin, begin + range.end};
      const auto layers = static_cast<uint32_t>(g.layers);
      CheckScatter(pages, {tokens.begin - random_() % 3, tokens.end + random_() % 3}, tokens,
                   {layers - 1, layers});
      if (HasFatalFailure()) return;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, KernelLayoutsTest, testing::ValuesIn(kLayouts),
                         [](const testing::TestParamInfo<Layout>& layout) { return layout.param.name; });

// Out of one layout into another one and back: what a payload is for.
TEST(KernelRoundTripTest, BetweenAllPairsOfLayouts) {
  std::mt19937_64 random(kSeed);
  Geometry g;
  g.layers = 2;
  g.heads = 3;
  g.head_bytes = 160;
  const TokenRange tokens = {32 + 5, 32 + 53};
  const TokenRange payload_tokens = {32 + 3, 32 + 54};
  for (const Layout& from_layout : kLayouts) {
    for (const Layout& to_layout : kLayouts) {
      if (from_layout.latent || to_layout.latent) continue;
      SCOPED_TRACE(std::string(from_layout.name) + " to " + to_layout.name);
      Pages from(from_layout, g, {5, 0, 6, 2});
      from.Fill(random);
      Geometry small = g;
      small.block_tokens = 1 + static_cast<int64_t>(random() % 20);
      small.blocks = 64 / small.block_tokens + 1;
      std::vector<int64_t> table(static_cast<size_t>(small.blocks));
      for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int64_t>(table.size() - 1 - i);
      Pages to(to_layout, small, table);
      std::vector<std::byte> first(from.PayloadBytes(payload_tokens), kUntouched);
      std::vector<std::byte> second = first;
      const EmulatedGrid grid = {3, 64, random() | 1};
      const auto copy = [&](const Pages& pages, CopyDirection direction, std::vector<std::byte>& payload) {
        return MakeKernelCopy(pages.CopyOf(payload_tokens), tokens, {0, 2}, direction, payload.data())
            .value();
      };
      RunEmulated(copy(from, CopyDirection::kToHost, first).args, grid);
      RunOnHost(copy(to, CopyDirection::kToDevice, first).args);
      RunEmulated(copy(to, CopyDirection::kToHost, second).args, grid);
      ASSERT_TRUE(first == second);
      Pages again(from_layout, g, {5, 0, 6, 2});
      RunEmulated(copy(again, CopyDirection::kToDevice, second).args, grid);
      from.ForEachRun(payload_tokens, tokens, {0, 2}, [&](Place at, int64_t) {
        const auto allocation = static_cast<size_t>(at.allocation);
        ASSERT_EQ(std::memcmp(from.memory[allocation].data() + at.offset,
                              again.memory[allocation].data() + at.offset, static_cast<size_t>(g.head_bytes)),
                  0);
      });
    }
  }
}

}  // namespace
}  // namespace terrace
