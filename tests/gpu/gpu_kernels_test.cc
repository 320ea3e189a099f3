// The kernels on the device beside the host's reference: every layout, heads, sizes and blocks, both
// directions, the vector kernels and the bulk engine, payloads in device memory and in mapped host memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "kernels/cuda/bulk_copy.h"
#include "tests/gpu/gpu_fixture.h"

namespace terrace {
namespace {

struct KernelCase {
  bool use_bulk_copy;
  bool is_mapped;  // the payload: in mapped host memory, or in device memory
};
std::string Name(const testing::TestParamInfo<KernelCase>& info) {
  return std::string(info.param.use_bulk_copy ? "bulk" : "vectors") +
         (info.param.is_mapped ? "_mapped" : "_staged");
}

class GpuKernelsTest : public testing::TestWithParam<KernelCase> {
 protected:
  void SetUp() override {
    device_ = OpenDevice({.use_bulk_copy = GetParam().use_bulk_copy});
    ASSERT_NE(device_, nullptr);
    if (!device_->properties().has_kernels) GTEST_SKIP() << "no kernels for " << device_->properties().name;
    if (GetParam().use_bulk_copy && !device_->has_bulk_copy())
      GTEST_SKIP() << "the device has no bulk engine";
    stream_ = *device_->MakeStream();
  }

  // One copy of `tokens`; expects exactly what the reference does, and nothing else.
  void Check(Pages& pages, TokenRange payload_tokens, TokenRange tokens, LayerSpan layers,
             CopyDirection direction, std::mt19937_64& random) {
    const size_t bytes = pages.PayloadBytes(payload_tokens);
    const size_t shift = random() % 4 * 16 + random() % 3;  // mostly unaligned, by two bytes too
    const size_t begin = random() % 2 == 0 ? 64 : 64 + shift;
    PinnedMemory pinned(device_, begin + bytes + 64);
    std::vector<std::byte> noise(pinned.bytes().size());
    FillRandom(noise, random);
    std::memcpy(pinned.data(), noise.data(), noise.size());
    pages.Fill(random);
    DevicePages on_device(pages, device_, *stream_);
    on_device.Upload();

    std::shared_ptr<std::byte> staging;
    std::byte* payload = pinned.mapped() + begin;
    if (!GetParam().is_mapped) {
      staging = *device_->Allocate(noise.size());
      payload = staging.get() + begin;
      ASSERT_TRUE(
          device_->Copy(*stream_, CopyDirection::kToDevice, {staging.get(), pinned.data(), noise.size()})
              .ok());
    }
    {
      const auto kernel =
          MakeKernelCopy(on_device.CopyOf(payload_tokens), tokens, layers, direction, payload);
      ASSERT_TRUE(kernel.ok()) << kernel.status().ToString();
      const Status enqueued = device_->Run(*stream_, kernel->args);  // its arguments go now
      ASSERT_TRUE(enqueued.ok()) << enqueued.ToString();
    }
    if (!GetParam().is_mapped) {
      ASSERT_TRUE(
          device_->Copy(*stream_, CopyDirection::kToHost, {pinned.data(), staging.get(), noise.size()}).ok());
    }
    WaitFor(*stream_);

    Memory expected = pages.memory;
    CopyByHand(pages, payload_tokens, tokens, layers, direction, expected, noise.data() + begin);
    EXPECT_EQ(std::memcmp(pinned.data(), noise.data(), noise.size()), 0);
    EXPECT_TRUE(on_device.Download() == expected);
  }

  std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<Stream> stream_;
};

std::vector<int64_t> ShuffledBlocks(int64_t count, std::mt19937_64& random) {
  std::vector<int64_t> blocks(static_cast<size_t>(count));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), random);
  return blocks;
}

