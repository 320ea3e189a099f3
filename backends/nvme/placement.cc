#include "backends/nvme/placement.h"

#include <algorithm>
#include <new>
#include <numeric>

#include "lib/base/check.h"
#include "lib/wire/sealed_layout.h"

namespace terrace {
namespace {

uint64_t TotalBytes(std::span<const Extent> extents) {
  return std::accumulate(extents.begin(), extents.end(), uint64_t{0},
                         [](uint64_t sum, const Extent& extent) { return sum + extent.length; });
}

bool IsPackable(uint64_t bytes) { return bytes % kExtentUnit == 0 && bytes / kExtentUnit <= UINT32_MAX; }

}  // namespace

PlacementRef::PlacementRef(const PlacementRef& other) : placement_(other.placement_) {
  if (placement_ != nullptr) placement_->references_.fetch_add(1, std::memory_order_relaxed);
}

PlacementRef::~PlacementRef() {
  if (placement_ == nullptr || placement_->references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  placement_->~Placement();
  ::operator delete(placement_);
}

bool Placement::Fits(const Facts& facts, std::span<const Extent> extents) {
  if (extents.empty() || extents.size() >= (size_t{1} << kCountBits)) return false;
  if (facts.record_bytes > UINT32_MAX || facts.header_bytes == 0) return false;
  if (facts.header_bytes % kExtentUnit != 0 || facts.header_bytes / kExtentUnit >= (1u << kHeaderBits)) {
    return false;
  }
  for (const Extent& extent : extents) {
    if (extent.length == 0 || !IsPackable(extent.length) || !IsPackable(extent.offset)) return false;
  }
  const uint64_t run_bytes = TotalBytes(extents);
  if (run_bytes < RunBytes(facts.header_bytes, facts.sealed)) return false;
  return RunBytes(FrameBytesInRun(run_bytes, facts.sealed), facts.sealed) == run_bytes;
}

PlacementRef Placement::Make(const Facts& facts, std::span<const Extent> extents) {
  static_assert(sizeof(Placement) == 72, "one extent; the allocator rounds up to 80");
  TERRACE_CHECK(Fits(facts, extents)) << facts.id.key.ToHex() << " extents " << extents.size() << " header "
                                      << facts.header_bytes << " record " << facts.record_bytes;
  void* memory = ::operator new(sizeof(Placement) + (extents.size() - 1) * sizeof(PackedExtent));
  return PlacementRef(new (memory) Placement(facts, extents));
}

Placement::Placement(const Facts& facts, std::span<const Extent> extents)
    : id(facts.id),
      record_bytes(static_cast<uint32_t>(facts.record_bytes)),
      generation(facts.generation),
      retired(0),
      sealed_(facts.sealed ? 1 : 0),
      header_units_(facts.header_bytes / static_cast<uint32_t>(kExtentUnit)),
      num_extents_(static_cast<uint32_t>(extents.size())) {
  PackedExtent* at = first_;
  for (const Extent& extent : extents) {
    new (at++) PackedExtent{extent.segment, static_cast<uint32_t>(extent.offset / kExtentUnit),
                            static_cast<uint32_t>(extent.length / kExtentUnit)};
  }
}

uint64_t Placement::frame_bytes() const {
  uint64_t bytes = 0;
  for (const Extent& extent : extents()) bytes += extent.length;
  return FrameBytesInRun(bytes, sealed_ != 0);
}

}  // namespace terrace
