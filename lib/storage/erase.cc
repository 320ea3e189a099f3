// Erase, Clear, Flush, Close: the calls that wait for backends. Made by operators and at the end, never on a
// request's path.
#include <algorithm>
#include <future>

#include "lib/base/status_macros.h"
#include "lib/storage/manager_core.h"

namespace terrace {
namespace {

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
uint64_t ManagerCore::ForgetObjects(IndexEntry& entry, std::vector<std::vector<ObjectId>>& by_tier,
                                    DoomedJobs& doomed) {
  uint64_t count = 0;
  for (ObjectPresence& object : entry.objects) {
    const ObjectId id{entry.key, object.part};
    if (object.tiers != 0 || object.writing != 0 || object.store_id != 0) ++count;
    for (size_t t = 0; t < tiers_.size(); ++t) {
      // A durable tier is asked even where it evicted the object: an eviction may be undone by a crash, an
      // erase may not.
      if (!((object.tiers | object.writing) & TierBit(t)) && !tiers_[t].capabilities.is_durable) continue;
      by_tier[t].push_back(id);
      ClearPresent(entry, object, t);
      if (!(object.writing & TierBit(t))) continue;
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

// The index does not know the key, but a durable tier may hold what a crash would bring back: each part that
// a known root has is named to it.
void ManagerCore::EraseUnknown(const ChunkKey& key, std::vector<std::vector<ObjectId>>& by_tier) const {
  std::set<ObjectPart> parts;
  for (const auto& [root, state] : roots_) {
    for (uint16_t group = 0; group < state->spec.groups.size(); ++group) {
      for (uint16_t shard = 0; shard < state->spec.num_shards(); ++shard) parts.insert({group, shard});
    }
  }
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (!tiers_[t].capabilities.is_durable) continue;
    for (const ObjectPart part : parts) by_tier[t].push_back({key, part});
  }
}

Result<uint64_t> ManagerCore::Erase(std::span<const ChunkKey> keys) {
  TERRACE_RETURN_IF_ERROR(CheckNotForked());
  uint64_t count = 0;
  std::vector<std::vector<ObjectId>> by_tier(tiers_.size());
  {
    DoomedJobs doomed;
    std::unique_lock lock(mutex_);
    TERRACE_RETURN_IF_ERROR(CheckOpen());
    ++erasures_;
    for (const ChunkKey& key : keys) {
      IndexEntry* top = index_.Find(key);
      if (top == nullptr) {
        EraseUnknown(key, by_tier);
        continue;
      }
      std::vector<IndexEntry*> subtree;
      CollectSubtree(*top, subtree);
      for (IndexEntry* entry : subtree) count += ForgetObjects(*entry, by_tier, doomed);
      for (auto entry = subtree.rbegin(); entry != subtree.rend(); ++entry) RemoveIfEmpty(*entry);
    }
    if (HasHostTier() && !by_tier[0].empty()) {
      tiers_[0].backend->Erase(std::move(by_tier[0]), EraseMode::kErase, [](std::span<const Status>) {});
      by_tier[0].clear();
    }
    for (size_t t = 0; t < tiers_.size(); ++t) {
      for (const ObjectId& id : by_tier[t]) ++tiers_[t].erasing[id];
    }
    AwaitDoomed(doomed, lock);
  }
  Status first;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (by_tier[t].empty()) continue;
    Status status = EraseFromTier(t, by_tier[t]);
    EndErases(t, by_tier[t]);
    if (first.ok()) first = std::move(status);
  }
  if (!first.ok()) return first;
  return count;
}

Status ManagerCore::Clear() {
  TERRACE_RETURN_IF_ERROR(CheckNotForked());
  std::vector<RootStateRef> roots;
  {
    DoomedJobs doomed;
    std::unique_lock lock(mutex_);
    TERRACE_RETURN_IF_ERROR(CheckOpen());
    ++erasures_;
    for (TierState& tier : tiers_) ++tier.clearing;
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
  {
    std::lock_guard lock(mutex_);
    for (TierState& tier : tiers_) --tier.clearing;
  }
  for (size_t t = 0; t < tiers_.size(); ++t) PumpWrites(t);
  return first;
}

Status ManagerCore::Flush(TimePoint deadline) {
  TERRACE_RETURN_IF_ERROR(CheckNotForked());
  {
    std::unique_lock lock(mutex_);
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
  std::lock_guard closing(close_mutex_);
  Status first;
  {
    std::unique_lock lock(mutex_);
    if (tiers_closed_) return OkStatus();
    closing_ = true;
    const auto is_drained = [&] { return tickets_.empty(); };
    if (closed_) {
      // An earlier call gave up: what it did not wait for ends with the tiers.
    } else if (deadline == kNoDeadline) {
      drained_.wait(lock, is_drained);
    } else if (!drained_.wait_until(lock, deadline, is_drained)) {
      first = DeadlineExceededError(std::to_string(tickets_.size()) +
                                    " stores were not written before the close");
    }
    closed_ = true;
  }
  bool has_orphans = false;
  for (TierState& tier : tiers_) {
    Status status = tier.backend->Close(deadline);
    has_orphans |= status.code() == StatusCode::kDeadlineExceeded;
    if (first.ok()) first = std::move(status);
  }
  if (has_orphans) return first;  // the next call waits for them
  pool_->SetReclaimer(nullptr);
  strand_->Stop();
  executor_.reset();  // our own runs everything that is queued
  strand_->DropQueued();
  std::lock_guard lock(mutex_);
  tiers_closed_ = true;
  return first;
}

}  // namespace terrace
