// Write-behind: what is published goes to the lower tiers, parents first, a bounded number of bytes in
// flight. Results are published in the order in which the writes were queued, so a child never becomes
// visible in a tier before its parent.
#include <algorithm>

#include "lib/storage/manager_core.h"

namespace terrace {
namespace {

uint64_t JobBytes(const WriteJob& job) { return kTierPageBytes + job.meta.frame_bytes; }

}  // namespace

void ManagerCore::EnqueueWrites(IndexEntry& entry, ObjectPart part, const BufferRef& buffer, ObjectMeta meta,
                                uint64_t ticket) {
  for (size_t t = HasHostTier() ? 1 : 0; t < tiers_.size(); ++t) {
    const ObjectPresence& object = *entry.Find(part);
    if ((object.tiers | object.writing) & TierBit(t)) continue;
    if (meta.run_key == ChunkKey{}) meta.run_key = RunKeyOf(entry, part);
    auto job = std::make_shared<WriteJob>();
    job->id = {entry.key, part};
    job->frame = buffer;
    job->meta = meta;
    job->ticket = ticket;
    SetWriting(entry, part, TierBit(t), 0);
    tickets_.insert(ticket);
    tiers_[t].writes.push_back(job);
    tiers_[t].queued.push_back(std::move(job));
  }
}

// What may be sent now, in order, within the window; with mutex_ held.
std::vector<std::shared_ptr<WriteJob>> ManagerCore::TakeWrites(size_t t) {
  TierState& tier = tiers_[t];
  std::vector<std::shared_ptr<WriteJob>> taken;
  std::deque<std::shared_ptr<WriteJob>> waiting;  // for the erase of the same object
  while (!tier.queued.empty()) {
    const std::shared_ptr<WriteJob> job = tier.queued.front();
    const IndexEntry* entry = index_->Find(job->id.key);
    const bool is_lost = job->doomed || entry == nullptr || entry->is_placeholder() ||
                         !ParentReachable(*entry, job->id.part, t, true);
    if (is_lost) {
      job->phase = WriteJob::Phase::kDone;
      job->status = FailedPreconditionError("the chunk before it was lost");
      tier.queued.pop_front();
      continue;
    }
    if (tier.clearing > 0) break;
    if (tier.inflight_bytes > 0 && tier.inflight_bytes + JobBytes(*job) > kWriteWindowBytes) break;
    tier.queued.pop_front();
    if (tier.erasing.contains(job->id)) {
      waiting.push_back(job);
      continue;
    }
    tier.inflight_bytes += JobBytes(*job);
    job->phase = WriteJob::Phase::kInFlight;
    taken.push_back(job);
  }
  tier.queued.insert(tier.queued.begin(), waiting.begin(), waiting.end());
  return taken;
}

void ManagerCore::PumpWrites(size_t t) {
  TierState& tier = tiers_[t];
  while (true) {
    std::vector<std::shared_ptr<WriteJob>> started;
    WriteEffects effects;
    {
      std::lock_guard lock(mutex_);
      if (tier.is_pumping) {
        tier.pump_again = true;
        return;
      }
      started = TakeWrites(t);
      PublishWrites(t, effects);
      tier.is_pumping = true;
      tier.pump_again = false;
    }
    ApplyEffects(std::move(effects));
    for (const std::shared_ptr<WriteJob>& job : started) {
      PutOp op;
      op.id = job->id;
      op.frame = job->frame;
      op.meta = job->meta;
      op.deadline = DeadlineIn(options_.io_deadline);
      std::vector<PutOp> ops;
      ops.push_back(std::move(op));
      tier.backend->Put(std::move(ops), [core = shared_from_this(), t, job](std::span<const Status> results) {
        core->OnWriteDone(t, job, results[0]);
      });
    }
    std::lock_guard lock(mutex_);
    tier.is_pumping = false;
    if (!tier.pump_again) return;
  }
}

void ManagerCore::OnWriteDone(size_t t, const std::shared_ptr<WriteJob>& job, const Status& status) {
  const bool no_room = status.code() == StatusCode::kResourceExhausted;
  if (no_room && MakeRoom(t, job)) return;
  WriteEffects effects;
  {
    std::lock_guard lock(mutex_);
    tiers_[t].inflight_bytes -= JobBytes(*job);
    job->phase = WriteJob::Phase::kDone;
    job->status = status;
    PublishWrites(t, effects);
    drained_.notify_all();
  }
  ApplyEffects(std::move(effects));
  PumpWrites(t);
}

// Evicts what the job needs and queues it again. False: nothing may go, or it was tried often enough.
bool ManagerCore::MakeRoom(size_t t, const std::shared_ptr<WriteJob>& job) {
  TierState& tier = tiers_[t];
  Evictions evictions;
  ReapLeases();
  {
    std::lock_guard lock(mutex_);
    const uint64_t needed = JobBytes(*job);
    if (job->doomed || tier.answers_itself || job->evictions_tried >= kMaxEvictionRounds ||
        needed > tier.backend->capacity_bytes()) {
      return false;
    }
    uint64_t freed = 0;
    while (freed < needed) {
      const uint64_t bytes = EvictColdest(t, evictions);
      if (bytes == 0) break;
      freed += bytes;
    }
    if (freed == 0) return false;
    ++job->evictions_tried;
  }
  // It stays in flight, in its place in the order, until the space is free; then it is queued again.
  const std::vector<ObjectId> ids = std::move(evictions.by_tier[t]);
  evictions.by_tier[t].clear();
  tier.backend->Erase(ids, EraseMode::kEvict,
                      [core = shared_from_this(), t, job, ids](std::span<const Status> results) {
                        {
                          std::lock_guard lock(core->mutex_);
                          core->tiers_[t].inflight_bytes -= JobBytes(*job);
                          job->phase = WriteJob::Phase::kQueued;
                          core->tiers_[t].queued.push_front(job);  // its turn had come
                          core->drained_.notify_all();
                        }
                        // Sends what waits, this job among it.
                        core->EndEvictions(t, ids, results);
                      });
  SendEvictions(std::move(evictions));
  return true;
}

void ManagerCore::PublishWrites(size_t t, WriteEffects& effects) {
  TierState& tier = tiers_[t];
  while (!tier.writes.empty() && tier.writes.front()->phase == WriteJob::Phase::kDone) {
    const std::shared_ptr<WriteJob> job = std::move(tier.writes.front());
    tier.writes.pop_front();
    effects.tickets.push_back(job->ticket);
    const BufferRef frame = std::move(job->frame);
    if (job->doomed) continue;  // Erase settled its entry, and its bytes once it was no longer in flight
    SettleWrite(t, *job, effects.evictions);
    const IndexEntry* entry = index_->Find(job->id.key);
    const ObjectPresence* object = entry != nullptr ? entry->Find(job->id.part) : nullptr;
    if (object == nullptr || object->writing == 0) pool_->Settle(frame);
  }
}

void ManagerCore::SettleWrite(size_t t, const WriteJob& job, Evictions& evictions) {
  TierState& tier = tiers_[t];
  const ObjectPart part = job.id.part;
  IndexEntry* entry = index_->Find(job.id.key);
  if (entry == nullptr || entry->Find(part) == nullptr) return;
  SetWriting(*entry, part, 0, TierBit(t));
  const bool stored = job.status.ok() || job.status.code() == StatusCode::kAlreadyExists;
  if (stored && !tier.answers_itself) {
    if (ParentReachable(*entry, part, t, false)) {
      SetPresent(*entry, part, t);
      TouchUpwards(*entry, part, t);
      EvictSuperseded(*entry, t, evictions);
    } else {
      QueueErase(job.id, t, evictions);
      unreachable_->Add();
      // What hangs on it in a faster tier may have waited for this write.
      CascadeUnreachable(*entry, part, evictions);
    }
  } else if (!stored) {
    tier.write_failures->Add();
    if (job.status.code() != StatusCode::kFailedPrecondition) {
      log_->Log(LogLevel::kInfo, tier.name, "a chunk was not kept: " + job.status.ToString());
      // A failure that came after the fact would leave bytes that nobody knows of.
      if (!tier.answers_itself) QueueErase(job.id, t, evictions);
    }
    if (entry->Find(part)->is_gone()) {
      DropCounter("write_failed")->Add();
      CascadeUnreachable(*entry, part, evictions);
    }
  }
  RemoveIfEmpty(job.id.key);
}

void ManagerCore::ApplyEffects(WriteEffects effects) {
  if (effects.tickets.empty()) return;
  SendEvictions(std::move(effects.evictions));
  std::lock_guard lock(mutex_);
  for (const uint64_t ticket : effects.tickets) FinishTicket(ticket);
}

void ManagerCore::FinishTicket(uint64_t ticket) {
  if (const auto it = tickets_.find(ticket); it != tickets_.end()) tickets_.erase(it);
  drained_.notify_all();
}

bool ManagerCore::DrainedBefore(uint64_t ticket) const {
  return tickets_.empty() || *tickets_.begin() >= ticket;
}

}  // namespace terrace
