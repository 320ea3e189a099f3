#include "lib/memory/eviction_window.h"

#include <algorithm>

namespace terrace {
namespace {

using Kind = WindowCandidate::Kind;

// What one unit of a candidate costs, by the place of its cost between the coldest's and the hottest's: only
// differences count, so a reclaimer may give ages, clock ticks or ranks.
class UnitPrice {
 public:
  explicit UnitPrice(std::span<const WindowCandidate> candidates) {
    uint64_t hottest = 0;
    for (const WindowCandidate& candidate : candidates) {
      if (candidate.kind != Kind::kEvictable) continue;
      coldest_ = std::min(coldest_, candidate.cost);
      hottest = std::max(hottest, candidate.cost);
    }
    if (hottest > coldest_) slope_ = (kHottestUnit - 1) / static_cast<double>(hottest - coldest_);
  }
  double Of(const WindowCandidate& candidate) const {
    if (candidate.kind != Kind::kEvictable) return 0;
    return candidate.length * (1 + slope_ * static_cast<double>(candidate.cost - coldest_));
  }

 private:
  uint64_t coldest_ = UINT64_MAX;
  double slope_ = 0;
};

}  // namespace

std::optional<EvictionWindow> CheapestWindow(std::span<const WindowCandidate> candidates, uint32_t units) {
  const UnitPrice price(candidates);
  std::optional<EvictionWindow> best;
  double best_price = 0;
  double window_price = 0;
  uint32_t length = 0;
  size_t first = 0;
  for (size_t last = 0; last < candidates.size(); ++last) {
    if (candidates[last].kind == Kind::kFixed) {
      first = last + 1;
      length = 0;
      window_price = 0;
      continue;
    }
    length += candidates[last].length;
    window_price += price.Of(candidates[last]);
    while (length - candidates[first].length >= units) {
      length -= candidates[first].length;
      window_price -= price.Of(candidates[first]);
      ++first;
    }
    if (length >= units && (!best || window_price < best_price)) {
      best = EvictionWindow{candidates[first].start, length};
      best_price = window_price;
    }
  }
  return best;
}

}  // namespace terrace
