// Erase, Clear, Flush, Close: the calls that wait for backends. Made by operators and at the end, never on a
// request's path.
#include <algorithm>
#include <future>
#include <set>

#include "absl/container/flat_hash_set.h"
#include "lib/base/status_macros.h"
#include "lib/base/wait_until.h"
#include "lib/storage/load_registry.h"
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
    const std::vector<IndexEntry*> children = index_->Children(*out[next]);
    out.insert(out.end(), children.begin(), children.end());
  }
}

void ManagerCore::CollectUnlinked(std::optional<uint32_t> root_number, uint64_t first_token,
                                  std::vector<IndexEntry*>& out) {
  const std::vector<RootStateRef> roots = roots_.All();
  const bool may_be_unlinked = std::any_of(roots.begin(), roots.end(), [&](const RootStateRef& root) {
    const auto may_lack_parent = [](const GroupSpec& group) { return group.rule != Retention::kFull; };
    const std::vector<GroupSpec>& groups = root->spec.groups;
    return (!root_number || root->number == *root_number) &&
           std::any_of(groups.begin(), groups.end(), may_lack_parent);
  });
  if (!may_be_unlinked) return;  // every entry is looked at below
  std::vector<IndexEntry*> unlinked;
  index_->ForEach([&](IndexEntry& entry) {
    if (entry.is_placeholder() || entry.first_token == 0 || entry.first_token < first_token) return;
    if (entry.parent != nullptr && !entry.parent->is_placeholder()) return;
    if (!root_number || entry.root_number == *root_number) unlinked.push_back(&entry);
  });
  for (IndexEntry* entry : unlinked) CollectSubtree(*entry, out);
}

uint64_t ManagerCore::ForgetObjects(IndexEntry& entry, ObjectsByTier& by_tier, DoomedJobs& doomed) {
  uint64_t count = 0;
  for (const ObjectPresence& object : entry.objects) {
    if (ForgetObject(entry, object.part, by_tier, doomed)) ++count;
  }
  return count;
}

// Takes the object out of index and policies, dooms its writes, and names it per tier. Whether it was there.
bool ManagerCore::ForgetObject(IndexEntry& entry, ObjectPart part, ObjectsByTier& by_tier,
                               DoomedJobs& doomed) {
  const ObjectPresence& object = *entry.Find(part);
  const ObjectId id{entry.key, part};
  const bool was_there = !object.is_gone();
  for (size_t t = 0; t < tiers_.size(); ++t) {
    // A durable tier is asked even where it evicted the object: an eviction may be undone by a crash, an
    // erase may not. So is one that answers for itself.
    const bool may_have_it = tiers_[t].capabilities.is_durable || tiers_[t].answers_itself;
    if (!((object.tiers | object.writing) & TierBit(t)) && !may_have_it) continue;
    by_tier[t].push_back(id);
    ClearPresent(entry, part, t, Unless::kNothing);
    if (!(object.writing & TierBit(t))) continue;
    for (const std::shared_ptr<WriteJob>& job : tiers_[t].writes) {
      if (job->id != id || job->doomed) continue;
      job->doomed = true;
      doomed.push_back(job);
    }
  }
  if (object.is_storing) storing_.erase(id);
  index_->Change(entry, [&](IndexEntry& e) {
    ObjectPresence& gone = *e.Find(part);
    gone.writing = 0;
    gone.is_storing = false;
  });
  return was_there;
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
void ManagerCore::EraseUnknown(const ChunkKey& key, ObjectsByTier& by_tier) const {
  std::set<ObjectPart> parts;
  for (const RootStateRef& state : roots_.All()) {
    for (uint16_t group = 0; group < state->spec.groups.size(); ++group) {
      for (uint16_t shard = 0; shard < state->spec.num_shards(); ++shard) parts.insert({group, shard});
    }
  }
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (!tiers_[t].capabilities.is_durable && !tiers_[t].answers_itself) continue;
    for (const ObjectPart part : parts) by_tier[t].push_back({key, part});
  }
}

