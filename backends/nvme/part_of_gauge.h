// PartOfGauge: several cores of a stripe share a gauge; each adds and takes away its own part.
#pragma once

#include <cstdint>
#include <utility>

#include "terrace/metrics.h"

namespace terrace {

struct PartOfGauge {
  Gauge* gauge = nullptr;
  int64_t part = 0;
  void Set(int64_t value) {
    if (gauge != nullptr) gauge->Add(value - std::exchange(part, value));
  }
};

}  // namespace terrace
