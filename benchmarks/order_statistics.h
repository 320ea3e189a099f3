// The middle and the tails of measured values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace terrace::bench {

// 0 for no values.
inline double QuantileOf(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

inline double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace terrace::bench
