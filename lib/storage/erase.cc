// Erase, Clear, Flush, Close: the calls that wait for backends. Made by operators and at the end, never on a request's path.
#include <algorithm>
#include <future>

#include "lib/base/status_macros.h"
#include "lib/storage/manager_core.h"

namespace terrace {
namespace {

TierMask Bit(size_t tier) { return static_cast<TierMask>(1u << tier); }

// Calls `start` with a completion and waits for it. kDeadlineExceeded leaves the operation to end on its own.
Status Await(const std::function<void(StatusDone)>& start, TimePoint deadline) {
  auto promise = std::make_shared<std::promise<Status>>();
  std::future<Status> future = promise->get_future();
  start([promise](const Status& status) { promise->set_value(status); });
  if (deadline != kNoDeadline && future.wait_until(deadline) != std::future_status::ready) {
    return DeadlineExceededError("a backend did not finish in time");
  }
  return future.get();
}

Status FirstError(std::span<const Status> results) {
  for (const Status& status : results) {
    if (!status.ok() && status.code() != StatusCode::kNotFound) return status;
  }
  return OkStatus();
}

}  // namespace

void ManagerCore::CollectSubtree(IndexEntry& entry, std::vector<IndexEntry*>& out) {
  size_t next = out.size();
  out.push_back(&entry);
  for (; next < out.size(); ++next) {
    const std::vector<IndexEntry*> children = index_.Children(out[next]->key);
    out.insert(out.end(), children.begin(), children.end());
  }
}

// Takes every object of the entry out of index and policies, dooms its writes, and names it per tier.
uint64_t ManagerCore::ForgetObjects(IndexEntry& entry, std::vector<std::vector<ObjectId>>& by_tier, DoomedJobs& doomed) {
  uint64_t count = 0;
  for (ObjectPresence& object : entry.objects) {
    const ObjectId id{entry.key, object.part};
    if (object.tiers != 0 || object.writing != 0 || object.store_id != 0) ++count;
    for (size_t t = 0; t < tiers_.size(); ++t) {
      if (!((object.tiers | object.writing) & Bit(t))) continue;
      by_tier[t].push_back(id);
      ClearPresent(entry, object, t);
      if (!(object.writing & Bit(t))) continue;
      for (const std::shared_ptr<WriteJob>& job : tiers_[t].writes) {
        if (job->id != id || job->doomed) continue;
        job->doomed = true;
        doomed.push_back(job);
      }
    }
    object.writing = 0;
    object.store_id = 0;
  }
  return count;
}

// A write in flight could land after the erase that is sent next. Writes have deadlines, so this ends.
void ManagerCore::AwaitDoomed(const DoomedJobs& doomed, std::unique_lock<std::mutex>& lock) {
  drained_.wait(lock, [&] {
    return std::none_of(doomed.begin(), doomed.end(),
                        [](const auto& job) { return job->phase == WriteJob::Phase::kInFlight; });
  });
}

Status ManagerCore::EraseFromTier(size_t tier, std::vector<ObjectId> ids) {
  if (ids.empty()) return OkStatus();
  return Await(
      [&](StatusDone done) {
        tiers_[tier].backend->Erase(std::move(ids), EraseMode::kErase,
                                    [done](std::span<const Status> results) { done(FirstError(results)); });
      },
      kNoDeadline);
}

Result<uint64_t> ManagerCore::Erase(std::span<const ChunkKey> keys) {
  uint64_t count = 0;
  std::vector<std::vector<ObjectId>> by_tier(tiers_.size());
  {
    DoomedJobs doomed;
    std::unique_lock lock(mutex_);
    TERRACE_RETURN_IF_ERROR(CheckOpen());
    for (const ChunkKey& key : keys) {
      IndexEntry* top = index_.Find(key);
      if (top == nullptr) continue;
      std::vector<IndexEntry*> subtree;
      CollectSubtree(*top, subtree);
      for (IndexEntry* entry : subtree) count += ForgetObjects(*entry, by_tier, doomed);
      for (auto entry = subtree.rbegin(); entry != subtree.rend(); ++entry) RemoveIfEmpty(*entry);
    }
    if (HasHostTier() && !by_tier[0].empty()) {
      tiers_[0].backend->Erase(std::move(by_tier[0]), EraseMode::kErase, [](std::span<const Status>) {});
      by_tier[0].clear();
    }
    AwaitDoomed(doomed, lock);
  }
  Status first;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    Status status = EraseFromTier(t, std::move(by_tier[t]));
    if (first.ok()) first = std::move(status);
  }
  if (!first.ok()) return first;
  return count;
}

Status ManagerCore::Clear() {
  std::vector<RootStateRef> roots;
  {
    DoomedJobs doomed;
    std::unique_lock lock(mutex_);
    TERRACE_RETURN_IF_ERROR(CheckOpen());
    std::vector<std::vector<ObjectId>> by_tier(tiers_.size());
    for (const auto& [key, root] : roots_) roots.push_back(root);
    std::vector<IndexEntry*> entries;
    index_.ForEach([&](IndexEntry& entry) { entries.push_back(&entry); });
    for (IndexEntry* entry : entries) {
      ForgetObjects(*entry, by_tier, doomed);
      RemoveIfEmpty(entry);
    }
    if (HasHostTier()) tiers_[0].backend->Clear([](const Status&) {});
    AwaitDoomed(doomed, lock);
  }
  Status first;
  for (size_t t = HasHostTier() ? 1 : 0; t < tiers_.size(); ++t) {
    Status status = Await([&](StatusDone done) { tiers_[t].backend->Clear(std::move(done)); }, kNoDeadline);
    if (first.ok()) first = std::move(status);
  }
  // A cleared backend forgot them, and what is stored from now on belongs to them.
  for (const RootStateRef& root : roots) KeepRoot(root->record);
  return first;
}

Status ManagerCore::Flush(TimePoint deadline) {
  {
    std::unique_lock lock(mutex_);
    if (IsForkedChild()) return FailedPreconditionError("the process was forked after Open");
    if (closed_) return FailedPreconditionError("the manager is closed");
    const uint64_t before = next_id_++;
    const auto is_drained = [&] { return DrainedBefore(before); };
    if (deadline == kNoDeadline) {
      drained_.wait(lock, is_drained);
    } else if (!drained_.wait_until(lock, deadline, is_drained)) {
      return DeadlineExceededError(std::to_string(tickets_.size()) + " stores are not yet written");
    }
  }
  Status first;
  for (TierState& tier : tiers_) {
    Status status = Await([&](StatusDone done) { tier.backend->Flush(std::move(done)); }, deadline);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

Status ManagerCore::Close(TimePoint deadline) {
  if (IsForkedChild()) return OkStatus();
  Status first;
  {
    std::unique_lock lock(mutex_);
    if (closed_) return OkStatus();
    closing_ = true;
    const auto is_drained = [&] { return tickets_.empty(); };
    if (deadline == kNoDeadline) {
      drained_.wait(lock, is_drained);
    } else if (!drained_.wait_until(lock, deadline, is_drained)) {
      first = DeadlineExceededError(std::to_string(tickets_.size()) + " stores were not written before the close");
    }
    if (closed_) return first;  // by another thread meanwhile
    closed_ = true;
  }
  for (TierState& tier : tiers_) {
    Status status = tier.backend->Close(deadline);
    if (first.ok()) first = std::move(status);
  }
  pool_->SetReclaimer(nullptr);
  executor_.reset();
  return first;
}

}  // namespace terrace