// Evicted, but perhaps still there: whether it hangs below what is erased is no longer known.
void ManagerCore::AddFailedEvictions(size_t t, std::vector<ObjectId>& ids) {
  for (const ObjectId& id : tiers_[t].failed_evictions) {
    const IndexEntry* entry = index_->Find(id.key);
    const ObjectPresence* object = entry != nullptr ? entry->Find(id.part) : nullptr;
    const bool is_back = object != nullptr && ((object->tiers | object->writing) & TierBit(t));
    if (!is_back) ids.push_back(id);
  }
  tiers_[t].failed_evictions.clear();
}

Result<uint64_t> ManagerCore::Erase(std::span<const ChunkKey> keys) { return EraseOf(std::nullopt, keys); }

// Of one root, where that is known.
Result<uint64_t> ManagerCore::EraseOf(std::optional<uint32_t> root_number, std::span<const ChunkKey> keys) {
  return EraseSelected([&](std::vector<IndexEntry*>& entries, ObjectsByTier& by_tier) {
    for (const ChunkKey& key : keys) {
      IndexEntry* top = index_->Find(key);
      const bool is_known = top != nullptr && !top->is_placeholder();
      if (!is_known) EraseUnknown(key, by_tier);
      if (top != nullptr) CollectSubtree(*top, entries);
      // Of a chunk that is known by name alone its children say where it is.
      const std::vector<IndexEntry*> children =
          is_known || top == nullptr ? std::vector<IndexEntry*>() : index_->Children(*top);
      const IndexEntry* place = is_known ? top : children.empty() ? nullptr : children[0];
      if (place != nullptr) {
        CollectUnlinked(place->root_number, place->first_token, entries);
      } else {
        CollectUnlinked(root_number, 0, entries);
      }
    }
  });
}

// `select` names the entries, and what durable tiers may have beside them; called with mutex_ held.
Result<uint64_t> ManagerCore::EraseSelected(const EraseSelection& select) {
  TERRACE_RETURN_IF_ERROR(CheckNotForked());
  RequestTracer tracer(traces_, TraceKind::kErase);
  uint64_t count = 0;
  ObjectsByTier by_tier(tiers_.size());
  {
    DoomedJobs doomed;
    std::unique_lock lock(mutex_);
    if (Status open = CheckOpen(); !open.ok()) return tracer.Fail(std::move(open));
    ++erasures_;
    std::vector<IndexEntry*> entries;
    select(entries, by_tier);
    absl::flat_hash_set<ChunkKey, DigestHash> erased;
    for (IndexEntry* entry : entries) {
      if (entry->is_placeholder() || !erased.insert(entry->key).second) continue;
      count += ForgetObjects(*entry, by_tier, doomed);
    }
    // By key: an entry may go with the last of its children.
    for (const ChunkKey& key : erased) RemoveIfEmpty(key);
    if (HasHostTier() && !by_tier[0].empty()) {
      tiers_[0].backend->Erase(std::move(by_tier[0]), EraseMode::kErase, [](std::span<const Status>) {});
      by_tier[0].clear();
    }
    for (size_t t = 0; t < tiers_.size(); ++t) {
      if (!by_tier[t].empty()) AddFailedEvictions(t, by_tier[t]);
      for (const ObjectId& id : by_tier[t]) ForgetSeenRemotely(id);
      for (const ObjectId& id : by_tier[t]) ++tiers_[t].erasing[id];
    }
    ForgetPins(erased);
    AwaitDoomed(doomed, lock);
  }
  Status first;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (by_tier[t].empty()) continue;
    Status status = EraseFromTier(t, by_tier[t]);
    EndErases(t, by_tier[t]);
    if (first.ok()) first = std::move(status);
  }
  tracer.Step("erase");
  if (RequestTrace* trace = tracer.trace()) {
    trace->outcome = first.code();
    trace->why_not = first.ok() ? "" : first.ToString();
  }
  if (!first.ok()) return first;
  return count;
}

