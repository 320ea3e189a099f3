// Opening copiers: what the device or the system refuses, what is measured, what is given
// back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lib/device/device_copier.h"
#include "tests/device/copier_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Many times what measuring takes.
constexpr Duration kAmple = std::chrono::minutes(10);

std::string Text(const Status& status) { return std::string(status.message()); }

struct Opening {
  explicit Opening(const SimulatedDeviceOptions& device_options = {}, size_t pool_bytes = size_t{1} << 20)
      : pool(pool_bytes), device(SimulatedDevice::Make(device_options)) {
    options.device.device = device;
    options.pool = {pool.bytes()};
    options.calibration_budget = Duration::zero();
  }
  Result<std::unique_ptr<DeviceCopier>> Open() const { return DeviceCopier::Open(options); }
  void ExpectAllGivenBack() const {
    EXPECT_EQ(device->counters().registered_bytes, 0u);
    EXPECT_EQ(device->counters().allocated_bytes, 0u);
  }

  PoolMemory pool;
  std::shared_ptr<SimulatedDevice> device;
  CopierOptions options;
};

// Whether random copies through it are right, in both directions.
void ExpectCopies(const RigOptions& options) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rig rig(options);
    std::mt19937_64 random(seed);
    for (const CopyDirection direction : {CopyDirection::kToHost, CopyDirection::kToDevice}) {
      RandomCopy copy(direction, random, rig);
      ASSERT_TRUE(copy.Enqueue().ok());
      ASSERT_TRUE(copy.Wait().ok());
      ASSERT_TRUE(copy.IsRight());
    }
  }
}

TEST(CopierOpenTest, RegistersThePoolAndGivesItBack) {
  Opening opening({}, size_t{8} << 20);
  opening.options.pool.clear();
  for (size_t i = 0; i < 8; ++i) {
    opening.options.pool.push_back(opening.pool.bytes().subspan(i << 20, size_t{1} << 20));
  }
  opening.options.device.staging_bytes = 65536;
  {
    auto copier = opening.Open();
    ASSERT_TRUE(copier.ok());
    EXPECT_EQ(opening.device->counters().registered_bytes, 8u << 20);
    EXPECT_EQ(opening.device->counters().allocated_bytes, 65536u);
    EXPECT_EQ((*copier)->staging_bytes(), 65536u);
    EXPECT_THAT((*copier)->warnings(), IsEmpty());
  }
  opening.ExpectAllGivenBack();
}

TEST(CopierOpenTest, RefusedRegistrationIsAWarning) {
  SimulatedDeviceOptions refusing;
  refusing.refuses_registration = true;
  {
    Opening opening(refusing);
    opening.options.device.to_host = CopyStrategy::kMapped;
    auto copier = opening.Open();
    ASSERT_TRUE(copier.ok()) << copier.status().ToString();
    EXPECT_THAT((*copier)->warnings(), ElementsAre(HasSubstr("1 of 1 regions"), HasSubstr("mapped")));
    const int64_t blocks[] = {4, 2};
    PlaneArgs plane{nullptr, 0, 64, 64, 64, 1, 64};
    PagedCopyArgs args;
    args.planes = &plane;
    args.num_planes = 1;
    args.blocks = blocks;
    args.num_tokens = 2;
    EXPECT_NE((*copier)->StrategyOf(args), CopyStrategy::kMapped);
  }
  for (const CopyStrategy strategy : {CopyStrategy::kPlain, CopyStrategy::kStaged, CopyStrategy::kMapped}) {
    RigOptions options;
    options.device = refusing;
    options.strategy = strategy;
    ExpectCopies(options);
  }
}

TEST(CopierOpenTest, RefusedStagingIsAWarning) {
  SimulatedDeviceOptions small;
  small.memory_bytes = 32768;
  Opening opening(small);
  opening.options.device.staging_bytes = 65536;
  opening.options.device.to_device = CopyStrategy::kStaged;
  {
    auto copier = opening.Open();
    ASSERT_TRUE(copier.ok()) << copier.status().ToString();
    EXPECT_THAT((*copier)->warnings(), ElementsAre(HasSubstr("no staged copies"), HasSubstr("staged")));
    EXPECT_EQ((*copier)->staging_bytes(), 0u);
  }
  opening.ExpectAllGivenBack();
  RigOptions options;
  options.device = small;
  options.strategy = CopyStrategy::kStaged;
  ExpectCopies(options);
  options.strategy.reset();
  options.staging_bytes = 0;
  ExpectCopies(options);
}

