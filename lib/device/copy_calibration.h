// CopyCalibration: how fast each strategy moves pieces of which size on one device, in both directions; which
// one is the best is read off it. Measured once per device at Open (within a budget of time), kept by whoever
// wants to give it to the next Open.
//
// A plain value; safe to read from every thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "terrace/device.h"
#include "terrace/status.h"
#include "terrace/time.h"

namespace terrace {

struct CalibrationPoint {
  CopyDirection direction = CopyDirection::kToHost;
  CopyStrategy strategy = CopyStrategy::kPlain;
  uint64_t piece_bytes = 0;
  uint64_t num_pieces = 0;
  double bytes_per_second = 0;
};

class CopyCalibration {
 public:
  CopyCalibration() = default;
  explicit CopyCalibration(std::vector<CalibrationPoint> points) : points_(std::move(points)) {}

  // The fastest of the `allowed` strategies (a bit mask of 1 << strategy) for a copy of `num_pieces` pieces
  // of about `piece_bytes` each: of the measured sizes the nearest one (by ratio), then the nearest count.
  // Where nothing fits, kPlain.
  CopyStrategy Best(CopyDirection direction, uint64_t piece_bytes, uint64_t num_pieces,
                    uint32_t allowed) const;
  const std::vector<CalibrationPoint>& points() const { return points_; }

  // {"points": [{"direction": "to_host", "strategy": "staged", "piece_bytes": ..., "num_pieces": ...,
  // "gbps": ...}]}. kDataLoss for anything else.
  std::string ToJson() const;
  static Result<CopyCalibration> FromJson(const std::string& json);

 private:
  std::vector<CalibrationPoint> points_;
};

}  // namespace terrace
