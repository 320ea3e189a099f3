#include "lib/storage/load_registry.h"

#include "lib/storage/load_state.h"

namespace terrace {

LoadRegistry::LoadRegistry(std::shared_ptr<Executor> executor, MetricRegistry& metrics)
    : exceptions_(metrics.GetCounter("terrace_manager_callback_exceptions_total",
                                     "Exceptions that left a callback or executor of the caller")),
      shed_(metrics.GetCounter("terrace_manager_load_shed_objects_total",
                               "Read ahead and given back for a load that had nothing")),
      executor_(std::move(executor)) {}

bool LoadRegistry::Add(const std::shared_ptr<LoadHandle::State>& load, bool keep) {
  std::lock_guard lock(mutex_);
  if (is_closed_) return false;
  loads_[load.get()] = {.load = load, .kept = keep ? load : nullptr};
  return true;
}

void LoadRegistry::Release(LoadHandle::State* load) {
  std::shared_ptr<LoadHandle::State> last;  // its end comes back to Remove
  std::lock_guard lock(mutex_);
  const auto entry = loads_.find(load);
  if (entry != loads_.end()) last = std::move(entry->second.kept);
}

void LoadRegistry::Remove(LoadHandle::State* load) {
  std::lock_guard lock(mutex_);
  const auto entry = loads_.find(load);
  if (entry == loads_.end()) return;
  if (entry->second.is_starving) --num_starving_;
  loads_.erase(entry);
}

bool LoadRegistry::Post(std::function<void()> work) {
  std::shared_ptr<Executor> executor;
  {
    std::lock_guard lock(mutex_);
    executor = executor_;
  }
  if (!executor) return false;
  try {
    executor->Post(std::move(work));
  } catch (...) {
    exceptions_->Add();
    return false;
  }
  return true;
}

void LoadRegistry::BeginStarving(LoadHandle::State* load) {
  std::lock_guard lock(mutex_);
  const auto entry = loads_.find(load);
  if (entry == loads_.end() || entry->second.is_starving) return;
  entry->second.is_starving = true;
  ++num_starving_;
}

void LoadRegistry::EndStarving(LoadHandle::State* load) {
  std::lock_guard lock(mutex_);
  const auto entry = loads_.find(load);
  if (entry == loads_.end() || !entry->second.is_starving) return;
  entry->second.is_starving = false;
  --num_starving_;
}

bool LoadRegistry::OthersStarve(const LoadHandle::State* load) const {
  if (num_starving_.load() == 0) return false;
  std::lock_guard lock(mutex_);
  const auto entry = loads_.find(load);
  return num_starving_ > (entry != loads_.end() && entry->second.is_starving ? 1u : 0u);
}

std::vector<std::shared_ptr<LoadHandle::State>> LoadRegistry::Others(const LoadHandle::State* load,
                                                                     bool starving) const {
  std::vector<std::shared_ptr<LoadHandle::State>> others;
  std::lock_guard lock(mutex_);
  for (const auto& [state, entry] : loads_) {
    if (state == load || (starving && !entry.is_starving)) continue;
    if (std::shared_ptr<LoadHandle::State> other = entry.load.lock()) others.push_back(std::move(other));
  }
  return others;
}

bool LoadRegistry::ShedOne(const LoadHandle::State* starving) {
  const auto others = Others(starving, /*starving=*/false);
  std::shared_ptr<LoadHandle::State> farthest;
  size_t distance = 0;
  for (const auto& other : others) {
    const size_t ahead = other->SheddableDistance();
    if (ahead <= distance) continue;
    distance = ahead;
    farthest = other;
  }
  if (!farthest) return false;
  // It may have been taken meanwhile; then there is as much room as if it had been shed, or will be.
  if (farthest->ShedFarthest(/*for_itself=*/false)) shed_->Add();
  return true;
}

void LoadRegistry::WakeStarving(const LoadHandle::State* by) {
  if (num_starving_.load() == 0) return;
  for (const auto& load : Others(by, /*starving=*/true)) load->WakeToPump();
}

void LoadRegistry::CloseAll(TimePoint deadline) {
  std::shared_ptr<Executor> executor;  // our own ends its threads, which may want the lock
  {
    std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  for (const auto& load : Others(nullptr, /*starving=*/false))
    load->Cancel(FailedPreconditionError("the manager is closed"), deadline);
  std::lock_guard lock(mutex_);
  executor.swap(executor_);
}

}  // namespace terrace
