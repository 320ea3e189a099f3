#include "backends/nvme/extent_allocator.h"

#include <algorithm>

#include "lib/base/check.h"
#include "lib/wire/frame.h"

namespace terrace {
namespace {

uint64_t RoundDown(uint64_t value, uint64_t unit) { return value / unit * unit; }

uint64_t EndOf(const Extent& extent) { return extent.offset + extent.length; }

}  // namespace

void ExtentAllocator::AddQuarantine(std::span<const Extent> extents) {
  TERRACE_CHECK(total_bytes_ == 0) << "segments have been made";
  for (const Extent& extent : extents) {
    // A length that wraps around is no length.
    if (extent.length == 0 || extent.offset > UINT64_MAX - kExtentUnit) continue;
    if (extent.length > UINT64_MAX - kExtentUnit - extent.offset) continue;
    Ranges& ranges = added_quarantine_[extent.segment];
    uint64_t begin = RoundDown(extent.offset, kExtentUnit);
    uint64_t end = RoundUp(EndOf(extent), kExtentUnit);
    auto at = ranges.upper_bound(end);
    while (at != ranges.begin() && std::prev(at)->first + std::prev(at)->second >= begin) {
      --at;
      begin = std::min(begin, at->first);
      end = std::max(end, at->first + at->second);
      at = ranges.erase(at);
    }
    ranges.emplace(begin, end - begin);
  }
}

void ExtentAllocator::GrowSegment(uint32_t segment, uint64_t size_bytes) {
  if (segment >= segments_.size()) segments_.resize(segment + 1);
  Segment& home = segments_[segment];
  uint64_t at = home.size_bytes;
  TERRACE_CHECK(size_bytes >= at && size_bytes % kExtentUnit == 0)
      << "segment " << segment << " " << size_bytes;
  total_bytes_ += size_bytes - at;
  home.size_bytes = size_bytes;
  if (const auto added = added_quarantine_.find(segment); added != added_quarantine_.end()) {
    for (const auto& [offset, length] : added->second) {
      const uint64_t begin = std::max(at, offset);
      const uint64_t end = std::min(size_bytes, offset + length);
      if (begin >= end) continue;
      if (at < begin) AddFree(segment, at, begin - at);
      Quarantine({segment, begin, end - begin});
      at = end;
    }
  }
  if (at < size_bytes) AddFree(segment, at, size_bytes - at);
}

std::optional<std::vector<Extent>> ExtentAllocator::Allocate(uint64_t bytes) {
  TERRACE_CHECK(bytes > 0);
  uint64_t left = RoundUp(bytes, kExtentUnit);
  if (!HasRoomFor(left)) return std::nullopt;
  std::vector<Extent> extents;
  while (left > 0) {
    // The smallest that holds all of the rest, or else the largest as a whole. A small rest that no small
    // free extent holds is cut from the largest: what is left of it stays large, and the rests together.
    auto best = by_size_.lower_bound({left, 0, 0});
    const bool opens_large =
        left < kMinExtentBytes && best != by_size_.end() && std::get<0>(*best) >= kMinExtentBytes;
    if (best == by_size_.end() || opens_large) best = std::prev(by_size_.end());
    const auto [length, segment, offset] = *best;
    const Extent extent{segment, offset, std::min(length, left)};
    TERRACE_CHECK(extent.length == left || length >= kMinExtentBytes) << length << " of " << left;
    Take(extent);
    extents.push_back(extent);
    left -= extent.length;
  }
  return extents;
}

// All of the large free extents can be an object's, and one small one behind them. Told without a walk:
// whoever is refused evicts and asks again, many times for a large object.
bool ExtentAllocator::HasRoomFor(uint64_t bytes) const {
  if (bytes <= large_free_bytes_) return true;
  const auto large = by_size_.lower_bound({kMinExtentBytes, 0, 0});
  return large != by_size_.begin() && bytes - large_free_bytes_ <= std::get<0>(*std::prev(large));
}

std::optional<Extent> ExtentAllocator::TakeFreeFrom(uint32_t segment, uint64_t offset, uint64_t max_bytes) {
  const Ranges& free = segments_[segment].free;
  auto at = free.upper_bound(offset);
  if (at != free.begin() && std::prev(at)->first + std::prev(at)->second > offset) --at;
  if (at == free.end()) return std::nullopt;
  const uint64_t begin = std::max(at->first, offset);
  const Extent extent{segment, begin, std::min(at->first + at->second - begin, max_bytes)};
  Take(extent);
  return extent;
}

bool ExtentAllocator::Reserve(std::span<const Extent> extents) {
  for (size_t i = 0; i < extents.size(); ++i) {
    if (IsFree(extents[i])) {
      Take(extents[i]);
      continue;
    }
    Free(extents.first(i));
    return false;
  }
  return true;
}

void ExtentAllocator::Free(std::span<const Extent> extents) {
  for (const Extent& extent : extents) {
    EndLife(extent);
    AddFree(extent.segment, extent.offset, extent.length);
  }
}

std::vector<Extent> ExtentAllocator::FreeExcept(std::span<const Extent> extents,
                                                std::span<const Extent> bad) {
  std::vector<Extent> quarantined;
  for (const Extent& extent : extents) {
    EndLife(extent);
    std::vector<Extent> parts;  // of `bad`, in order
    for (const Extent& one : bad) {
      TERRACE_CHECK(one.offset % kExtentUnit == 0 && one.length % kExtentUnit == 0) << one.offset;
      const uint64_t begin = std::max(one.offset, extent.offset);
      const uint64_t end = std::min(EndOf(one), EndOf(extent));
      if (one.segment == extent.segment && begin < end) parts.push_back({one.segment, begin, end - begin});
    }
    std::sort(parts.begin(), parts.end(),
              [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
    uint64_t at = extent.offset;
    for (Extent part : parts) {
      if (EndOf(part) <= at) continue;  // inside the one before
      part = {part.segment, std::max(at, part.offset), EndOf(part) - std::max(at, part.offset)};
      if (at < part.offset) AddFree(extent.segment, at, part.offset - at);
      Quarantine(part);
      quarantined.push_back(part);
      at = EndOf(part);
    }
    if (at < EndOf(extent)) AddFree(extent.segment, at, EndOf(extent) - at);
  }
  return quarantined;
}

bool ExtentAllocator::IsFree(const Extent& extent) const {
  if (extent.segment >= segments_.size() || extent.length == 0) return false;
  if (extent.offset % kExtentUnit != 0 || extent.length % kExtentUnit != 0) return false;
  const Segment& segment = segments_[extent.segment];
  if (extent.length > segment.size_bytes || extent.offset > segment.size_bytes - extent.length) return false;
  const auto behind = segment.free.upper_bound(extent.offset);
  if (behind == segment.free.begin()) return false;
  const auto& [offset, length] = *std::prev(behind);
  return offset + length >= EndOf(extent);
}

void ExtentAllocator::Take(const Extent& extent) {
  Segment& home = segments_[extent.segment];
  const auto at = std::prev(home.free.upper_bound(extent.offset));
  const uint64_t begin = at->first;
  const uint64_t end = at->first + at->second;
  TERRACE_CHECK(begin <= extent.offset && EndOf(extent) <= end)
      << extent.segment << " " << extent.offset << " " << extent.length;
  RemoveFree(extent.segment, at);
  if (begin < extent.offset) InsertFree(extent.segment, begin, extent.offset - begin);
  if (EndOf(extent) < end) InsertFree(extent.segment, EndOf(extent), end - EndOf(extent));
  home.live.emplace(extent.offset, extent.length);
  live_bytes_ += extent.length;
}

void ExtentAllocator::EndLife(const Extent& extent) {
  TERRACE_CHECK(extent.segment < segments_.size()) << extent.segment;
  Ranges& live = segments_[extent.segment].live;
  const auto at = live.find(extent.offset);
  TERRACE_CHECK(at != live.end() && at->second == extent.length)
      << "freed twice or never given: segment " << extent.segment << " offset " << extent.offset;
  live.erase(at);
  live_bytes_ -= extent.length;
}

void ExtentAllocator::Quarantine(const Extent& extent) {
  segments_[extent.segment].quarantined.emplace(extent.offset, extent.length);
  quarantined_bytes_ += extent.length;
}

void ExtentAllocator::AddFree(uint32_t segment, uint64_t offset, uint64_t length) {
  Ranges& free = segments_[segment].free;
  auto next = free.lower_bound(offset);
  if (next != free.end() && next->first == offset + length) {
    length += next->second;
    const auto merged = next++;
    RemoveFree(segment, merged);
  }
  if (next != free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      length += before->second;
      RemoveFree(segment, before);
    }
  }
  InsertFree(segment, offset, length);
}

void ExtentAllocator::InsertFree(uint32_t segment, uint64_t offset, uint64_t length) {
  segments_[segment].free.emplace(offset, length);
  by_size_.emplace(length, segment, offset);
  if (length >= kMinExtentBytes) large_free_bytes_ += length;
}

void ExtentAllocator::RemoveFree(uint32_t segment, Ranges::iterator at) {
  by_size_.erase({at->second, segment, at->first});
  if (at->second >= kMinExtentBytes) large_free_bytes_ -= at->second;
  segments_[segment].free.erase(at);
}

void ExtentAllocator::CheckInvariants() const {
  uint64_t total = 0;
  uint64_t live = 0;
  uint64_t quarantined = 0;
  uint64_t large_free = 0;
  size_t num_free = 0;
  for (uint32_t index = 0; index < segments_.size(); ++index) {
    CheckSegment(index);
    const Segment& segment = segments_[index];
    for (const auto& [offset, length] : segment.live) live += length;
    for (const auto& [offset, length] : segment.quarantined) quarantined += length;
    for (const auto& [offset, length] : segment.free) large_free += length >= kMinExtentBytes ? length : 0;
    total += segment.size_bytes;
    num_free += segment.free.size();
  }
  TERRACE_CHECK(total == total_bytes_ && live == live_bytes_ && quarantined == quarantined_bytes_);
  TERRACE_CHECK(num_free == by_size_.size() && large_free == large_free_bytes_);
}

void ExtentAllocator::CheckSegment(uint32_t index) const {
  const Segment& segment = segments_[index];
  Ranges all = segment.free;
  for (const auto& [offset, length] : segment.live) {
    TERRACE_CHECK(all.emplace(offset, length).second) << "live and free at " << offset;
  }
  for (const auto& [offset, length] : segment.quarantined) {
    TERRACE_CHECK(all.emplace(offset, length).second) << "quarantined and in use at " << offset;
  }
  uint64_t end = 0;
  bool last_was_free = false;
  for (const auto& [offset, length] : all) {
    TERRACE_CHECK(offset == end && length > 0) << "gap or overlap at " << offset << ", expected " << end;
    const bool is_free = segment.free.contains(offset);
    TERRACE_CHECK(!(is_free && last_was_free)) << "free neighbours at " << offset;
    if (is_free) TERRACE_CHECK(by_size_.contains({length, index, offset})) << offset;
    last_was_free = is_free;
    end += length;
  }
  TERRACE_CHECK(end == segment.size_bytes) << end << " of " << segment.size_bytes;
}

}  // namespace terrace
