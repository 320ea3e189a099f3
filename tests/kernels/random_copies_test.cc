// Copies of any shape, drawn from seeds, against the formula of PagedCopyArgs byte by byte: odd addresses and
// strides, planes of scales, blocks that are negative, repeated (gather) or huge, copies that need many
// launches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/host_launcher.h"
#include "kernels/paged_copy_launch.h"
#include "tests/kernels/access_log.h"

namespace terrace {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kNumSeeds = 300;
#else
constexpr uint64_t kNumSeeds = 1000;
#endif
constexpr std::byte kGap{0xa5};

template <typename T, size_t kSize>
T Pick(std::mt19937_64& random, const T (&values)[kSize]) {
  return values[random() % kSize];
}

// A copy with its memory: the engine's planes one behind the other, each of `blocks_held` blocks; the
// payload's with gaps between them.
struct RandomCopy {
  std::vector<std::byte> engine;
  std::vector<std::byte> payload;
  std::vector<PlaneArgs> planes;
  std::vector<int64_t> blocks;
  PagedCopyArgs args;

  void SetPointers() {
    args.payload = payload.data();
    args.planes = planes.data();
    args.num_planes = static_cast<uint32_t>(planes.size());
    args.blocks = blocks.data();
  }

  // Calls `byte(engine, payload)` for all bytes of the copy, as offsets: the formula, and nothing else.
  template <typename Byte>
  void ForEachByte(const Byte& byte) const {
    for (const PlaneArgs& plane : planes) {
      for (uint64_t i = 0; i < args.num_tokens; ++i) {
        const uint64_t slot = args.first_slot + i;
        const int64_t block = blocks[slot / args.tokens_per_block];
        if (block < 0) continue;
        for (int64_t h = 0; h < plane.num_heads; ++h) {
          for (int64_t b = 0; b < plane.run_bytes; ++b) {
            const std::byte* at = plane.base + block * plane.block_stride +
                                  static_cast<int64_t>(slot % args.tokens_per_block) * plane.token_stride +
                                  h * plane.head_stride + b;
            byte(static_cast<size_t>(at - engine.data()),
                 plane.payload_offset + (i * plane.num_heads + static_cast<uint64_t>(h)) * plane.run_bytes +
                     static_cast<uint64_t>(b));
          }
        }
      }
    }
  }
};

// Strides of one plane in the order of a layout, with gaps of `gap` behind each run; bytes of one block.
int64_t SetStrides(std::mt19937_64& random, int64_t tokens_per_block, PlaneArgs& plane) {
  const int64_t gap = random() % 3 == 0 ? Pick(random, {1, 2, 4, 16, 48}) : 0;
  const int64_t run = plane.run_bytes + gap;
  const bool head_major = random() % 2 == 0;
  plane.token_stride = head_major ? run : run * plane.num_heads;
  plane.head_stride = head_major ? run * tokens_per_block : run;
  if (plane.num_heads == 1 && random() % 2 == 0) plane.head_stride = 12345;  // unused with one head
  return run * plane.num_heads * tokens_per_block;
}

struct Shape {
  uint32_t num_planes;
  uint32_t tokens_per_block;
  size_t num_blocks;
  uint64_t max_tokens;
  std::vector<uint32_t> run_bytes;
};

RandomCopy MakeCopy(std::mt19937_64& random, CopyDirection direction, const Shape& shape) {
  RandomCopy copy;
  const auto num_blocks = static_cast<int64_t>(shape.num_blocks);
  const uint64_t slots = shape.num_blocks * shape.tokens_per_block;
  copy.args.direction = direction;
  copy.args.tokens_per_block = shape.tokens_per_block;
  copy.args.first_slot = random() % std::min<uint64_t>(slots, 2 * shape.tokens_per_block);
  const uint64_t most = std::min(shape.max_tokens, slots - copy.args.first_slot);
  copy.args.num_tokens = random() % 4 == 0 ? std::min<uint64_t>(most, random() % 2) : random() % (most + 1);
  copy.blocks.resize(shape.num_blocks);
  std::iota(copy.blocks.begin(), copy.blocks.end(), 0);
  const uint64_t order = random() % 4;
  if (order == 1) std::reverse(copy.blocks.begin(), copy.blocks.end());
  if (order == 2) std::shuffle(copy.blocks.begin(), copy.blocks.end(), random);
  for (int64_t& block : copy.blocks) {
    if (random() % 8 == 0) block = random() % 2 == 0 ? -1 : std::numeric_limits<int64_t>::min();
    if (direction == CopyDirection::kToHost && random() % 8 == 0) block = num_blocks / 2;
  }
  uint64_t engine_bytes = Pick(random, {0, 1, 2, 4, 8, 16});
  uint64_t payload_bytes = Pick(random, {0, 0, 1, 2, 4, 8});
  std::vector<uint64_t> bases;
  for (uint32_t p = 0; p < shape.num_planes; ++p) {
    PlaneArgs& plane = copy.planes.emplace_back();
    plane.run_bytes = shape.run_bytes[random() % shape.run_bytes.size()];
    plane.num_heads = Pick(random, {1u, 1u, 2u, 3u, 8u});
    plane.block_stride = SetStrides(random, shape.tokens_per_block, plane) + Pick(random, {0, 0, 0, 1, 32});
    plane.payload_offset = payload_bytes;
    payload_bytes += copy.args.num_tokens * plane.num_heads * plane.run_bytes + random() % 3 * 16;
    bases.push_back(engine_bytes);
    engine_bytes += static_cast<uint64_t>(plane.block_stride * num_blocks);
    if (random() % 4 != 0) continue;
    // From the end to the beginning.
    bases.back() += static_cast<uint64_t>(plane.block_stride * (num_blocks - 1));
    plane.block_stride = -plane.block_stride;
  }
  copy.engine.assign(engine_bytes, kGap);
  copy.payload.assign(payload_bytes, kGap);
  for (uint32_t p = 0; p < shape.num_planes; ++p) copy.planes[p].base = copy.engine.data() + bases[p];
  copy.SetPointers();
  return copy;
}

// Runs the copy in every way; the destination starts with all bytes wrong that the copy is to write.
void CheckCopy(RandomCopy& copy, std::mt19937_64& random) {
  const bool to_host = copy.args.direction == CopyDirection::kToHost;
  std::vector<std::byte>& source = to_host ? copy.engine : copy.payload;
  std::vector<std::byte>& destination = to_host ? copy.payload : copy.engine;
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());
  std::vector<std::byte> after = destination;
  std::vector<uint8_t> expected_stores(destination.size());
  copy.ForEachByte([&](size_t engine, size_t payload) {
    after[to_host ? payload : engine] = source[to_host ? engine : payload];
    ++expected_stores[to_host ? payload : engine];
  });
  std::vector<std::byte> before = after;
  for (size_t at = 0; at < before.size(); ++at) {
    if (expected_stores[at] > 0) before[at] = ~before[at];
  }
  const auto parts = 1 + static_cast<uint32_t>(random() % 4);
  destination = before;
  for (uint32_t part = parts; part-- > 0;) RunOnHost(copy.args, part, parts);
  ASSERT_TRUE(destination == after) << "on the host in " << parts << " parts";
  destination = before;
  ForEachCopyPiece(copy.args, [](const CopyPiece& piece) { std::memcpy(piece.dst, piece.src, piece.bytes); });
  ASSERT_TRUE(destination == after) << "piece by piece";
  const EmulatedGrid grid = {1 + static_cast<uint32_t>(random() % 5),
                             32 * (1 + static_cast<uint32_t>(random() % 4)), random() % 3};
  destination = before;
  RunEmulated(copy.args, grid);
  ASSERT_TRUE(destination == after) << "emulated";
  destination = before;
  AccessLog log;
  log.AddSource(source);
  log.AddDestination(destination);
  RunLogged(copy.args, grid, log);
  ASSERT_TRUE(destination == after) << "emulated and logged";
  ASSERT_TRUE(log.stores()[0] == expected_stores);
  ASSERT_EQ(log.num_outside(), 0u);
  ASSERT_EQ(log.num_misaligned(), 0u);
}