TEST(CopierOpenTest, WhatTheDeviceCannotDoIsRefused) {
  SimulatedDeviceOptions bare;
  bare.has_kernels = false;
  bare.has_batched_copy = false;
  for (const CopyStrategy strategy : {CopyStrategy::kBatched, CopyStrategy::kStaged, CopyStrategy::kMapped}) {
    for (const bool to_host : {true, false}) {
      Opening opening(bare);
      opening.options.device.staging_bytes = 65536;
      (to_host ? opening.options.device.to_host : opening.options.device.to_device) = strategy;
      const auto copier = opening.Open();
      EXPECT_EQ(copier.status().code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(Text(copier.status()),
                  AllOf(HasSubstr(to_host ? "to_host is " : "to_device is "),
                        HasSubstr(CopyStrategyName(strategy)), testing::EndsWith("allowed: plain")));
      opening.ExpectAllGivenBack();
    }
  }
  Opening opening;
  opening.options.device.to_host = CopyStrategy::kStaged;
  EXPECT_THAT(Text(opening.Open().status()),
              AllOf(HasSubstr("staging_bytes = 0"), testing::EndsWith("allowed: plain, batched, mapped")));
  opening.options.device.to_host = static_cast<CopyStrategy>(9);
  EXPECT_EQ(opening.Open().status().code(), StatusCode::kInvalidArgument);
  opening.options.device.to_host.reset();
  opening.options.device.staging_bytes = 1000;
  EXPECT_THAT(Text(opening.Open().status()), AllOf(HasSubstr("1000"), HasSubstr("at least 1024")));
  opening.options.device.device = nullptr;
  EXPECT_EQ(opening.Open().status().code(), StatusCode::kInvalidArgument);
}

TEST(CopierOpenTest, MeasuresWhatTheDeviceCanDo) {
  struct Case {
    bool has_kernels, has_batched_copy;
    uint64_t staging_bytes;
    std::vector<CopyStrategy> strategies;
  };
  const Case cases[] = {
      {true,
       true,
       1 << 20,
       {CopyStrategy::kPlain, CopyStrategy::kBatched, CopyStrategy::kStaged, CopyStrategy::kMapped}},
      {true, true, 0, {CopyStrategy::kPlain, CopyStrategy::kBatched, CopyStrategy::kMapped}},
      {false, true, 0, {CopyStrategy::kPlain, CopyStrategy::kBatched}},
      {false, false, 0, {}},  // no choice
  };
  for (const Case& expected : cases) {
    SimulatedDeviceOptions device;
    device.has_kernels = expected.has_kernels;
    device.has_batched_copy = expected.has_batched_copy;
    device.delay_of_256 = 0;
    Opening opening(device);
    opening.options.calibration_budget = kAmple;
    opening.options.device.staging_bytes = expected.staging_bytes;
    {
      auto copier = opening.Open();
      ASSERT_TRUE(copier.ok());
      EXPECT_THAT((*copier)->warnings(), IsEmpty());
      EXPECT_EQ(opening.device->counters().allocated_bytes, expected.staging_bytes);
      for (const CopyDirection direction : {CopyDirection::kToHost, CopyDirection::kToDevice}) {
        std::vector<CopyStrategy> measured;
        for (const CalibrationPoint& point : (*copier)->calibration().points()) {
          if (point.direction != direction || point.piece_bytes != 8192 || point.num_pieces != 16) continue;
          measured.push_back(point.strategy);
        }
        EXPECT_EQ(measured, expected.strategies);
      }
    }
    opening.ExpectAllGivenBack();
  }
}

TEST(CopierOpenTest, MeasuresInTheSlotsWhereThereIsNoOtherMemory) {
  SimulatedDeviceOptions device;
  device.memory_bytes = 1 << 20;
  Opening opening(device);
  opening.options.calibration_budget = kAmple;
  opening.options.device.staging_bytes = 1 << 20;
  opening.options.device.to_device = CopyStrategy::kPlain;  // which is then not measured
  auto copier = opening.Open();
  ASSERT_TRUE(copier.ok());
  EXPECT_THAT((*copier)->warnings(), IsEmpty());
  EXPECT_FALSE((*copier)->calibration().points().empty());
  for (const CalibrationPoint& point : (*copier)->calibration().points()) {
    EXPECT_EQ(point.direction, CopyDirection::kToHost);
    EXPECT_LE(point.piece_bytes * point.num_pieces, 512u << 10);
  }
}

TEST(CopierOpenTest, NoMemoryToMeasureInIsAWarning) {
  SimulatedDeviceOptions device;
  device.memory_bytes = 0;
  Opening opening(device);
  opening.options.calibration_budget = kAmple;
  auto copier = opening.Open();
  ASSERT_TRUE(copier.ok());
  EXPECT_THAT((*copier)->warnings(), ElementsAre(HasSubstr("no strategy was measured")));
}

// Every step of measuring refused or failed: the device's error, and all is given back.
TEST(CopierOpenTest, ErrorsWhileMeasuring) {
  for (const bool refuse : {true, false}) {
    for (uint64_t n = 1; n < 1500; n = n * 2 + 1) {
      SimulatedDeviceOptions device;
      device.delay_of_256 = 0;
      Opening opening(device, 256 << 10);
      opening.options.calibration_budget = kAmple;
      opening.options.device.staging_bytes = 64 << 10;
      opening.device->FailAfter(refuse ? 0 : n);
      opening.device->RefuseAfter(refuse ? n : 0);
      const auto copier = opening.Open();
      EXPECT_FALSE(n < 50 && copier.ok());
      if (copier.ok()) break;
      opening.ExpectAllGivenBack();
    }
  }
}

}  // namespace
}  // namespace terrace