Result<uint64_t> ManagerCore::ErasePrefix(const ChunkKey& root_key, const TokenView& prompt) {
  TERRACE_RETURN_IF_ERROR(CheckNotForked());
  TERRACE_RETURN_IF_ERROR(prompt.Validate());
  TERRACE_RETURN_IF_ERROR(CheckOpen());
  const RootStateRef root = roots_.Find(root_key);
  if (!root) return NotFoundError("the root was not made by Root() of this manager");
  TokenHasher hasher(root->root, root->spec.tokens_per_chunk);
  TERRACE_RETURN_IF_ERROR(hasher.Append(prompt));
  const ChunkKey key = hasher.TailKey();
  return EraseOf(root->number, {&key, 1});
}

Result<uint64_t> ManagerCore::EraseRoots(const std::function<bool(const RootState&)>& is_meant) {
  TERRACE_RETURN_IF_ERROR(CheckNotForked());
  TERRACE_RETURN_IF_ERROR(CheckOpen());
  absl::flat_hash_set<uint32_t> numbers;
  for (const RootStateRef& root : roots_.All()) {
    if (is_meant(*root)) numbers.insert(root->number);
  }
  if (numbers.empty()) return uint64_t{0};
  // Every entry is looked at: what hangs on a chunk that is known by name alone is found too.
  return EraseSelected([&](std::vector<IndexEntry*>& entries, ObjectsByTier&) {
    index_->ForEach([&](IndexEntry& entry) {
      if (numbers.contains(entry.root_number)) entries.push_back(&entry);
    });
  });
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
    is_clearing_ = true;
    ObjectsByTier by_tier(tiers_.size());
    roots = roots_.All();
    std::vector<IndexEntry*> entries;
    index_->ForEach([&](IndexEntry& entry) {
      if (!entry.is_placeholder()) entries.push_back(&entry);
    });
    for (IndexEntry* entry : entries) ForgetObjects(*entry, by_tier, doomed);
    std::vector<ChunkKey> keys;
    for (const IndexEntry* entry : entries) keys.push_back(entry->key);
    for (const ChunkKey& key : keys) RemoveIfEmpty(key);
    if (HasHostTier()) tiers_[0].backend->Clear([](const Status&) {});
    marks_.clear();
    seen_remotely_.clear();
    seen_order_.clear();
    is_clearing_ = false;
    if (events_) {
      events_->Record({.kind = KvEventKind::kCleared,
                       .id = {},
                       .root = {},
                       .parent = {},
                       .first_token = 0,
                       .content = nullptr});
    }
    AwaitDoomed(doomed, lock);
  }
  DropPins();
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
    if (!WaitUntil(drained_, lock, deadline, is_drained)) {
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
  loads_->CloseAll(deadline);
  Status first;
  {
    std::unique_lock lock(mutex_);
    if (tiers_closed_) return OkStatus();
    closing_ = true;
    refuses_.store(true, std::memory_order_release);
    const auto is_drained = [&] { return tickets_.empty(); };
    // Where an earlier call gave up: what it did not wait for ends with the tiers.
    if (!closed_ && !WaitUntil(drained_, lock, deadline, is_drained)) {
      first = DeadlineExceededError(std::to_string(tickets_.size()) +
                                    " stores were not written before the close");
    }
    closed_ = true;
  }
  // What has not begun to be copied is given up: it may hold a device that nobody will come to use.
  copy_strand_->Stop();
  copy_strand_->DropQueued();
  bool has_orphans = false;
  if (Status status = AwaitDevices(deadline); !status.ok()) {
    has_orphans = true;
    if (first.ok()) first = std::move(status);
  }
  for (TierState& tier : tiers_) {
    Status status = tier.backend->Close(deadline);
    has_orphans |= status.code() == StatusCode::kDeadlineExceeded;
    if (first.ok()) first = std::move(status);
  }
  if (has_orphans) return first;  // the next call waits for them
  pool_->SetReclaimer(nullptr);
  strand_->Stop();
  std::shared_ptr<Executor> executor;
  {
    std::lock_guard lock(mutex_);
    executor.swap(executor_);
  }
  executor.reset();  // our own runs everything that is queued
  copy_strand_->DropQueued();
  strand_->DropQueued();
  DropPins();
  CloseDevices();
  std::lock_guard lock(mutex_);
  tiers_closed_ = true;
  return first;
}

}  // namespace terrace
