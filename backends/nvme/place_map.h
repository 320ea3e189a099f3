// PlaceMap: which 4 KiB units of the segments records claim, one bit each. Verify's own way to tell overlaps
// and to count, that shares nothing with the tier's allocator.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/wire/object_record.h"

namespace terrace {

class PlaceMap {
 public:
  static constexpr uint64_t kUnitBytes = 4096;

  // Segments by number; 0 bytes for one that is not there. Whole units count.
  explicit PlaceMap(std::span<const uint64_t> segment_bytes);

  // Why these extents are no place in the segments; empty where they are.
  std::string OutOfBounds(std::span<const Extent> extents) const;
  // Takes all their units, which are in bounds. False, and none taken, where one is taken already (by these
  // very extents, too).
  bool Claim(std::span<const Extent> extents);
  void Release(std::span<const Extent> extents);
  // Takes those of its units that are in the segments, whoever has them; of a unit that it only touches, too.
  void Mark(const Extent& extent);
  // None of their units, which are in bounds, is taken.
  bool IsFree(std::span<const Extent> extents) const;

  uint64_t total_bytes() const;
  // Counted bit by bit.
  uint64_t claimed_bytes() const;

 private:
  struct Segment {
    uint64_t units = 0;
    std::vector<uint64_t> bits;
  };
  static constexpr uint64_t kBits = 64;

  void Clear(const Extent& extent, uint64_t units);  // its first units

  std::vector<Segment> segments_;
};

}  // namespace terrace
