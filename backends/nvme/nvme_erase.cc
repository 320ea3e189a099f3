// Erasing, clearing, flushing.
#include <algorithm>
#include <iterator>

#include "backends/nvme/nvme_core.h"
#include "backends/nvme/opened_records.h"
#include "lib/base/status_macros.h"

namespace terrace {

void NvmeCore::Erase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) {
  auto batch = std::make_shared<OpBatch<ObjectId, Status>>(std::move(ids), std::move(done));
  const bool posted = Post([this, batch, mode] {
    for (size_t i = 0; i < batch->ops.size(); ++i) {
      StartErase(batch->ops[i], mode, [batch, i](const Status& status) { batch->Set(i, status); });
    }
  });
  if (!posted) batch->Refuse(FailedPreconditionError("not open"));
}

void NvmeCore::StartErase(const ObjectId& id, EraseMode mode, std::function<void(const Status&)> answer) {
  if (const auto pending = pending_puts_.find(id); pending != pending_puts_.end()) {
    pending->second->waiters.push_back({mode, std::move(answer)});
    return;
  }
  const auto found = store_->index.find(id);
  if (found == store_->index.end()) {
    if (mode == EraseMode::kEvict) return answer(NotFoundError("no such object"));
    // It may have been evicted a moment ago, by a record that a power loss brings back, and its frame may lie
    // in free space: absence is made durable too.
    CommitTask task;
    task.erased.push_back(ErasedNow(id));
    task.changes.push_back({.key = EncodeRecordKey(id), .is_delete = true});
    task.write = RecordWrite::kSynced;
    task.done = [answer = std::move(answer)](const Status& status) {
      answer(status.ok() ? NotFoundError("no such object") : status);
    };
    return Commit(std::move(task));
  }
  const PlacementRef placement = *found;
  store_->index.erase(found);
  UpdateFigures();
  if (mode == EraseMode::kErase) return EraseForEver(placement, std::move(answer));
  DeleteRecord(placement, std::move(answer));
}

// The record's deletion is queued at once: the record of a later Put of the same id must come behind it.
void NvmeCore::EraseForEver(const PlacementRef& placement, std::function<void(const Status&)> answer) {
  CommitTask task;
  if (!switches_.skip_erase_sync) task.erased.push_back(ErasedNow(placement->id));
  task.changes.push_back({.key = EncodeRecordKey(placement->id), .is_delete = true});
  task.write = switches_.skip_erase_sync ? RecordWrite::kLogged : RecordWrite::kSynced;
  task.done = [this, placement, answer = std::move(answer)](const Status& deleted) {
    WipePage(placement, deleted, answer);
  };
  Commit(std::move(task));
}

Status NvmeCore::LogErased(std::span<const ErasedEntry> entries) {
  const Status added = store_->erased->Add(entries);
  if (added.code() != StatusCode::kResourceExhausted) return added;
  // Full: instead of names, a rebuild asks whether a frame is older than the latest of them.
  uint64_t floor = store_->erased->highest_floor();
  for (const ErasedEntry& entry : entries) floor = std::max(floor, entry.floor);
  TERRACE_RETURN_IF_ERROR(RaiseRebuildFloor(*store_, floor));
  return store_->erased->Reset();
}

void NvmeCore::WipePage(const PlacementRef& placement, const Status& deleted,
                        const std::function<void(const Status&)>& answer) {
  if (switches_.skip_wipe) {
    Retire(placement);
    return answer(deleted);
  }
  const auto transfer = std::make_shared<Transfer>();
  transfer->direction = IoDirection::kWrite;
  AddSpans(*placement, 0, kTierPageBytes, zero_page_.get(), &transfer->spans);
  Begin();
  transfer->on_end = [this, placement, deleted, answer](const Status& wiped) {
    CommitTask task;
    task.sync_files.push_back(store_->segments->file(placement->extents()[0].segment));
    task.done = [this, placement, deleted, wiped, answer](const Status& synced) {
      if (!synced.ok()) ++failed_syncs_;
      Retire(placement);
      answer(!deleted.ok() ? deleted : !wiped.ok() ? wiped : synced);
    };
    Commit(std::move(task));
    End();
  };
  transfers_->Add(transfer);
}

void NvmeCore::DeleteRecord(const PlacementRef& placement, std::function<void(const Status&)> answer) {
  CommitTask task;
  task.changes.push_back({.key = EncodeRecordKey(placement->id), .is_delete = true});
  task.write = record_write();  // kSync: no record ever names a place that was used again
  task.done = [this, placement, answer = std::move(answer)](const Status& status) {
    // Even if it failed: a record that stays and finds other bytes at its place is told from theirs by its
    // generation.
    Retire(placement);
    answer(status);
  };
  Commit(std::move(task));
}

void NvmeCore::Retire(const PlacementRef& placement) {
  placement->retired = true;
  FreeIfUnused(placement);
}

