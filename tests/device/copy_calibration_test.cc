#include "lib/device/copy_calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lib/device/copy_probe.h"

namespace terrace {
namespace {

constexpr auto kToHost = CopyDirection::kToHost;
constexpr auto kToDevice = CopyDirection::kToDevice;
constexpr uint32_t kAll = 0b11110;

constexpr uint32_t Bit(CopyStrategy strategy) { return 1u << static_cast<uint32_t>(strategy); }

CopyCalibration ByHand() {
  return CopyCalibration({
      {kToHost, CopyStrategy::kPlain, 2048, 16, 1e9},
      {kToHost, CopyStrategy::kStaged, 2048, 16, 20e9},
      {kToHost, CopyStrategy::kMapped, 2048, 16, 15e9},
      {kToHost, CopyStrategy::kPlain, 2048, 256, 2e9},
      {kToHost, CopyStrategy::kStaged, 2048, 256, 18e9},
      {kToHost, CopyStrategy::kMapped, 2048, 256, 19e9},
      {kToHost, CopyStrategy::kPlain, 32768, 16, 30e9},
      {kToHost, CopyStrategy::kBatched, 32768, 16, 50e9},
      {kToHost, CopyStrategy::kStaged, 32768, 16, 40e9},
      {kToDevice, CopyStrategy::kMapped, 32768, 16, 60e9},
  });
}

TEST(CopyCalibrationTest, TheFastestOfTheNearestSizeAndCount) {
  const CopyCalibration calibration = ByHand();
  EXPECT_EQ(calibration.Best(kToHost, 2048, 16, kAll), CopyStrategy::kStaged);
  EXPECT_EQ(calibration.Best(kToHost, 2048, 256, kAll), CopyStrategy::kMapped);
  EXPECT_EQ(calibration.Best(kToHost, 2048, 65, kAll), CopyStrategy::kMapped);  // beyond the middle, 64
  EXPECT_EQ(calibration.Best(kToHost, 2048, 63, kAll), CopyStrategy::kStaged);
  EXPECT_EQ(calibration.Best(kToHost, 1, 1, kAll), CopyStrategy::kStaged);
  EXPECT_EQ(calibration.Best(kToHost, 8200, 16, kAll), CopyStrategy::kBatched);  // beyond the middle, 8192
  EXPECT_EQ(calibration.Best(kToHost, 8100, 16, kAll), CopyStrategy::kStaged);
  // The size comes before the count, and is all that was measured of the large ones.
  EXPECT_EQ(calibration.Best(kToHost, uint64_t{1} << 40, 1u << 30, kAll), CopyStrategy::kBatched);
  EXPECT_EQ(calibration.Best(kToDevice, 1, 1, kAll), CopyStrategy::kMapped);
}

TEST(CopyCalibrationTest, OnlyOfTheAllowed) {
  const CopyCalibration calibration = ByHand();
  EXPECT_EQ(calibration.Best(kToHost, 2048, 16, kAll & ~Bit(CopyStrategy::kStaged)), CopyStrategy::kMapped);
  EXPECT_EQ(calibration.Best(kToHost, 2048, 16, Bit(CopyStrategy::kPlain)), CopyStrategy::kPlain);
  // Measured for other sizes only: the nearest of those.
  EXPECT_EQ(calibration.Best(kToHost, 2048, 16, Bit(CopyStrategy::kBatched)), CopyStrategy::kBatched);
  EXPECT_EQ(calibration.Best(kToDevice, 2048, 16, Bit(CopyStrategy::kStaged)), CopyStrategy::kPlain);
  EXPECT_EQ(calibration.Best(kToHost, 2048, 16, 0), CopyStrategy::kPlain);
  EXPECT_EQ(CopyCalibration().Best(kToHost, 2048, 16, kAll), CopyStrategy::kPlain);
}

TEST(CopyCalibrationTest, TiesDoNotDependOnTheOrder) {
  std::vector<CalibrationPoint> points = {
      {kToHost, CopyStrategy::kMapped, 1024, 16, 5e9},   {kToHost, CopyStrategy::kBatched, 1024, 16, 5e9},
      {kToHost, CopyStrategy::kPlain, 4096, 16, 9e9},    {kToHost, CopyStrategy::kStaged, 1024, 64, 9e9},
      {kToDevice, CopyStrategy::kPlain, 1024, 16, 99e9},
  };
  std::mt19937_64 random(7);
  for (int i = 0; i < 50; ++i) {
    std::shuffle(points.begin(), points.end(), random);
    // 2048 lies in the middle of 1024 and 4096, 32 in the middle of 16 and 64: the smaller ones count, and of
    // two equally fast strategies the simpler one.
    EXPECT_EQ(CopyCalibration(points).Best(kToHost, 2048, 32, kAll), CopyStrategy::kBatched);
  }
}

TEST(CopyCalibrationTest, JsonRoundTrip) {
  const CopyCalibration calibration = ByHand();
  const auto again = CopyCalibration::FromJson(calibration.ToJson());
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  ASSERT_EQ(again->points().size(), calibration.points().size());
  for (size_t i = 0; i < calibration.points().size(); ++i) {
    const CalibrationPoint& a = calibration.points()[i];
    const CalibrationPoint& b = again->points()[i];
    EXPECT_EQ(a.direction, b.direction);
    EXPECT_EQ(a.strategy, b.strategy);
    EXPECT_EQ(a.piece_bytes, b.piece_bytes);
    EXPECT_EQ(a.num_pieces, b.num_pieces);
    EXPECT_DOUBLE_EQ(a.bytes_per_second, b.bytes_per_second);
  }
  const auto none = CopyCalibration::FromJson(CopyCalibration().ToJson());
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->points().empty());
  EXPECT_EQ(CopyCalibration({{kToDevice, CopyStrategy::kStaged, 2048, 16, 12.5e9}}).ToJson(),
            R"({"points":[{"direction":"to_device","strategy":"staged","piece_bytes":2048,)"
            R"("num_pieces":16,"gbps":12.5}]})");
}

TEST(CopyCalibrationTest, BadJsonIsDataLoss) {
  const std::string good =
      R"({"direction":"to_host","strategy":"plain","piece_bytes":2048,"num_pieces":16,"gbps":1.5})";
  ASSERT_TRUE(CopyCalibration::FromJson(R"({"points":[)" + good + "]}").ok());
  const auto with = [&](const std::string& what, const std::string& instead) {
    std::string point = good;
    point.replace(point.find(what), what.size(), instead);
    return R"({"points":[)" + point + "]}";
  };
  std::vector<std::string> bad = {
      "",
      "x",
      "[]",
      "{}",
      "null",
      R"({"points":{}})",
      R"({"points":[1]})",
      R"({"points":[{}]})",
      R"({"points":[],"more":1})",
      R"({"points":[],"points":[]})",
      R"({"points":[)" + good + "]} {}",
      R"({"points":[)" + good + "]",
      with("to_host", "to_moon"),
      with(R"("to_host")", "1"),
      with(R"("plain")", R"("fast")"),
      with(R"("plain")", "1"),
      with("2048", "0"),
      with("2048", "-1"),
      with("2048", "1.5"),
      with("2048", R"("2048")"),
      with("2048", "99999999999999999999999"),
      with("16", "0"),
      with("1.5", "0"),
      with("1.5", "-1"),
      with("1.5", "1e999"),
      with("1.5", "1e300"),
      with("1.5", "null"),
      with("1.5", R"("1.5")"),
      with(R"(,"gbps":1.5)", ""),
      with("1.5", R"(1.5,"more":1)"),
      with("1.5", R"(1.5,"gbps":2)"),
      std::string(100000, '['),
      std::string(size_t{2} << 20, ' ') + R"({"points":[]})",
      "\xff\xfe{\"points\":[]}",
  };
  for (const std::string& json : bad) {
    const auto read = CopyCalibration::FromJson(json);
    EXPECT_EQ(read.status().code(), StatusCode::kDataLoss) << json.substr(0, 200);
  }
  std::string many = R"({"points":[)" + good;
  for (int i = 0; i < 5000; ++i) many += "," + good;
  EXPECT_EQ(CopyCalibration::FromJson(many + "]}").status().code(), StatusCode::kDataLoss);
}

// An event that is done after some questions, or fails.
class CountingEvent : public Event {
 public:
  explicit CountingEvent(int questions, bool fails = false) : left_(questions), fails_(fails) {}
  Result<bool> Query() const override {
    if (--left_ > 0) return false;
    if (fails_) return UnavailableError("lost");
    return true;
  }
  void* native_handle() const override { return nullptr; }

