// FailedPlaces: where a device failed, by granules of 1 MiB, to tell a bad place from an accident: a place is
// bad when it fails again although the device has done something else right in between. A device that fails
// everywhere, or is gone, has no bad places.
//
// Remembers the last kMaxGranules granules, in memory. The owner's thread only.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "lib/wire/object_record.h"

namespace terrace {

class FailedPlaces {
 public:
  static constexpr uint64_t kGranuleBytes = uint64_t{1} << 20;
  static constexpr size_t kMaxGranules = 4096;

  // Notes that `failed` did, when `bytes_done` had been transferred since the start. Gives what of it is bad.
  std::vector<Extent> Note(const Extent& failed, uint64_t bytes_done);

 private:
  using Granule = std::pair<uint32_t, uint64_t>;  // segment, number

  absl::flat_hash_map<Granule, uint64_t> first_failures_;  // -> bytes_done
  std::deque<Granule> order_;
};

}  // namespace terrace
