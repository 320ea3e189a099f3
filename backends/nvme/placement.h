// Placement: where one object lies, and ObjectIndex: the tier's table of them. There is one for every object
// on the disk, so it is packed: with its place in the table, an object of one extent costs 72 bytes, the
// allocator's 8 and 10 to 21 of the table.
//
//   | ObjectId 36 | u32 record bytes | u64 generation | u32 readers | u32: retired, sealed, header, extents
//   | | u32 references | { u32 segment | u32 offset | u32 length }[extents] |
//
// Offsets and lengths are in units of 4 KiB. The frame's length follows from that of the extents
// (lib/wire/sealed_layout.h).
//
// Threads: the owner's alone, but for the count of references: those that a task for the manifest carries may
// end on the commit thread.
#pragma once

#include <absl/container/flat_hash_set.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>
#include <utility>

#include "backends/nvme/extent_allocator.h"
#include "lib/wire/object_record.h"
#include "terrace/bytes.h"
#include "terrace/object_id.h"

namespace terrace {

class Placement;

// Counted reference; null is allowed.
class PlacementRef {
 public:
  PlacementRef() = default;
  // Adopts the reference that a new Placement starts with.
  explicit PlacementRef(Placement* adopted) : placement_(adopted) {}
  PlacementRef(const PlacementRef& other);
  PlacementRef(PlacementRef&& other) noexcept : placement_(std::exchange(other.placement_, nullptr)) {}
  PlacementRef& operator=(PlacementRef other) noexcept {
    std::swap(placement_, other.placement_);
    return *this;
  }
  ~PlacementRef();

  explicit operator bool() const { return placement_ != nullptr; }
  Placement& operator*() const { return *placement_; }
  Placement* operator->() const { return placement_; }
  friend bool operator==(const PlacementRef&, const PlacementRef&) = default;

 private:
  Placement* placement_ = nullptr;
};

class Placement {
 public:
  struct Facts {
    ObjectId id;
    uint64_t generation = 0;
    uint32_t header_bytes = 0;  // of the frame; multiple of 4,096
    uint64_t record_bytes = 0;
    bool sealed = false;
  };
  // Whether these can be held: aligned, and within the widths drawn above. The extents hold a tier page and a
  // frame.
  static bool Fits(const Facts& facts, std::span<const Extent> extents);
  // What does not fit ends the process.
  static PlacementRef Make(const Facts& facts, std::span<const Extent> extents);

  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  uint32_t header_bytes() const { return header_units_ * static_cast<uint32_t>(kExtentUnit); }
  uint64_t frame_bytes() const;
  // In order, as values; indexable.
  auto extents() const {
    return std::span<const PackedExtent>(first_, num_extents_) | std::views::transform(&Unpacked);
  }

  const ObjectId id;
  const uint32_t record_bytes;
  const uint64_t generation;
  uint32_t readers = 0;  // Gets in flight
  // Out of the index. Its extents go back to the allocator once nobody reads them.
  uint32_t retired : 1;

 private:
  friend class PlacementRef;
  static constexpr uint32_t kHeaderBits = 9;
  static constexpr uint32_t kCountBits = 21;
  struct PackedExtent {
    uint32_t segment;
    uint32_t offset_units;
    uint32_t length_units;
  };
  static Extent Unpacked(const PackedExtent& packed) {
    return {packed.segment, packed.offset_units * kExtentUnit, packed.length_units * kExtentUnit};
  }

  Placement(const Facts& facts, std::span<const Extent> extents);
  ~Placement() = default;  // through the last reference only

  const uint32_t sealed_ : 1;
  const uint32_t header_units_ : kHeaderBits;
  const uint32_t num_extents_ : kCountBits;
  std::atomic<uint32_t> references_{1};
  PackedExtent first_[1];  // the others follow in the same allocation
};

// By the id of what is referred to; also found by the id alone.
struct PlacementHash {
  using is_transparent = void;
  size_t operator()(const ObjectId& id) const { return ObjectIdHash()(id); }
  size_t operator()(const PlacementRef& placement) const { return ObjectIdHash()(placement->id); }
};
struct PlacementSameId {
  using is_transparent = void;
  static const ObjectId& IdOf(const ObjectId& id) { return id; }
  static const ObjectId& IdOf(const PlacementRef& placement) { return placement->id; }
  template <typename A, typename B>
  bool operator()(const A& a, const B& b) const {
    return IdOf(a) == IdOf(b);
  }
};
using ObjectIndex = absl::flat_hash_set<PlacementRef, PlacementHash, PlacementSameId>;

}  // namespace terrace
