#include "backends/nvme/failed_places.h"

#include <algorithm>

namespace terrace {

std::vector<Extent> FailedPlaces::Note(const Extent& failed, uint64_t bytes_done) {
  std::vector<Extent> bad;
  const uint64_t end = failed.offset + failed.length;
  for (uint64_t number = failed.offset / kGranuleBytes; number * kGranuleBytes < end; ++number) {
    const Granule granule{failed.segment, number};
    const auto [at, is_first] = first_failures_.emplace(granule, bytes_done);
    if (!is_first) {
      const uint64_t begin = std::max(failed.offset, number * kGranuleBytes);
      const uint64_t length = std::min(end, (number + 1) * kGranuleBytes) - begin;
      if (bytes_done > at->second) bad.push_back({failed.segment, begin, length});
      continue;
    }
    order_.push_back(granule);
    if (order_.size() <= kMaxGranules) continue;
    first_failures_.erase(order_.front());
    order_.pop_front();
  }
  return bad;
}

}  // namespace terrace