void NvmeCore::FreeIfUnused(const PlacementRef& placement) {
  if (!placement->retired || placement->readers > 0) return;
  FreeExtents(*placement);
}

void NvmeCore::FreeExtents(const Placement& placement) {
  std::vector<Extent> extents;
  for (const Extent& extent : placement.extents()) extents.push_back(extent);
  if (const auto bad = bad_extents_.find(&placement); bad != bad_extents_.end()) {
    QuarantineBad(extents, bad->second);
    bad_extents_.erase(bad);
  } else {
    store_->allocator.Free(extents);
  }
  store_->record_bytes -= placement.record_bytes;
  UpdateFigures();
}

void NvmeCore::Clear(StatusDone done) {
  const auto shared = std::make_shared<StatusDone>(std::move(done));
  if (!Post([this, shared] { StartClear(std::move(*shared)); }))
    (*shared)(FailedPreconditionError("not open"));
}

void NvmeCore::StartClear(StatusDone done) {
  Result<DirectorySecret> secret = NewSecret();
  if (!secret.ok()) return done(secret.status());
  const auto clear = std::make_shared<ClearState>();
  clear->placements.assign(store_->index.begin(), store_->index.end());
  store_->index.clear();
  for (auto& [id, put] : pending_puts_) {
    put->cleared_by = clear;
    // Not by id once it has ended: that may be a later Put's by then.
    std::move(put->waiters.begin(), put->waiters.end(), std::back_inserter(clear->waiters));
    put->waiters.clear();
  }
  pending_puts_.clear();
  // Whatever is put from here on carries the new secret, and its record comes behind the drop.
  secret_ = std::make_shared<const DirectorySecret>(*secret);
  UpdateFigures();
  CommitTask task;
  task.alone = [this, secret = *secret]() -> Status {
    Superblock superblock = store_->directory->superblock();
    superblock.secret = secret;
    TERRACE_RETURN_IF_ERROR(store_->directory->ReplaceSuperblock(superblock));
    TERRACE_RETURN_IF_ERROR(store_->manifest->DropAll());
    TERRACE_RETURN_IF_ERROR(store_->manifest->SetIdentity(IdentityOf(superblock)));
    return store_->erased->Reset();  // the new secret does its work
  };
  task.done = [this, clear, done = std::move(done)](const Status& status) {
    superblock_unsure_ = !status.ok();
    for (const PlacementRef& placement : clear->placements) Retire(placement);
    UpdateFigures();
    for (const EraseWaiter& waiter : clear->waiters) {
      waiter.answer(status.ok() ? NotFoundError("cleared") : status);
    }
    done(status);
  };
  Commit(std::move(task));
}

void NvmeCore::RestoreSuperblock() {
  CommitTask task;
  task.alone = [this, secret = *secret_]() -> Status {
    Superblock superblock = store_->directory->superblock();
    superblock.secret = secret;
    TERRACE_RETURN_IF_ERROR(store_->directory->ReplaceSuperblock(superblock));
    return store_->manifest->SetIdentity(IdentityOf(superblock));
  };
  task.done = [this](const Status& status) { superblock_unsure_ = !status.ok(); };
  Commit(std::move(task));
}

void NvmeCore::Flush(StatusDone done) {
  const auto shared = std::make_shared<StatusDone>(std::move(done));
  if (!Post([this, shared] { StartFlush(std::move(*shared)); }))
    (*shared)(FailedPreconditionError("not open"));
}

void NvmeCore::StartFlush(StatusDone done) {
  Begin();
  flushes_.emplace(next_sequence_, std::move(done));
  RunFlushes();
}

void NvmeCore::RunFlushes() {
  const uint64_t first_open = put_sequences_.empty() ? next_sequence_ : *put_sequences_.begin();
  while (!flushes_.empty() && flushes_.begin()->first <= first_open) {
    StatusDone done = std::move(flushes_.begin()->second);
    flushes_.erase(flushes_.begin());
    const std::vector<uint32_t> dirty = store_->segments->TakeDirty();
    std::vector<DiskFile*> files;
    for (const uint32_t segment : dirty) files.push_back(store_->segments->file(segment));
    CommitTask task;
    task.alone = [this, files, skip = switches_.skip_data_sync]() -> Status {
      for (DiskFile* file : files) {
        if (!skip) TERRACE_RETURN_IF_ERROR(file->Sync());
      }
      return store_->manifest->Sync();
    };
    task.done = [this, dirty, done = std::move(done)](const Status& status) {
      if (!status.ok()) {
        ++failed_syncs_;
        for (const uint32_t segment : dirty) store_->segments->MarkDirty(segment);
      }
      // Under kSync each Put had a sync of its own.
      const bool is_doubtful = failed_syncs_ > 0 && store_->options.durability != Durability::kSync;
      done(status.ok() && is_doubtful
               ? UnavailableError(
                     "a sync failed since the start: what was written before it may not outlive a "
                     "power loss, whatever was synced since")
               : status);
      End();
    };
    Commit(std::move(task));
  }
}

}  // namespace terrace
