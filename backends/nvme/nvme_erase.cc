// Erasing, clearing, flushing.
#include <algorithm>

#include "backends/nvme/nvme_core.h"
#include "lib/base/status_macros.h"

namespace terrace {

void NvmeCore::Erase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) {
  auto batch = std::make_shared<OpBatch<Status>>();
  batch->answers.resize(ids.size());
  batch->open = ids.size();
  batch->done = std::move(done);
  const bool posted = Post([this, batch, mode, ids = std::move(ids)] {
    for (size_t i = 0; i < ids.size(); ++i) {
      StartErase(ids[i], mode, [batch, i](const Status& status) { batch->Set(i, status); });
    }
  });
  if (posted) return;
  std::fill(batch->answers.begin(), batch->answers.end(), FailedPreconditionError("not open"));
  batch->done(batch->answers);
}

void NvmeCore::StartErase(const ObjectId& id, EraseMode mode, std::function<void(const Status&)> answer) {
  if (const auto pending = pending_puts_.find(id); pending != pending_puts_.end()) {
    pending->second->waiters.push_back({mode, std::move(answer)});
    return;
  }
  const auto found = store_->index.find(id);
  if (found == store_->index.end()) {
    if (mode == EraseMode::kEvict) return answer(NotFoundError("no such object"));
    // It may have been evicted a moment ago, by a record that a power loss brings back: absence is made
    // durable too.
    CommitTask task;
    task.changes.push_back({.key = EncodeRecordKey(id), .is_delete = true});
    task.sync = true;
    task.done = [answer = std::move(answer)](const Status& status) {
      answer(status.ok() ? NotFoundError("no such object") : status);
    };
    return Commit(std::move(task));
  }
  const PlacementRef placement = found->second;
  store_->index.erase(found);
  UpdateFigures();
  if (mode == EraseMode::kErase) return EraseForEver(placement, std::move(answer));
  DeleteRecord(placement, std::move(answer));
}

// The record's deletion is queued at once: the record of a later Put of the same id must come behind it.
void NvmeCore::EraseForEver(const PlacementRef& placement, std::function<void(const Status&)> answer) {
  CommitTask task;
  task.changes.push_back({.key = EncodeRecordKey(placement->id), .is_delete = true});
  task.sync = true;
  task.done = [this, placement, answer = std::move(answer)](const Status& deleted) {
    WipePage(placement, deleted, answer);
  };
  Commit(std::move(task));
}

void NvmeCore::WipePage(const PlacementRef& placement, const Status& deleted,
                        const std::function<void(const Status&)>& answer) {
  const auto transfer = std::make_shared<Transfer>();
  transfer->direction = IoDirection::kWrite;
  AddSpans(*placement, 0, kTierPageBytes, zero_page_.get(), &transfer->spans);
  Begin();
  transfer->on_end = [this, placement, deleted, answer](const Status& wiped) {
    CommitTask task;
    task.sync_files.push_back(store_->segments->fd(placement->extents[0].segment));
    task.done = [this, placement, deleted, wiped, answer](const Status& synced) {
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
  store_->allocator.Free(placement.extents);
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
  for (auto& [id, placement] : store_->index) clear->placements.push_back(std::move(placement));
  store_->index.clear();
  for (auto& [id, put] : pending_puts_) put->cleared_by = clear;
  pending_puts_.clear();
  // Whatever is put from here on carries the new secret, and its record comes behind the drop.
  secret_ = std::make_shared<const DirectorySecret>(*secret);
  UpdateFigures();
  CommitTask task;
  task.alone = [this, superblock = Superblock{.directory = store_->directory->superblock().directory,
                                              .secret = *secret,
                                              .segment_bytes = store_->options.segment_bytes}]() -> Status {
    TERRACE_RETURN_IF_ERROR(store_->directory->ReplaceSuperblock(superblock));
    return store_->manifest->DropAll();
  };
  task.done = [this, clear, done = std::move(done)](const Status& status) {
    for (const PlacementRef& placement : clear->placements) Retire(placement);
    UpdateFigures();
    done(status);
  };
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
    std::vector<int> files;
    for (const uint32_t segment : dirty) files.push_back(store_->segments->fd(segment));
    CommitTask task;
    task.alone = [this, files]() -> Status {
      for (const int file : files) TERRACE_RETURN_IF_ERROR(SyncFile(file));
      return store_->manifest->Sync();
    };
    task.done = [this, dirty, done = std::move(done)](const Status& status) {
      if (!status.ok()) {
        for (const uint32_t segment : dirty) store_->segments->MarkDirty(segment);
      }
      done(status);
      End();
    };
    Commit(std::move(task));
  }
}

}  // namespace terrace
