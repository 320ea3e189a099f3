#include "backends/nvme/extent_allocator.h"

#include <algorithm>

#include "lib/base/check.h"
#include "lib/wire/frame.h"

namespace terrace {

void ExtentAllocator::GrowSegment(uint32_t segment, uint64_t size_bytes) {
  if (segment >= segments_.size()) segments_.resize(segment + 1);
  const uint64_t old = segments_[segment].size_bytes;
  TERRACE_CHECK(size_bytes >= old && size_bytes % kExtentUnit == 0)
      << "segment " << segment << " " << size_bytes;
  if (size_bytes == old) return;
  segments_[segment].size_bytes = size_bytes;
  total_bytes_ += size_bytes - old;
  AddFree(segment, old, size_bytes - old);
}

std::optional<std::vector<Extent>> ExtentAllocator::Allocate(uint64_t bytes) {
  TERRACE_CHECK(bytes > 0);
  uint64_t left = RoundUp(bytes, kExtentUnit);
  std::vector<Extent> extents;
  while (left > 0) {
    // The smallest that holds all of the rest, or else the largest as a whole.
    auto best = by_size_.lower_bound({left, 0, 0});
    if (best == by_size_.end()) {
      if (!by_size_.empty() && left <= free_bytes()) best = std::prev(by_size_.end());
      if (best == by_size_.end() || std::get<0>(*best) < kMinExtentBytes) {
        for (const Extent& extent : extents) FreeOne(extent);
        return std::nullopt;
      }
    }
    const auto [length, segment, offset] = *best;
    const Extent extent{segment, offset, std::min(length, left)};
    Take(segment, offset, extent.length);
    extents.push_back(extent);
    left -= extent.length;
  }
  return extents;
}

bool ExtentAllocator::Reserve(std::span<const Extent> extents) {
  for (size_t i = 0; i < extents.size(); ++i) {
    if (ReserveOne(extents[i])) continue;
    for (size_t j = 0; j < i; ++j) FreeOne(extents[j]);
    return false;
  }
  return true;
}

void ExtentAllocator::Free(std::span<const Extent> extents) {
  for (const Extent& extent : extents) FreeOne(extent);
}

bool ExtentAllocator::ReserveOne(const Extent& extent) {
  if (extent.segment >= segments_.size() || extent.length == 0) return false;
  if (extent.offset % kExtentUnit != 0 || extent.length % kExtentUnit != 0) return false;
  const Segment& segment = segments_[extent.segment];
  if (extent.length > segment.size_bytes || extent.offset > segment.size_bytes - extent.length) return false;
  auto at = segment.free.upper_bound(extent.offset);
  if (at == segment.free.begin()) return false;
  --at;
  if (at->first + at->second < extent.offset + extent.length) return false;
  Take(extent.segment, extent.offset, extent.length);
  return true;
}

void ExtentAllocator::Take(uint32_t segment, uint64_t offset, uint64_t length) {
  Segment& home = segments_[segment];
  auto at = std::prev(home.free.upper_bound(offset));
  const uint64_t begin = at->first;
  const uint64_t end = at->first + at->second;
  TERRACE_CHECK(begin <= offset && offset + length <= end) << segment << " " << offset << " " << length;
  RemoveFree(segment, at);
  if (begin < offset) {
    home.free.emplace(begin, offset - begin);
    by_size_.emplace(offset - begin, segment, begin);
  }
  if (offset + length < end) {
    home.free.emplace(offset + length, end - offset - length);
    by_size_.emplace(end - offset - length, segment, offset + length);
  }
  home.live.emplace(offset, length);
  live_bytes_ += length;
}

void ExtentAllocator::FreeOne(const Extent& extent) {
  TERRACE_CHECK(extent.segment < segments_.size()) << extent.segment;
  Ranges& live = segments_[extent.segment].live;
  const auto at = live.find(extent.offset);
  TERRACE_CHECK(at != live.end() && at->second == extent.length)
      << "freed twice or never given: segment " << extent.segment << " offset " << extent.offset;
  live.erase(at);
  live_bytes_ -= extent.length;
  AddFree(extent.segment, extent.offset, extent.length);
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
  free.emplace(offset, length);
  by_size_.emplace(length, segment, offset);
}

void ExtentAllocator::RemoveFree(uint32_t segment, Ranges::iterator at) {
  by_size_.erase({at->second, segment, at->first});
  segments_[segment].free.erase(at);
}

void ExtentAllocator::CheckInvariants() const {
  uint64_t total = 0;
  uint64_t live = 0;
  size_t num_free = 0;
  for (uint32_t index = 0; index < segments_.size(); ++index) {
    const Segment& segment = segments_[index];
    Ranges all = segment.free;
    for (const auto& [offset, length] : segment.live) {
      TERRACE_CHECK(all.emplace(offset, length).second) << "live and free at " << offset;
      live += length;
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
    total += segment.size_bytes;
    num_free += segment.free.size();
  }
  TERRACE_CHECK(total == total_bytes_ && live == live_bytes_ && num_free == by_size_.size());
}

}  // namespace terrace
