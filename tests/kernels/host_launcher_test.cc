// What RunOnHost's shares and ForEachCopyPiece's pieces are; what they copy is in the other tests.
#include "kernels/host_launcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "terrace/bytes.h"

namespace terrace {
namespace {

struct Copy {
  std::vector<std::byte> engine;
  std::vector<std::byte> payload;
  std::vector<PlaneArgs> planes;
  std::vector<int64_t> blocks;
  PagedCopyArgs args;
};

// Planes of `blocks` with 4 heads of 64 bytes, 16 tokens in each.
Copy MakeCopy(uint32_t num_planes, std::vector<int64_t> blocks, CopyDirection direction) {
  constexpr int64_t kTokenBytes = 256;
  constexpr int64_t kBlockTokens = 16;
  Copy copy;
  const auto slots = static_cast<uint64_t>(kBlockTokens) * blocks.size();
  const uint64_t held =
      kBlockTokens * (1 + static_cast<uint64_t>(*std::max_element(blocks.begin(), blocks.end())));
  copy.engine.resize(num_planes * held * kTokenBytes);
  copy.payload.resize(num_planes * slots * kTokenBytes);
  for (uint32_t p = 0; p < num_planes; ++p) {
    copy.planes.push_back({.base = copy.engine.data() + p * held * kTokenBytes,
                           .payload_offset = p * slots * kTokenBytes,
                           .block_stride = kBlockTokens * kTokenBytes,
                           .token_stride = kTokenBytes,
                           .head_stride = 64,
                           .num_heads = 4,
                           .run_bytes = 64});
  }
  copy.blocks = std::move(blocks);
  copy.args = {.direction = direction,
               .payload = copy.payload.data(),
               .planes = copy.planes.data(),
               .num_planes = num_planes,
               .tokens_per_block = kBlockTokens,
               .blocks = copy.blocks.data(),
               .num_tokens = slots};
  return copy;
}

TEST(HostLauncherTest, SharesAreDisjointAndNearlyEqual) {
  Copy copy = MakeCopy(3, {0, 1, 2, 3, 4, 5, 6}, CopyDirection::kToHost);
  std::fill(copy.engine.begin(), copy.engine.end(), std::byte{1});
  for (const uint32_t parts : {1u, 2u, 3u, 5u, 8u, 1000u}) {
    uint64_t all = 0;
    std::vector<int> copies(copy.payload.size());
    for (uint32_t part = 0; part < parts; ++part) {
      std::fill(copy.payload.begin(), copy.payload.end(), std::byte{0});
      RunOnHost(copy.args, part, parts);
      uint64_t share = 0;
      for (size_t at = 0; at < copies.size(); ++at) {
        copies[at] += std::to_integer<int>(copy.payload[at]);
        share += std::to_integer<uint64_t>(copy.payload[at]);
      }
      EXPECT_LE(share, copy.payload.size() / parts + 256) << part << " of " << parts << ": by a token";
      all += share;
    }
    EXPECT_EQ(all, copy.payload.size());
    EXPECT_EQ(std::count(copies.begin(), copies.end(), 1), static_cast<int64_t>(copies.size()));
  }
}

std::vector<CopyPiece> PiecesOf(const PagedCopyArgs& args) {
  std::vector<CopyPiece> pieces;
  ForEachCopyPiece(args, [&](const CopyPiece& piece) { pieces.push_back(piece); });
  return pieces;
}

TEST(HostLauncherTest, NeighboursAreOnePiece) {
  for (const CopyDirection direction : {CopyDirection::kToHost, CopyDirection::kToDevice}) {
    const bool to_host = direction == CopyDirection::kToHost;
    Copy copy = MakeCopy(1, {3, 4, 5, 0, 2}, direction);
    std::vector<CopyPiece> pieces = PiecesOf(copy.args);
    ASSERT_EQ(pieces.size(), 3u) << "blocks 3, 4 and 5; 0; 2";
    EXPECT_EQ(pieces[0].bytes, 3u * 4096);
    EXPECT_EQ(pieces[1].bytes, 4096u);
    EXPECT_EQ(to_host ? pieces[0].src : pieces[0].dst, copy.engine.data() + 3 * 4096);
    EXPECT_EQ(to_host ? pieces[1].src : pieces[1].dst, copy.engine.data());
    EXPECT_EQ(to_host ? pieces[1].dst : pieces[1].src, copy.payload.data() + 3 * 4096);
    // All of two planes that follow each other on both sides.
    copy = MakeCopy(2, {0, 1, 2}, direction);
    pieces = PiecesOf(copy.args);
    ASSERT_EQ(pieces.size(), 1u);
    EXPECT_EQ(pieces[0].bytes, copy.payload.size());
  }
}

TEST(HostLauncherTest, PiecesComeInThePayloadsOrder) {
  Copy copy = MakeCopy(2, {5, 1, 4, 2}, CopyDirection::kToHost);
  for (PlaneArgs& plane : copy.planes) {  // head-major
    plane.token_stride = 64;
    plane.head_stride = 16 * 64;
  }
  copy.blocks[2] = -1;
  copy.args.first_slot = 3;
  copy.args.num_tokens -= 5;
  const std::vector<CopyPiece> pieces = PiecesOf(copy.args);
  ASSERT_EQ(pieces.size(), 2u * 4 * (13 + 16 + 14));
  uint64_t bytes = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_TRUE(i == 0 || pieces[i].dst >= pieces[i - 1].dst + pieces[i - 1].bytes) << i;
    bytes += pieces[i].bytes;
  }
  EXPECT_EQ(bytes, PagedCopyBytes(copy.args) - 2 * 16 * 256);
}

TEST(HostLauncherTest, NothingIsNoPiece) {
  EXPECT_TRUE(PiecesOf({}).empty());
  RunOnHost({});
  RunEmulated({});
  Copy copy = MakeCopy(1, {0, 1}, CopyDirection::kToDevice);
  copy.blocks = {-1, -1};
  copy.args.blocks = copy.blocks.data();
  EXPECT_TRUE(PiecesOf(copy.args).empty());
}

}  // namespace
}  // namespace terrace
