#include "backends/nvme/place_map.h"

#include <algorithm>
#include <bit>

namespace terrace {

PlaceMap::PlaceMap(std::span<const uint64_t> segment_bytes) {
  for (const uint64_t bytes : segment_bytes) {
    const uint64_t units = bytes / kUnitBytes;
    segments_.push_back({units, std::vector<uint64_t>((units + kBits - 1) / kBits)});
  }
}

std::string PlaceMap::OutOfBounds(std::span<const Extent> extents) const {
  for (const Extent& extent : extents) {
    const std::string where = "segment " + std::to_string(extent.segment);
    if (extent.length == 0 || extent.offset % kUnitBytes != 0 || extent.length % kUnitBytes != 0) {
      return "place: " + std::to_string(extent.length) + " bytes at " + std::to_string(extent.offset) +
             " of " + where + " are no whole units";
    }
    if (extent.segment >= segments_.size() || segments_[extent.segment].units == 0) {
      return "place: " + where + " is not there";
    }
    const uint64_t size = segments_[extent.segment].units * kUnitBytes;
    if (extent.length > size || extent.offset > size - extent.length) {
      return "place: " + std::to_string(extent.length) + " bytes at " + std::to_string(extent.offset) +
             " are beyond the end of " + where + " at " + std::to_string(size);
    }
  }
  return {};
}

bool PlaceMap::Claim(std::span<const Extent> extents) {
  for (size_t i = 0; i < extents.size(); ++i) {
    const Extent& extent = extents[i];
    const uint64_t begin = extent.offset / kUnitBytes;
    const uint64_t units = extent.length / kUnitBytes;
    std::vector<uint64_t>& bits = segments_[extent.segment].bits;
    for (uint64_t unit = begin; unit < begin + units; ++unit) {
      const uint64_t bit = uint64_t{1} << (unit % kBits);
      if ((bits[unit / kBits] & bit) == 0) {
        bits[unit / kBits] |= bit;
        continue;
      }
      Clear(extent, unit - begin);
      Release(extents.first(i));
      return false;
    }
  }
  return true;
}

void PlaceMap::Release(std::span<const Extent> extents) {
  for (const Extent& extent : extents) Clear(extent, extent.length / kUnitBytes);
}

void PlaceMap::Clear(const Extent& extent, uint64_t units) {
  std::vector<uint64_t>& bits = segments_[extent.segment].bits;
  const uint64_t begin = extent.offset / kUnitBytes;
  for (uint64_t unit = begin; unit < begin + units; ++unit) {
    bits[unit / kBits] &= ~(uint64_t{1} << (unit % kBits));
  }
}

void PlaceMap::Mark(const Extent& extent) {
  if (extent.segment >= segments_.size()) return;
  Segment& segment = segments_[extent.segment];
  const uint64_t size = segment.units * kUnitBytes;
  if (extent.offset >= size) return;
  const uint64_t end = extent.offset + std::min(extent.length, size - extent.offset);
  for (uint64_t unit = extent.offset / kUnitBytes; unit * kUnitBytes < end; ++unit) {
    segment.bits[unit / kBits] |= uint64_t{1} << (unit % kBits);
  }
}

bool PlaceMap::IsFree(std::span<const Extent> extents) const {
  for (const Extent& extent : extents) {
    const std::vector<uint64_t>& bits = segments_[extent.segment].bits;
    const uint64_t begin = extent.offset / kUnitBytes;
    for (uint64_t unit = begin; unit < begin + extent.length / kUnitBytes; ++unit) {
      if ((bits[unit / kBits] & uint64_t{1} << (unit % kBits)) != 0) return false;
    }
  }
  return true;
}

uint64_t PlaceMap::total_bytes() const {
  uint64_t units = 0;
  for (const Segment& segment : segments_) units += segment.units;
  return units * kUnitBytes;
}

uint64_t PlaceMap::claimed_bytes() const {
  uint64_t units = 0;
  for (const Segment& segment : segments_) {
    for (const uint64_t word : segment.bits) units += static_cast<uint64_t>(std::popcount(word));
  }
  return units * kUnitBytes;
}

}  // namespace terrace
