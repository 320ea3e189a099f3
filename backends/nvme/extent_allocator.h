// ExtentAllocator: which bytes of the segments are free. In units of 4 KiB; best fit; neighbours that are
// free become one. An object is a list of extents of which each has 1 MiB at least but for the last, so that
// a large free space is usable however it is cut, and a device always sees large requests.
//
// Invariant: per segment, live and free extents cover [0, size) without gap or overlap; no two free extents
// touch. Not thread safe: the owner's thread only.
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
  // Sets a segment's size; new bytes are free. A segment never shrinks here.
  void GrowSegment(uint32_t segment, uint64_t size_bytes);

  // Extents of together RoundUp(bytes, 4 KiB) bytes, bytes > 0; nullopt (and nothing changed) if they cannot
  // be had.
  std::optional<std::vector<Extent>> Allocate(uint64_t bytes);
  // Takes exactly these from the free space, for an object found in the manifest. False (and nothing changed)
  // if one of them is not wholly free: out of bounds, odd, or claimed by another object.
  bool Reserve(std::span<const Extent> extents);
  // Gives back what Allocate or Reserve gave; anything else ends the process.
  void Free(std::span<const Extent> extents);

  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t live_bytes() const { return live_bytes_; }
  uint64_t free_bytes() const { return total_bytes_ - live_bytes_; }

  // Walks everything; ends the process where the invariant is broken. For tests.
  void CheckInvariants() const;

 private:
  using Ranges = std::map<uint64_t, uint64_t>;  // offset -> length
  struct Segment {
    uint64_t size_bytes = 0;
    Ranges free;
    Ranges live;
  };
  using FreeBySize = std::set<std::tuple<uint64_t, uint32_t, uint64_t>>;  // length, segment, offset

  // Cuts [offset, offset + length) out of the free extent that holds it.
  void Take(uint32_t segment, uint64_t offset, uint64_t length);
  bool ReserveOne(const Extent& extent);
  void FreeOne(const Extent& extent);
  void AddFree(uint32_t segment, uint64_t offset, uint64_t length);
  void RemoveFree(uint32_t segment, Ranges::iterator at);

  std::vector<Segment> segments_;
  FreeBySize by_size_;
  uint64_t total_bytes_ = 0;
  uint64_t live_bytes_ = 0;
};

}  // namespace terrace
