#include "lib/device/copy_probe.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/status_macros.h"

namespace terrace {
namespace {

// A token's bytes in one plane, as many models have it; smaller pieces are parts of a token.
constexpr uint64_t kRowBytes = 2048;
constexpr uint64_t kPieceBytes[] = {32 << 10, 128 << 10, 8 << 10, 2 << 10, 0};  // 0: all the memory
constexpr uint64_t kCounts[] = {256, 16};
constexpr CopyStrategy kStrategies[] = {CopyStrategy::kPlain, CopyStrategy::kBatched, CopyStrategy::kStaged,
                                        CopyStrategy::kMapped};
// As long as a copy takes; a yield before would count the time slices of others.
constexpr Duration kSpin = std::chrono::milliseconds(2);
// The second round is there against a first one that was disturbed.
constexpr int kRounds = 2;

// Of one size, count and direction: all strategies of it are measured, or it does not count.
struct Shape {
  CopyDirection direction;
  uint64_t piece_bytes;
  uint64_t num_pieces;
};

size_t IndexOf(CopyDirection direction) { return direction == CopyDirection::kToHost ? 0 : 1; }

class Measurement {
 public:
  explicit Measurement(const CopyProbe& probe)
      : probe_(probe), end_(std::chrono::steady_clock::now() + probe.budget) {}

  Result<CopyCalibration> Run() {
    const std::vector<Shape> shapes = Shapes();
    for (int round = 0; round < kRounds; ++round) {
      for (const Shape& shape : shapes) {
        TERRACE_ASSIGN_OR_RETURN(const bool is_whole, Measure(shape));
        if (!is_whole) return CopyCalibration(std::move(points_));
      }
    }
    return CopyCalibration(std::move(points_));
  }

 private:
  bool IsOver() const { return std::chrono::steady_clock::now() >= end_; }

  // The most telling ones first: time may end before they do.
  std::vector<Shape> Shapes() const {
    std::vector<Shape> shapes;
    for (const uint64_t count : kCounts) {
      for (const uint64_t size : kPieceBytes) {
        for (const CopyDirection direction : {CopyDirection::kToHost, CopyDirection::kToDevice}) {
          const size_t way = IndexOf(direction);
          const uint64_t memory =
              std::min<uint64_t>({probe_.pages[way].size(), probe_.host.size(), kProbeBytes});
          uint64_t piece = size;
          if (size == 0) {
            piece = memory / count / kRowBytes * kRowBytes;
            if (piece <= *std::max_element(std::begin(kPieceBytes), std::end(kPieceBytes))) continue;
          }
          if (probe_.strategies[way] != 0 && piece * count <= memory) {
            shapes.push_back({direction, piece, count});
          }
        }
      }
    }
    return shapes;
  }

  // False where the time was over before the last strategy.
  Result<bool> Measure(const Shape& shape) {
    std::vector<CalibrationPoint> measured;
    const size_t way = IndexOf(shape.direction);
    for (const CopyStrategy strategy : kStrategies) {
      const uint32_t bit = 1u << static_cast<uint32_t>(strategy);
      if ((probe_.strategies[way] & bit) == 0) continue;
      if (IsOver()) return false;
      if ((warm_[way] & bit) == 0) {
        TERRACE_RETURN_IF_ERROR(Copy(shape, strategy));
        warm_[way] |= bit;
      }
      const auto begin = std::chrono::steady_clock::now();
      TERRACE_RETURN_IF_ERROR(Copy(shape, strategy));
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      const double bytes = static_cast<double>(shape.piece_bytes) * static_cast<double>(shape.num_pieces);
      measured.push_back({shape.direction, strategy, shape.piece_bytes, shape.num_pieces,
                          bytes / std::max(taken.count(), 1e-9)});
    }
    for (const CalibrationPoint& point : measured) Keep(point);
    return true;
  }

  // The better of two rounds.
  void Keep(const CalibrationPoint& point) {
    for (CalibrationPoint& kept : points_) {
      if (kept.direction == point.direction && kept.strategy == point.strategy &&
          kept.piece_bytes == point.piece_bytes && kept.num_pieces == point.num_pieces) {
        kept.bytes_per_second = std::max(kept.bytes_per_second, point.bytes_per_second);
        return;
      }
    }
    points_.push_back(point);
  }

  // Blocks in descending order, so that no two are neighbours on both sides.
  Status Copy(const Shape& shape, CopyStrategy strategy) const {
    std::vector<int64_t> blocks(shape.num_pieces);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int64_t>(blocks.size() - 1 - i);
    PlaneArgs plane;
    plane.base = probe_.pages[IndexOf(shape.direction)].data();
    plane.block_stride = static_cast<int64_t>(shape.piece_bytes);
    plane.token_stride = static_cast<int64_t>(kRowBytes);
    plane.run_bytes = static_cast<uint32_t>(kRowBytes);
    PagedCopyArgs args;
    args.direction = shape.direction;
    args.payload = probe_.host.data();
    args.planes = &plane;
    args.num_planes = 1;
    args.tokens_per_block = static_cast<uint32_t>(shape.piece_bytes / kRowBytes);
    args.blocks = blocks.data();
    args.num_tokens = shape.num_pieces * args.tokens_per_block;
    TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<Event> event, probe_.copy(args, strategy));
    return SpinUntilDone(*event);
  }

  const CopyProbe& probe_;
  const TimePoint end_;
  std::array<uint32_t, 2> warm_{};
  std::vector<CalibrationPoint> points_;
};

}  // namespace

Result<CopyCalibration> MeasureCopies(const CopyProbe& probe) { return Measurement(probe).Run(); }

Status SpinUntilDone(const Event& event) {
  const TimePoint spin_end = std::chrono::steady_clock::now() + kSpin;
  while (true) {
    TERRACE_ASSIGN_OR_RETURN(const bool is_done, event.Query());
    if (is_done) return OkStatus();
    if (std::chrono::steady_clock::now() >= spin_end) std::this_thread::yield();
  }
}

}  // namespace terrace
