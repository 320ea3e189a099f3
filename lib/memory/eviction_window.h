// EvictionWindow: consecutive runs that give a run of a wanted length once what may be evicted in them is
// gone. Plain functions over a list of runs; no locks, no memory taken.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace terrace {

// One run of a piece as it was when the list was made. The list is in order of `start`, without gaps.
struct WindowCandidate {
  enum class Kind : uint8_t { kFree, kEvictable, kFixed };
  uint32_t start = 0;
  uint32_t length = 0;      // in units
  uint32_t generation = 0;  // of the buffer in it, to tell it from a later one at the same place
  Kind kind = Kind::kFixed;
  uint64_t cost = 0;  // of an evictable one: larger is hotter
};

struct EvictionWindow {
  uint32_t start = 0;
  uint32_t length = 0;  // in units, whole runs, at least what was wanted
};

// The cheapest window of at least `units`. A unit of the coldest candidate costs 1, one of the hottest
// kHottestUnit, one in between in proportion, a free one nothing. Nothing when no window has room. O(n).
inline constexpr double kHottestUnit = 4.0;
std::optional<EvictionWindow> CheapestWindow(std::span<const WindowCandidate> candidates, uint32_t units);

}  // namespace terrace