CopyDirection DirectionOf(uint64_t seed) {
  return seed % 2 == 0 ? CopyDirection::kToHost : CopyDirection::kToDevice;
}

TEST(KernelRandomCopiesTest, SmallOnesOfAnyShape) {
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Shape shape;
    shape.num_planes = static_cast<uint32_t>(random() % 4);
    shape.tokens_per_block = Pick(random, {1u, 2u, 3u, 7u, 16u, 32u, 128u});
    shape.num_blocks = 1 + random() % 9;
    shape.max_tokens = 40;
    shape.run_bytes = {1, 2, 3, 4, 8, 12, 16, 80, 128, 160, 576, 1152};
    RandomCopy copy = MakeCopy(random, DirectionOf(seed), shape);
    CheckCopy(copy, random);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Scales of 2 and 4 bytes beside planes of another size, in one launch.
TEST(KernelRandomCopiesTest, PlanesOfScales) {
  for (uint64_t seed = 1; seed <= kNumSeeds / 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomCopy copy = MakeCopy(random, DirectionOf(seed), {6, 16, 6, 90, {2, 4, 2, 4, 128}});
    CheckCopy(copy, random);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// More planes and more blocks than one launch has room for, blocks of one token.
TEST(KernelRandomCopiesTest, MoreThanOneLaunch) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomCopy copy = MakeCopy(random, DirectionOf(seed), {130, 1, 2 * 1024 + 3, 5000, {1, 2, 4}});
    CheckCopy(copy, random);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Runs that are longer than a tile, as those of state groups: one token in several parts.
TEST(KernelRandomCopiesTest, TokensLongerThanATile) {
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomCopy copy =
        MakeCopy(random, DirectionOf(seed),
                 {3, 1 + static_cast<uint32_t>(random() % 3), 4, 9, {2047, 2048, 2064, 4100, 50000}});
    CheckCopy(copy, random);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace terrace
