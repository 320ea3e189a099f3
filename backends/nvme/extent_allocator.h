// ExtentAllocator: which bytes of the segments are free. In units of 4 KiB; best fit; neighbours that are
// free become one. An object is a list of extents of which each has 1 MiB at least but for the last, so that
// a large free space is usable however it is cut, and a device always sees large requests. What an object
// cannot use is free extents below 1 MiB, but for one: best fit keeps these few by giving them to small
// objects and to last extents first. extent_workload_test.cc shows how few.
//
// Invariant: per segment, live, free and quarantined extents cover [0, size) without gap or overlap; no two
// free extents touch. Not thread safe: the owner's thread only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "lib/wire/object_record.h"

namespace terrace {

inline constexpr uint64_t kExtentUnit = 4096;
inline constexpr uint64_t kMinExtentBytes = uint64_t{1} << 20;

class ExtentAllocator {
 public:
  // Bytes that are never to be given, in segments of any size, made or not: what Quarantine took in earlier
  // lives. Widened to whole units; may overlap. Before the first GrowSegment.
  void AddQuarantine(std::span<const Extent> extents);
  // Sets a segment's size; new bytes are free but for those in quarantine. A segment never shrinks here.
  void GrowSegment(uint32_t segment, uint64_t size_bytes);

  // Extents of together RoundUp(bytes, 4 KiB) bytes, bytes > 0; nullopt (and nothing changed) if they cannot
  // be had.
  std::optional<std::vector<Extent>> Allocate(uint64_t bytes);
  // The first free bytes of the segment at or behind `offset`, `max_bytes` at most; nullopt: none.
  std::optional<Extent> TakeFreeFrom(uint32_t segment, uint64_t offset, uint64_t max_bytes);
  // Takes exactly these from the free space, for an object found in the manifest. False (and nothing changed)
  // if one of them is not wholly free: out of bounds, odd, or claimed by another object.
  bool Reserve(std::span<const Extent> extents);
  // Gives back what Allocate or Reserve gave; anything else ends the process.
  void Free(std::span<const Extent> extents);
  // The same, but what of it lies in `bad` (whole units) is in quarantine for ever. Gives that.
  std::vector<Extent> FreeExcept(std::span<const Extent> extents, std::span<const Extent> bad);

  // Of the segments: total = live + free + quarantined.
  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t live_bytes() const { return live_bytes_; }
  uint64_t quarantined_bytes() const { return quarantined_bytes_; }
  uint64_t free_bytes() const { return total_bytes_ - live_bytes_ - quarantined_bytes_; }

  // Walks everything; ends the process where the invariant is broken. For tests.
  void CheckInvariants() const;

 private:
  using Ranges = std::map<uint64_t, uint64_t>;  // offset -> length
  struct Segment {
    uint64_t size_bytes = 0;
    Ranges free;
    Ranges live;
    Ranges quarantined;
  };
  using FreeBySize = std::set<std::tuple<uint64_t, uint32_t, uint64_t>>;  // length, segment, offset

  bool HasRoomFor(uint64_t bytes) const;
  bool IsFree(const Extent& extent) const;
  // Cuts the extent out of the free one that holds it; it is live then.
  void Take(const Extent& extent);
  // Out of the live ones; it is neither free nor quarantined then.
  void EndLife(const Extent& extent);
  void Quarantine(const Extent& extent);
  // Makes it free, together with its free neighbours.
  void AddFree(uint32_t segment, uint64_t offset, uint64_t length);
  void InsertFree(uint32_t segment, uint64_t offset, uint64_t length);
  void RemoveFree(uint32_t segment, Ranges::iterator at);
  void CheckSegment(uint32_t index) const;

  std::vector<Segment> segments_;
  std::map<uint32_t, Ranges> added_quarantine_;  // by segment, as AddQuarantine gave it
  FreeBySize by_size_;
  uint64_t large_free_bytes_ = 0;  // in free extents of kMinExtentBytes and more
  uint64_t total_bytes_ = 0;
  uint64_t live_bytes_ = 0;
  uint64_t quarantined_bytes_ = 0;
};

}  // namespace terrace
