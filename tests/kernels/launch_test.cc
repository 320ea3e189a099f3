// How copies are cut into launches and tiles, with what accesses they are copied, and that a payload may have
// another form than the engine.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/host_launcher.h"
#include "kernels/paged_copy_launch.h"
#include "tests/kernels/access_log.h"

namespace terrace {
namespace {

// Planes of whole blocks, heads and tokens contiguous, in memory that begins on a line.
class LaunchTest : public testing::Test {
 protected:
  void Make(uint32_t num_planes, uint32_t tokens_per_block, size_t num_blocks, uint32_t num_heads,
            uint32_t run_bytes) {
    const uint64_t plane_bytes = uint64_t{tokens_per_block} * num_blocks * num_heads * run_bytes;
    engine_.assign(num_planes * plane_bytes + kLine, std::byte{0});
    payload_.assign(num_planes * plane_bytes + kLine, std::byte{0});
    std::mt19937_64 random(11);
    for (std::byte& byte : engine_) byte = static_cast<std::byte>(random());
    args_ = {};
    args_.payload = Aligned(payload_);
    planes_.clear();
    for (uint32_t p = 0; p < num_planes; ++p) {
      planes_.push_back({.base = Aligned(engine_) + p * plane_bytes,
                         .payload_offset = p * plane_bytes,
                         .block_stride = int64_t{tokens_per_block} * num_heads * run_bytes,
                         .token_stride = int64_t{num_heads} * run_bytes,
                         .head_stride = run_bytes,
                         .num_heads = num_heads,
                         .run_bytes = run_bytes});
    }
    blocks_.resize(num_blocks);
    for (size_t b = 0; b < num_blocks; ++b) blocks_[b] = static_cast<int64_t>(num_blocks - 1 - b);
    args_.planes = planes_.data();
    args_.num_planes = num_planes;
    args_.tokens_per_block = tokens_per_block;
    args_.blocks = blocks_.data();
    args_.num_tokens = tokens_per_block * num_blocks;
  }

  AccessLog Log() {
    AccessLog log;
    log.AddSource(engine_);
    log.AddDestination(payload_);
    RunLogged(args_, {}, log);
    return log;
  }

  static std::byte* Aligned(std::vector<std::byte>& memory) {
    return memory.data() + -reinterpret_cast<uintptr_t>(memory.data()) % kLine;
  }

  static constexpr size_t kLine = 64;
  std::vector<std::byte> engine_;
  std::vector<std::byte> payload_;
  std::vector<PlaneArgs> planes_;
  std::vector<int64_t> blocks_;
  PagedCopyArgs args_;
};

TEST_F(LaunchTest, AlignedPlanesAreCopiedInVectorsOf16Bytes) {
  for (const uint32_t run_bytes : {128u, 160u, 256u, 1152u}) {
    for (const bool head_major : {false, true}) {
      Make(2, 16, 4, 3, run_bytes);
      if (head_major) {
        for (PlaneArgs& plane : planes_) {
          plane.token_stride = run_bytes;
          plane.head_stride = 16 * run_bytes;
        }
      }
      const AccessLog log = Log();
      EXPECT_EQ(log.widths(), 16u) << run_bytes << " bytes, head-major " << head_major;
      EXPECT_EQ(log.num_accesses(), 2 * PagedCopyBytes(args_) / 16);
    }
  }
}

TEST_F(LaunchTest, TheWidestAccessThatAddressesAllow) {
  for (const uint32_t width : {1u, 2u, 4u, 8u}) {
    Make(1, 16, 4, 3, 128);
    planes_[0].base += width;
    args_.num_tokens -= 16;
    EXPECT_EQ(Log().widths(), width) << "the engine's address";
    Make(1, 16, 4, 3, 128);
    planes_[0].payload_offset = width;
    args_.num_tokens -= 16;
    EXPECT_EQ(Log().widths(), width) << "the payload's address";
    Make(1, 16, 4, 3, 128);
    planes_[0].num_heads = 1;
    planes_[0].token_stride = 128 + width;
    EXPECT_EQ(Log().widths(), width) << "the stride of tokens";
    Make(1, 16, 4, 3, 128);
    planes_[0].num_heads = 2;
    planes_[0].head_stride = 128 + width;
    EXPECT_EQ(Log().widths(), width) << "the stride of heads";
  }
}

TEST_F(LaunchTest, TokensOfScalesAreCopiedTogether) {
  Make(1, 16, 4, 1, 2);
  EXPECT_EQ(Log().widths(), 16u) << "16 tokens of 2 bytes are 32 contiguous bytes";
  Make(1, 1, 64, 1, 4);
  EXPECT_EQ(Log().widths(), 4u) << "each token is in another block";
}

TEST_F(LaunchTest, LaunchesHoldAllOfACopyOnce) {
  Make(300, 1, 2500, 1, 16);
  uint64_t num_launches = 0;
  uint64_t bytes = 0;
  const Status status = ForEachLaunch(args_, [&](const PagedCopyLaunch& launch) {
    ++num_launches;
    EXPECT_LE(launch.num_planes, PagedCopyLaunch::kMaxPlanes);
    EXPECT_LE(launch.num_blocks, PagedCopyLaunch::kMaxBlocks);
    for (uint32_t t = 0; t < launch.num_tiles; ++t) bytes += TileAt(launch, t).bytes;
    EXPECT_EQ(UsefulThreads(launch), launch.num_tiles) << "one lane is enough for 16 bytes";
    return OkStatus();
  });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(num_launches, 9u);
  EXPECT_EQ(bytes, PagedCopyBytes(args_));
}

TEST_F(LaunchTest, LaunchesEndWithTheFirstError) {
  Make(300, 1, 2500, 1, 16);
  uint64_t num_launches = 0;
  const Status status = ForEachLaunch(args_, [&](const PagedCopyLaunch&) {
    return ++num_launches == 3 ? UnavailableError("third") : OkStatus();
  });
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(num_launches, 3u);
}

TEST_F(LaunchTest, NothingToCopyIsNoLaunch) {
  const auto count = [&] {
    int num_launches = 0;
    EXPECT_TRUE(ForEachLaunch(args_, [&](const PagedCopyLaunch&) {
                  ++num_launches;
                  return OkStatus();
                }).ok());
    return num_launches;
  };
  EXPECT_EQ(count(), 0) << "default arguments";
  Make(2, 16, 4, 1, 16);
  EXPECT_EQ(count(), 1);
  args_.num_tokens = 0;
  EXPECT_EQ(count(), 0);
  Make(2, 16, 4, 1, 16);
  planes_[0].run_bytes = planes_[1].run_bytes = 0;
  EXPECT_EQ(count(), 0);
}

// A small copy has tiles for many threads, a large one tiles that are worth finding.
TEST_F(LaunchTest, TilesGrowWithTheCopy) {
  const auto launch_of = [&] {
    PagedCopyLaunch first;
    EXPECT_TRUE(ForEachLaunch(args_, [&](const PagedCopyLaunch& launch) {
                  first = launch;
                  return OkStatus();
                }).ok());
    return first;
  };
  Make(2, 16, 4, 8, 256);
  EXPECT_EQ(launch_of().tile_bytes, 2048u);
  EXPECT_EQ(launch_of().num_tiles, 128u);
  EXPECT_EQ(launch_of().log2_lanes, 5);
  // Only cut, not copied: there is no such memory.
  args_.num_planes = 2;
  args_.tokens_per_block = 1u << 20;
  args_.num_tokens = 3u << 20;
  blocks_.assign(3, 0);
  args_.blocks = blocks_.data();
  EXPECT_EQ(launch_of().tile_bytes, 16384u);
  uint64_t tiles = 0;
  EXPECT_TRUE(ForEachLaunch(args_, [&](const PagedCopyLaunch& launch) {
                tiles += launch.num_tiles;
                EXPECT_LT(launch.num_tiles, uint64_t{1} << 31);
                return OkStatus();
              }).ok());
  EXPECT_EQ(tiles, PagedCopyBytes(args_) / 16384);
}

// Each byte of the engine is two in the payload: itself, and its complement.
struct WideForm {
  static constexpr uint64_t PayloadBytes(uint64_t engine_bytes) { return 2 * engine_bytes; }
  static uint64_t PayloadAlignment(uint64_t address) { return address / 2; }

