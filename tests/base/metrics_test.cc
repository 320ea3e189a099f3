#include "terrace/metrics.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace terrace {
namespace {

TEST(MetricRegistryTest, TextIsPrometheus) {
  MetricRegistry registry;
  registry.GetGauge("terrace_z_bytes", "Last.")->Set(-5);
  registry
      .GetCounter("terrace_a_ops_total", "A \\ and\na line.", {{"tier", "nvme"}, {"backend", "a\"b\\c\nd"}})
      ->Add(3);
  registry.GetCounter("terrace_a_ops_total", "", {{"tier", "host"}})->Add();
  constexpr double kBounds[] = {0.001, 0.5, 10};
  Histogram* seconds = registry.GetHistogram("terrace_m_seconds", "Time.", kBounds, {{"tier", "host"}});
  for (const double value : {0.0005, 0.001, 0.25, 20.0}) seconds->Observe(value);
  EXPECT_EQ(registry.PrometheusText(),
            "# HELP terrace_a_ops_total A \\\\ and\\na line.\n"
            "# TYPE terrace_a_ops_total counter\n"
            "terrace_a_ops_total{backend=\"a\\\"b\\\\c\\nd\",tier=\"nvme\"} 3\n"
            "terrace_a_ops_total{tier=\"host\"} 1\n"
            "# HELP terrace_m_seconds Time.\n"
            "# TYPE terrace_m_seconds histogram\n"
            "terrace_m_seconds_bucket{tier=\"host\",le=\"0.001\"} 2\n"
            "terrace_m_seconds_bucket{tier=\"host\",le=\"0.5\"} 3\n"
            "terrace_m_seconds_bucket{tier=\"host\",le=\"10\"} 3\n"
            "terrace_m_seconds_bucket{tier=\"host\",le=\"+Inf\"} 4\n"
            "terrace_m_seconds_sum{tier=\"host\"} 20.2515\n"
            "terrace_m_seconds_count{tier=\"host\"} 4\n"
            "# HELP terrace_z_bytes Last.\n"
            "# TYPE terrace_z_bytes gauge\n"
            "terrace_z_bytes -5\n");
}

TEST(MetricRegistryTest, SeveralRegistriesAreOneText) {
  MetricRegistry own, first, second;
  own.GetCounter("terrace_b_total", "B.")->Add(1);
  own.GetGauge("terrace_c", "A gauge here.")->Set(2);
  first.GetCounter("terrace_b_total", "Not said twice.", {{"tier", "host"}})->Add(3);
  first.GetCounter("terrace_c", "A counter there.")->Add(4);
  second.GetCounter("terrace_b_total", "B.")->Add(5);
  constexpr double kBounds[] = {1};
  second.GetHistogram("terrace_a", "A.", kBounds)->Observe(0.5);
  const MetricRegistry::Labelled all[] = {
      {&own, {}}, {&first, {{"namespace", "x\"y"}}}, {&second, {{"namespace", "z"}}}};
  EXPECT_EQ(MetricRegistry::PrometheusText(all),
            "# HELP terrace_a A.\n"
            "# TYPE terrace_a histogram\n"
            "terrace_a_bucket{namespace=\"z\",le=\"1\"} 1\n"
            "terrace_a_bucket{namespace=\"z\",le=\"+Inf\"} 1\n"
            "terrace_a_sum{namespace=\"z\"} 0.5\n"
            "terrace_a_count{namespace=\"z\"} 1\n"
            "# HELP terrace_b_total B.\n"
            "# TYPE terrace_b_total counter\n"
            "terrace_b_total 1\n"
            "terrace_b_total{tier=\"host\",namespace=\"x\\\"y\"} 3\n"
            "terrace_b_total{namespace=\"z\"} 5\n"
            "# HELP terrace_c A gauge here.\n"
            "# TYPE terrace_c gauge\n"
            "terrace_c 2\n");
}

TEST(MetricRegistryTest, OneMetricPerNameAndLabels) {
  MetricRegistry registry;
  Counter* counter = registry.GetCounter("a_total", "", {{"x", "1"}, {"y", "2"}});
  EXPECT_EQ(counter, registry.GetCounter("a_total", "", {{"y", "2"}, {"x", "1"}}));
  EXPECT_NE(counter, registry.GetCounter("a_total", "", {{"x", "1"}}));
  counter->Add(7);
  EXPECT_EQ(registry.Value("a_total", {{"y", "2"}, {"x", "1"}}), 7);
  EXPECT_EQ(registry.Value("a_total"), 0);
  EXPECT_EQ(registry.Value("b_total"), 0);
  constexpr double kBounds[] = {1, 2};
  constexpr double kOthers[] = {5};
  registry.GetHistogram("h", "", kBounds);
  EXPECT_EQ(registry.GetHistogram("h", "", kOthers, {{"x", "1"}})->upper_bounds().size(), 2u)
      << "keeps its buckets";
  MetricRegistry second;
  EXPECT_EQ(second.Value("a_total", {{"x", "1"}, {"y", "2"}}), 0) << "no globals";
}

TEST(MetricRegistryDeathTest, AnotherKindIsABug) {
  MetricRegistry registry;
  registry.GetCounter("a_total", "");
  EXPECT_DEATH(registry.GetGauge("a_total", ""), "a_total is a counter, asked for as a gauge");
  EXPECT_DEATH(registry.GetGauge("9bad", ""), "metric 9bad");
}

TEST(MetricRegistryTest, ThreadsLoseNoUpdate) {
  MetricRegistry registry;
  constexpr double kBounds[] = {10, 100};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&registry, &kBounds] {
      for (int i = 0; i < 1000; ++i) {
        registry.GetCounter("a_total", "")->Add();
        registry.GetGauge("g", "")->Add(-1);
        registry.GetHistogram("h", "", kBounds)->Observe(50);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registry.Value("a_total"), 4000);
  EXPECT_EQ(registry.Value("g"), -4000);
  const Histogram* histogram = registry.GetHistogram("h", "", kBounds);
  EXPECT_EQ(histogram->count(), 4000u);
  EXPECT_EQ(histogram->bucket(1), 4000u);
  EXPECT_DOUBLE_EQ(histogram->sum(), 200000);
}

}  // namespace
}  // namespace terrace