 private:
  mutable int left_;
  const bool fails_;
};

struct ProbeRun {
  std::vector<std::byte> pages = std::vector<std::byte>(8 << 20);
  std::vector<std::byte> host = std::vector<std::byte>(8 << 20);
  std::vector<CopyStrategy> copies;
  CopyProbe probe;

  ProbeRun() {
    probe.pages.fill(pages);
    probe.host = host;
    probe.strategies = {kAll, Bit(CopyStrategy::kPlain) | Bit(CopyStrategy::kMapped)};
    probe.budget = std::chrono::hours(1);
    probe.copy = [this](const PagedCopyArgs& args, CopyStrategy strategy) -> Result<std::shared_ptr<Event>> {
      copies.push_back(strategy);
      const PlaneArgs& plane = args.planes[0];
      const uint64_t bytes = args.num_tokens * plane.run_bytes;
      EXPECT_LE(bytes, host.size());
      EXPECT_EQ(args.payload, host.data());
      EXPECT_EQ(plane.base, pages.data());
      // Blocks in the pages, no two of them neighbours on both sides.
      const uint64_t count = args.num_tokens / args.tokens_per_block;
      uint64_t wrong = 0;
      for (uint64_t b = 0; b < count; ++b) {
        const auto end =
            static_cast<uint64_t>(args.blocks[b] + 1) * static_cast<uint64_t>(plane.block_stride);
        if (end > pages.size() || (b > 0 && args.blocks[b] == args.blocks[b - 1] + 1)) ++wrong;
      }
      EXPECT_EQ(wrong, 0u);
      return std::shared_ptr<Event>(std::make_shared<CountingEvent>(3));
    };
  }
};

TEST(CopyProbeTest, EveryStrategyOfEverySizeThatFits) {
  ProbeRun run;
  const auto measured = MeasureCopies(run.probe);
  ASSERT_TRUE(measured.ok());
  // Of 8 MiB: 2, 8, 32 KiB by both counts, 128 KiB by 16, and 512 KiB by 16.
  EXPECT_EQ(measured->points().size(), 8u * (4 + 2));
  for (const CalibrationPoint& point : measured->points()) {
    EXPECT_LE(point.piece_bytes * point.num_pieces, run.host.size());
    EXPECT_GT(point.bytes_per_second, 0);
    EXPECT_FALSE(point.direction == kToDevice && point.strategy == CopyStrategy::kStaged);
  }
  EXPECT_TRUE(std::any_of(measured->points().begin(), measured->points().end(),
                          [](const auto& point) { return point.piece_bytes == 512 << 10; }));
}

TEST(CopyProbeTest, NothingInNoTimeOrNoMemory) {
  ProbeRun run;
  run.probe.budget = Duration::zero();
  auto measured = MeasureCopies(run.probe);
  ASSERT_TRUE(measured.ok());
  EXPECT_TRUE(measured->points().empty());
  EXPECT_TRUE(run.copies.empty());
  run.probe.budget = std::chrono::hours(1);
  run.probe.host = run.probe.host.first(4096);
  measured = MeasureCopies(run.probe);
  ASSERT_TRUE(measured.ok());
  EXPECT_TRUE(measured->points().empty());
}

TEST(CopyProbeTest, AnErrorEndsIt) {
  for (const bool at_enqueue : {true, false}) {
    ProbeRun run;
    const auto copy = run.probe.copy;
    run.probe.copy = [&](const PagedCopyArgs& args, CopyStrategy strategy) {
      auto event = copy(args, strategy);
      if (run.copies.size() < 10) return event;
      if (at_enqueue) return Result<std::shared_ptr<Event>>(UnavailableError("lost"));
      return Result<std::shared_ptr<Event>>(std::make_shared<CountingEvent>(2, true));
    };
    const auto measured = MeasureCopies(run.probe);
    EXPECT_EQ(measured.status().code(), StatusCode::kUnavailable);
    EXPECT_EQ(run.copies.size(), 10u);
  }
}

}  // namespace
}  // namespace terrace
