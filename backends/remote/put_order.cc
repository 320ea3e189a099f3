#include "backends/remote/put_order.h"

#include <algorithm>
#include <utility>

namespace terrace::remote {

uint64_t PutOrder::Begin(std::span<const ObjectId> ids) {
  std::lock_guard lock(mutex_);
  flights_[next_].ids.insert(ids.begin(), ids.end());
  return next_++;
}

void PutOrder::End(uint64_t flight) {
  std::vector<std::function<void()>> ready;
  {
    std::lock_guard lock(mutex_);
    const auto found = flights_.find(flight);
    if (found == flights_.end()) return;
    for (const auto& waiter : found->second.waiters) {
      if (--waiter->num_flights == 0) ready.push_back(std::move(waiter->work));
    }
    flights_.erase(found);
  }
  for (const auto& work : ready) work();
}

void PutOrder::After(std::span<const ObjectId> ids, std::function<void()> work, uint64_t before) {
  auto waiter = std::make_shared<Waiter>();
  {
    std::lock_guard lock(mutex_);
    for (auto& [number, flight] : flights_) {
      if (number >= before) break;
      const bool is_named = ids.empty() || std::any_of(ids.begin(), ids.end(), [&](const ObjectId& id) {
                              return flight.ids.contains(id);
                            });
      if (!is_named) continue;
      flight.waiters.push_back(waiter);
      ++waiter->num_flights;
    }
    if (waiter->num_flights > 0) {
      waiter->work = std::move(work);
      return;
    }
  }
  work();
}

}  // namespace terrace::remote
