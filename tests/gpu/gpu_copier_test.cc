// DeviceCopier on a device: every strategy against the reference, ordered behind the engine's computing;
// layers that the engine's stream waits for one by one; the calibration.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "lib/device/device_copier.h"
#include "tests/gpu/gpu_fixture.h"

namespace terrace {
namespace {

constexpr CopyStrategy kStrategies[] = {CopyStrategy::kPlain, CopyStrategy::kBatched, CopyStrategy::kStaged,
                                        CopyStrategy::kMapped};

class GpuCopierTest : public testing::TestWithParam<CopyStrategy> {
 protected:
  void SetUp() override {
    device_ = OpenDevice();
    ASSERT_NE(device_, nullptr);
    if (GetParam() == CopyStrategy::kBatched && !device_->properties().has_batched_copy) {
      GTEST_SKIP() << "the driver has no batched copies";
    }
    CopierOptions options;
    options.device = {device_, 8 << 20, GetParam(), GetParam()};
    options.pool = {pool_.bytes()};
    options.calibration_budget = Duration::zero();
    auto copier = DeviceCopier::Open(std::move(options));
    ASSERT_TRUE(copier.ok()) << copier.status().ToString();
    copier_ = *std::move(copier);
    for (const std::string& warning : copier_->warnings()) ADD_FAILURE() << warning;
  }

  HostMemory pool_{64 << 20};
  std::shared_ptr<CudaDevice> device_;
  std::unique_ptr<DeviceCopier> copier_;
};

Geometry LargeGeometry() {
  Geometry g;
  g.layers = 4;
  g.blocks = 24;
  g.block_tokens = 16;
  g.heads = 3;
  g.head_bytes = 160;
  return g;
}

std::vector<int64_t> ShuffledBlocks(int64_t count, std::mt19937_64& random) {
  std::vector<int64_t> blocks(static_cast<size_t>(count));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), random);
  return blocks;
}

TEST_P(GpuCopierTest, RoundTripsEqualTheReference) {
  std::mt19937_64 random(5);
  EngineStream native;
  const auto engine = *device_->AdoptStream(native.get());
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    Geometry g = LargeGeometry();
    if (layout.latent) g.heads = g.kv = 1;
    Pages pages(layout, g, ShuffledBlocks(g.blocks, random));
    const TokenRange tokens = {37, 32 + pages.view.num_tokens - 3};
    const LayerSpan layers = {0, 4};
    const size_t bytes = pages.PayloadBytes(tokens);
    std::byte* const payload = pool_.data() + 4096 + 16 * (random() % 5);
    DevicePages on_device(pages, device_, *engine);
    on_device.Upload();
    pages.Fill(random);
    // The engine computes: the pages' new bytes come behind other work of its stream.
    for (size_t i = 0; i < pages.memory.size(); ++i) {
      ASSERT_EQ(cudaMemcpyAsync(on_device.allocation(i), pages.memory[i].data(), pages.memory[i].size(),
                                cudaMemcpyHostToDevice, native.get()),
                cudaSuccess);
    }
    const auto computed = *engine->Record();
    const auto store =
        MakeKernelCopy(on_device.CopyOf(tokens), tokens, layers, CopyDirection::kToHost, payload);
    ASSERT_TRUE(store.ok());
    const auto stored = copier_->Copy(store->args, computed.get());
    ASSERT_TRUE(stored.ok()) << stored.status().ToString();
    ASSERT_TRUE((*stored)->Wait(Soon()).ok());
    std::vector<std::byte> expected(bytes);
    CopyByHand(pages, tokens, tokens, layers, CopyDirection::kToHost, pages.memory, expected.data());
    ASSERT_EQ(std::memcmp(payload, expected.data(), bytes), 0);

    // Other bytes back, into other pages, behind the engine's last use of them.
    std::vector<std::byte> other(bytes);
    FillRandom(other, random);
    std::memcpy(payload, other.data(), bytes);
    Memory after = on_device.Download();
    const auto load =
        MakeKernelCopy(on_device.CopyOf(tokens), tokens, layers, CopyDirection::kToDevice, payload);
    ASSERT_TRUE(load.ok());
    const auto used = *engine->Record();
    const auto loaded = copier_->Copy(load->args, used.get());
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    ASSERT_TRUE(engine->WaitFor(**loaded).ok());
    CopyByHand(pages, tokens, tokens, layers, CopyDirection::kToDevice, after, other.data());
    EXPECT_TRUE(on_device.Download() == after);
  }
}

// The engine's stream waits for one layer after the other, and sees each of them whole.
TEST_P(GpuCopierTest, LayersComeOneByOne) {
  std::mt19937_64 random(6);
  EngineStream native;
  const auto engine = *device_->AdoptStream(native.get());
  Geometry g = LargeGeometry();
  g.layers = 8;
  Pages pages(kLayouts[0], g, ShuffledBlocks(g.blocks, random));
  const TokenRange tokens = {32, 32 + pages.view.num_tokens};
  const size_t bytes = pages.PayloadBytes(tokens);
  DevicePages on_device(pages, device_, *engine), snapshot(pages, device_, *engine);
  pages.Fill(random);
  on_device.Upload();
  Memory expected = pages.memory;
  std::vector<std::byte> payload(bytes);
  FillRandom(payload, random);
  std::memcpy(pool_.data(), payload.data(), bytes);
  for (uint32_t layer = 0; layer < 8; ++layer) {
    const LayerSpan span = {layer, layer + 1};
    const auto load =
        MakeKernelCopy(on_device.CopyOf(tokens), tokens, span, CopyDirection::kToDevice, pool_.data());
    ASSERT_TRUE(load.ok());
    const auto loaded = copier_->Copy(load->args, nullptr);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    ASSERT_TRUE(engine->WaitFor(**loaded).ok());
    ASSERT_EQ(cudaMemcpyAsync(snapshot.allocation(layer), on_device.allocation(layer),
                              pages.memory[layer].size(), cudaMemcpyDeviceToDevice, native.get()),
              cudaSuccess);
  }
  CopyByHand(pages, tokens, tokens, {0, 8}, CopyDirection::kToDevice, expected, payload.data());
  EXPECT_TRUE(snapshot.Download() == expected);
}

INSTANTIATE_TEST_SUITE_P(Strategies, GpuCopierTest, testing::ValuesIn(kStrategies),
                         [](const auto& of) { return std::string(CopyStrategyName(of.param)); });

TEST(GpuCalibrationTest, MeasuresEveryStrategyInTime) {
  const auto device = OpenDevice();
  ASSERT_NE(device, nullptr);
  HostMemory pool(64 << 20);
  CopierOptions options;
  options.device = {device, 16 << 20, {}, {}};
  options.pool = {pool.bytes()};
  const auto begin = std::chrono::steady_clock::now();
  auto copier = DeviceCopier::Open(std::move(options));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  ASSERT_TRUE(copier.ok()) << copier.status().ToString();
  const CopyCalibration& calibration = (*copier)->calibration();
  EXPECT_FALSE(calibration.points().empty());
  for (const CalibrationPoint& point : calibration.points()) EXPECT_GT(point.bytes_per_second, 0);
  const auto read = CopyCalibration::FromJson(calibration.ToJson());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->points().size(), calibration.points().size());
  std::printf("opened and calibrated in %.0f ms (registration of the pool included): %s\n",
              1e3 * took.count(), calibration.ToJson().c_str());
}

}  // namespace
}  // namespace terrace