TEST_P(GpuKernelsTest, EveryLayoutEqualsTheReference) {
  std::mt19937_64 random(7);
  for (const Layout& layout : kLayouts) {
    for (const int64_t heads : {1, 2, 3, 8}) {
      for (const int64_t head_bytes : {64, 80, 128, 576, 1152}) {
        for (const int64_t block_tokens : {1, 16, 32, 128}) {
          Geometry g;
          g.layers = 2;
          g.blocks = block_tokens == 1 ? 9 : 3;
          g.block_tokens = block_tokens;
          g.heads = layout.latent ? 1 : heads;
          g.head_bytes = head_bytes;
          g.kv = layout.latent ? 1 : 2;
          SCOPED_TRACE(testing::Message() << layout.name << " heads " << heads << " head bytes " << head_bytes
                                          << " block " << block_tokens);
          for (const auto direction : {CopyDirection::kToHost, CopyDirection::kToDevice}) {
            Pages pages(layout, g, ShuffledBlocks(g.blocks, random));
            if (direction == CopyDirection::kToDevice && random() % 2 == 0) {
              pages.table[random() % pages.table.size()] = -1;
            }
            const uint64_t end = 32 + pages.view.num_tokens;
            const TokenRange payload_tokens = {32 + random() % std::min<uint64_t>(block_tokens, 5), end};
            TokenRange tokens = payload_tokens;
            tokens.end -= random() % std::min<uint64_t>(block_tokens, 7);
            Check(pages, payload_tokens, tokens, {static_cast<uint32_t>(random() % 2), 2}, direction, random);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(GpuKernelsTest, NoTokenAndOneToken) {
  std::mt19937_64 random(8);
  Geometry g;
  for (const auto direction : {CopyDirection::kToHost, CopyDirection::kToDevice}) {
    Pages pages(kLayouts[0], g, ShuffledBlocks(g.blocks, random));
    Check(pages, {32, 64}, {40, 40}, {0, 3}, direction, random);
    Check(pages, {40, 41}, {40, 41}, {0, 3}, direction, random);
    Check(pages, {40, 41}, {40, 41}, {1, 1}, direction, random);
  }
}

// More planes and blocks than one launch takes.
TEST_P(GpuKernelsTest, SeveralLaunches) {
  std::mt19937_64 random(9);
  Geometry g;
  g.layers = 80;
  g.blocks = 1100;
  g.block_tokens = 1;
  g.heads = 1;
  g.head_bytes = 64;
  for (const auto direction : {CopyDirection::kToHost, CopyDirection::kToDevice}) {
    Pages pages(kLayouts[4], g, ShuffledBlocks(g.blocks, random));
    Check(pages, {32, 1132}, {33, 1130}, {0, 80}, direction, random);
  }
}

TEST_P(GpuKernelsTest, LargeContiguousPieces) {
  std::mt19937_64 random(10);
  Geometry g;
  g.layers = 4;
  g.blocks = 16;
  g.block_tokens = 64;
  g.heads = 8;
  g.head_bytes = 256;
  for (const auto direction : {CopyDirection::kToHost, CopyDirection::kToDevice}) {
    Pages pages(kLayouts[0], g, ShuffledBlocks(g.blocks, random));
    for (int round = 0; round < 4; ++round) {
      Check(pages, {32, 32 + pages.view.num_tokens}, {32, 32 + pages.view.num_tokens}, {0, 4}, direction,
            random);
    }
  }
}

// One block beyond 4 GiB of its plane's base, where a product of 32 bits would lead into the first ones.
TEST_P(GpuKernelsTest, OffsetsAboveFourGib) {
  constexpr int64_t kBlockStride = int64_t{1} << 30;
  constexpr uint64_t kBlockBytes = 16384;
  auto memory = device_->Allocate(5 * uint64_t{kBlockStride});
  if (!memory.ok()) GTEST_SKIP() << memory.status().ToString();
  PinnedMemory pinned(device_, 5 * kBlockBytes);
  std::mt19937_64 random(11);
  std::vector<std::byte> bytes(5 * kBlockBytes);
  FillRandom(bytes, random);
  std::memcpy(pinned.data(), bytes.data(), bytes.size());
  const std::vector<int64_t> blocks = {4, 0, 3, 1, 2};
  const PlaneArgs plane = {
      .base = memory->get(), .block_stride = kBlockStride, .token_stride = 1024, .run_bytes = 1024};
  PagedCopyArgs args;
  args.direction = CopyDirection::kToDevice;
  args.payload = pinned.mapped();
  args.planes = &plane;
  args.num_planes = 1;
  args.tokens_per_block = 16;
  args.blocks = blocks.data();
  args.num_tokens = 80;
  ASSERT_TRUE(device_->Run(*stream_, args).ok());
  WaitFor(*stream_);
  std::memset(pinned.data(), 0, bytes.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    ASSERT_TRUE(
        device_
            ->Copy(*stream_, CopyDirection::kToHost,
                   {pinned.data() + i * kBlockBytes, memory->get() + blocks[i] * kBlockStride, kBlockBytes})
            .ok());
  }
  WaitFor(*stream_);
  EXPECT_EQ(std::memcmp(pinned.data(), bytes.data(), bytes.size()), 0);
}

INSTANTIATE_TEST_SUITE_P(Kernels, GpuKernelsTest,
                         testing::Values(KernelCase{false, false}, KernelCase{false, true},
                                         KernelCase{true, false}, KernelCase{true, true}),
                         Name);

}  // namespace
}  // namespace terrace
