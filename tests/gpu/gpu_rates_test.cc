// How near the copies come to the bus: each strategy's rate beside a bare cudaMemcpyAsync of the same bytes,
// in turns. Figures are printed, not judged: they are the machine's. The bytes are.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

#include "lib/device/device_copier.h"
#include "tests/gpu/gpu_fixture.h"

namespace terrace {
namespace {

constexpr uint64_t kBytes = uint64_t{128} << 20;
constexpr int kRounds = 7;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Bytes per second of what `enqueue` puts on its streams; it answers the event of its end.
double RateOf(const std::function<std::shared_ptr<Event>()>& enqueue) {
  const auto begin = std::chrono::steady_clock::now();
  const std::shared_ptr<Event> done = enqueue();
  if (done == nullptr) return 0;
  for (auto asked = done->Query(); asked.ok() && !*asked;) asked = done->Query();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(kBytes) / took.count();
}

struct RateCase {
  CopyStrategy strategy;
  CopyDirection direction;
  uint64_t piece_bytes;
};

// Pieces of one size in shuffled blocks: one plane, one token per piece, blocks of one token.
class Probe {
 public:
  explicit Probe(const std::shared_ptr<CudaDevice>& device)
      : device_(device), pool_(kBytes), pages_(*device->Allocate(2 * kBytes)), bare_(*device->MakeStream()) {}

  void Run(const RateCase& rate) {
    CopierOptions options;
    options.device = {device_, 32 << 20, rate.strategy, rate.strategy};
    options.pool = {pool_.bytes()};
    options.calibration_budget = Duration::zero();
    auto copier = DeviceCopier::Open(std::move(options));
    ASSERT_TRUE(copier.ok()) << copier.status().ToString();
    const uint64_t num_blocks = kBytes / rate.piece_bytes;
    std::vector<int64_t> blocks(num_blocks);
    for (uint64_t b = 0; b < num_blocks; ++b) blocks[b] = static_cast<int64_t>(2 * b);  // never neighbours
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937_64(num_blocks));
    const PlaneArgs plane = {.base = pages_.get(),
                             .block_stride = static_cast<int64_t>(rate.piece_bytes),
                             .token_stride = static_cast<int64_t>(rate.piece_bytes),
                             .run_bytes = static_cast<uint32_t>(rate.piece_bytes)};
    PagedCopyArgs args;
    args.direction = rate.direction;
    args.payload = pool_.data();
    args.planes = &plane;
    args.num_planes = 1;
    args.blocks = blocks.data();
    args.num_tokens = num_blocks;
    std::vector<double> library, bare;
    for (int round = 0; round <= kRounds; ++round) {
      const double of_library = RateOf([&]() -> std::shared_ptr<Event> {
        auto done = (*copier)->Copy(args, nullptr);
        EXPECT_TRUE(done.ok()) << done.status().ToString();
        return done.ok() ? *done : nullptr;
      });
      const double of_bare = RateOf([&]() -> std::shared_ptr<Event> {
        const bool to_host = rate.direction == CopyDirection::kToHost;
        void* const dst = to_host ? pool_.data() : pages_.get();
        const void* const src = to_host ? pages_.get() : pool_.data();
        EXPECT_EQ(cudaMemcpyAsync(dst, src, kBytes, cudaMemcpyDefault,
                                  static_cast<cudaStream_t>(bare_->native_handle())),
                  cudaSuccess);
        return *bare_->Record();
      });
      if (round == 0) continue;  // warms up
      library.push_back(of_library);
      bare.push_back(of_bare);
    }
    std::printf("%-9s %-8s %8llu-byte pieces: %6.2f GB/s, bare cudaMemcpyAsync %6.2f GB/s, ratio %.2f\n",
                rate.direction == CopyDirection::kToHost ? "to host" : "to device",
                CopyStrategyName(rate.strategy), static_cast<unsigned long long>(rate.piece_bytes),
                Median(library) / 1e9, Median(bare) / 1e9, Median(library) / Median(bare));
  }

 private:
  const std::shared_ptr<CudaDevice> device_;
  HostMemory pool_;
  const std::shared_ptr<std::byte> pages_;
  const std::shared_ptr<Stream> bare_;
};

TEST(GpuRatesTest, BesideABareCopy) {
  const auto device = OpenDevice();
  ASSERT_NE(device, nullptr);
  Probe probe(device);
  for (const auto direction : {CopyDirection::kToHost, CopyDirection::kToDevice}) {
    for (const uint64_t piece_bytes :
         {uint64_t{2} << 10, uint64_t{8} << 10, uint64_t{32} << 10, uint64_t{1} << 20}) {
      for (const auto strategy :
           {CopyStrategy::kPlain, CopyStrategy::kBatched, CopyStrategy::kStaged, CopyStrategy::kMapped}) {
        if (strategy == CopyStrategy::kBatched && !device->properties().has_batched_copy) continue;
        probe.Run({strategy, direction, piece_bytes});
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace terrace