  template <uint32_t kWidth>
  Vector<kWidth> LoadEngine(const std::byte* at) const {
    return LoadVector<kWidth>(at);
  }
  template <uint32_t kWidth>
  void StorePayload(std::byte* at, const Vector<kWidth>& v) const {
    std::byte bytes[kWidth];
    std::memcpy(bytes, &v, kWidth);
    for (uint32_t i = 0; i < kWidth; ++i) {
      at[2 * i] = bytes[i];
      at[2 * i + 1] = ~bytes[i];
    }
  }
  template <uint32_t kWidth>
  Vector<kWidth> LoadPayload(const std::byte* at) const {
    std::byte bytes[kWidth];
    for (uint32_t i = 0; i < kWidth; ++i) bytes[i] = at[2 * i];
    Vector<kWidth> v;
    std::memcpy(&v, bytes, kWidth);
    return v;
  }
  template <uint32_t kWidth>
  void StoreEngine(std::byte* at, const Vector<kWidth>& v) const {
    StoreVector<kWidth>(at, v);
  }
};

TEST_F(LaunchTest, APayloadOfAnotherForm) {
  for (const uint32_t tokens_per_block : {1u, 16u}) {
    Make(2, tokens_per_block, 1400, 2, 48);
    std::vector<std::byte> wide(2 * PagedCopyBytes(args_));
    args_.payload = wide.data();
    for (PlaneArgs& plane : planes_) plane.payload_offset *= 2;
    const auto run = [&](CopyDirection direction) {
      args_.direction = direction;
      EXPECT_TRUE(ForEachLaunch(args_, [&](const PagedCopyLaunch& launch) {
                    EmulateLaunch(launch, {2, 64, 5}, WideForm());
                    return OkStatus();
                  }).ok());
    };
    run(CopyDirection::kToHost);
    std::vector<std::byte> plain(PagedCopyBytes(args_));
    PagedCopyArgs same = args_;
    std::vector<PlaneArgs> halves = planes_;
    for (PlaneArgs& plane : halves) plane.payload_offset /= 2;
    same.planes = halves.data();
    same.payload = plain.data();
    RunOnHost(same);
    for (size_t i = 0; i < plain.size(); ++i) {
      ASSERT_EQ(wide[2 * i], plain[i]) << i;
      ASSERT_EQ(wide[2 * i + 1], ~plain[i]) << i;
    }
    const std::vector<std::byte> before = engine_;
    std::memset(Aligned(engine_), 0, PagedCopyBytes(args_));
    run(CopyDirection::kToDevice);
    ASSERT_TRUE(engine_ == before);
  }
}

}  // namespace
}  // namespace terrace
