// Metrics: counters, gauges and histograms in a registry that is an object, not a global. Names are
// terrace_<part>_<what>_<unit>[_total] with a label `tier` or `backend`. Metric objects live as long as
// their registry; updating one is a relaxed atomic operation, safe from every thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/export.h"

namespace terrace {

class Counter {
 public:
  void Add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

class Gauge {
 public:
  void Set(int64_t value) { value_.store(value, std::memory_order_relaxed); }
  void Add(int64_t delta) { value_.fetch_add(delta, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

// Cumulative buckets by upper bound, as Prometheus has them; the last bucket is +Inf.
class TERRACE_API Histogram {
 public:
  explicit Histogram(std::span<const double> upper_bounds);
  void Observe(double value);
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }
  const std::vector<double>& upper_bounds() const { return bounds_; }
  // Observations in bucket i alone (not cumulative); i == upper_bounds().size() is +Inf.
  uint64_t bucket(size_t i) const { return buckets_[i].load(std::memory_order_relaxed); }

 private:
  std::vector<double> bounds_;
  std::unique_ptr<std::atomic<uint64_t>[]> buckets_;
  std::atomic<uint64_t> count_{0};
  std::atomic<double> sum_{0.0};
};

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class TERRACE_API MetricRegistry {
 public:
  MetricRegistry();
  ~MetricRegistry();
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  // The metric of that name and labels, made at the first call. A name keeps its first kind, help and
  // buckets; asking for it as another kind ends the process (it is a bug in the caller).
  Counter* GetCounter(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  Gauge* GetGauge(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  Histogram* GetHistogram(std::string_view name, std::string_view help, std::span<const double> bounds,
                          const MetricLabels& labels = {});

  // Prometheus text exposition format 0.0.4, families in order of name.
  std::string PrometheusText() const;
  // The same of several registries in one text, where each family stands once. The labels of a registry are
  // added to each of its series, which has none of that name. A family that two registries have as different
  // kinds is that of the first alone.
  struct Labelled {
    const MetricRegistry* registry;
    MetricLabels labels;
  };
  static std::string PrometheusText(std::span<const Labelled> registries);
  // The value of a counter or gauge; 0 where there is none. For tests and Stats.
  int64_t Value(std::string_view name, const MetricLabels& labels = {}) const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace terrace
