// Writing: room first, then data, then the record, then the index.
#include <algorithm>
#include <cstring>

#include "backends/nvme/nvme_core.h"
#include "lib/base/status_macros.h"
#include "lib/wire/frame.h"
#include "lib/wire/tier_page.h"

namespace terrace {
namespace {

// Frames that may wait to be written; their buffers are the caller's memory.
constexpr size_t kMaxPendingPuts = 16384;

int64_t Nanoseconds(WallTime time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// The header area's length, once buffer and lengths fit together.
Result<uint32_t> CheckedHeaderBytes(const PutOp& op) {
  if (reinterpret_cast<uintptr_t>(op.frame.run().data()) % kFrameAlignment != 0) {
    return InvalidArgumentError("frame's buffer does not begin at a multiple of 4096");
  }
  const Result<uint32_t> header_bytes = PeekHeaderBytes(op.frame.frame().first(kFramePrefixBytes));
  if (!header_bytes.ok())
    return InvalidArgumentError("frame: " + std::string(header_bytes.status().message()));
  if (*header_bytes > op.meta.frame_bytes) {
    return InvalidArgumentError("frame: header of " + std::to_string(*header_bytes) +
                                " bytes in a frame of " + std::to_string(op.meta.frame_bytes));
  }
  return header_bytes;
}

}  // namespace

void NvmeCore::Put(std::vector<PutOp> ops, PutDone done) {
  auto batch = std::make_shared<OpBatch<PutOp, Status>>(std::move(ops), std::move(done));
  const bool posted = Post([this, batch] {
    for (size_t i = 0; i < batch->ops.size(); ++i) {
      StartPut(std::move(batch->ops[i]), [batch, i](const Status& status) { batch->Set(i, status); });
    }
  });
  if (!posted) batch->Refuse(FailedPreconditionError("not open"));
}

void NvmeCore::StartPut(PutOp op, std::function<void(const Status&)> answer) {
  const auto put = std::make_shared<PutState>();
  put->id = op.id;
  put->deadline = op.deadline;
  put->cancel = op.cancel;
  const auto refuse = [&](const Status& status) {
    op.frame.Reset();
    answer(status);
  };
  if (const Status passed = PassedTime(*put); !passed.ok()) return refuse(passed);
  if (store_->index.contains(op.id) || pending_puts_.contains(op.id)) {
    return refuse(AlreadyExistsError("the object is stored or being stored"));
  }
  const Result<uint32_t> header_bytes = CheckedHeaderBytes(op);
  if (!header_bytes.ok()) return refuse(header_bytes.status());
  if (pending_puts_.size() >= kMaxPendingPuts)
    return refuse(ResourceExhaustedError("too many writes are waiting"));
  if (const Status admitted = AdmitToDevice(); !admitted.ok()) return refuse(admitted);

  if (is_sealed()) {
    const Result<ObjectSalt> salt = NewSalt();
    if (!salt.ok()) return refuse(salt.status());
    put->salt = *salt;
  }
  put->header_bytes = *header_bytes;
  put->meta = std::move(op.meta);
  put->buffer = std::move(op.frame);
  put->answer = std::move(answer);
  put->sequence = next_sequence_++;
  pending_puts_.emplace(put->id, put);
  put_sequences_.insert(put->sequence);
  room_.in_use = true;
  Watch(put);
  PlacePut(put);
}

void NvmeCore::WritePut(const PutRef& put, std::span<const Extent> extents) {
  put->failed_syncs = failed_syncs_;
  put->meta.generation = store_->next_generation++;
  put->record.key = EncodeRecordKey(put->id);
  if (put->meta.content) put->record.content = EncodeRecordContent(*put->meta.content);
  const uint64_t content_bytes = StoredContentBytes(put->record.content.size());
  put->record.place = EncodePlace({put->meta,
                                   put->header_bytes,
                                   {extents.begin(), extents.end()},
                                   static_cast<uint32_t>(content_bytes),
                                   store_->keys.newest_id()});
  const uint64_t record_bytes = RecordBytes(put->record.place.size(), content_bytes);
  if (store_->record_bytes + record_bytes > store_->record_budget) {
    store_->allocator.Free(extents);
    return EndUnplaced(put, ResourceExhaustedError("the manifest's share of the capacity is full"));
  }
  store_->record_bytes += record_bytes;
  put->placement =
      Placement::Make({put->id, put->meta.generation, put->header_bytes, record_bytes, is_sealed()}, extents);
  FillPage(*put);

  put->transfer = std::make_shared<Transfer>();
  put->transfer->direction = IoDirection::kWrite;
  // The tier page comes from a page of our own: the frame's buffer is shared with readers and other tiers.
  if (is_sealed()) {
    PlanSealedPut(*put);
  } else {
    AddSpans(*put->placement, 0, kTierPageBytes, put->page.get(), &put->transfer->spans);
    AddSpans(*put->placement, kTierPageBytes, put->placement->frame_bytes(),
             const_cast<std::byte*>(put->buffer.frame().data()), &put->transfer->spans);
  }
  put->transfer->on_end = [this, put](const Status& status) { FinishWrite(put, status); };
  UpdateFigures();
  if (!switches_.record_before_data) return transfers_->Add(put->transfer);
  CommitPut(put, [this, put](const Status&) { transfers_->Add(put->transfer); });
}

void NvmeCore::FillPage(PutState& put) {
  const uint64_t head_bytes = FrameOffsetInRun(put.placement->frame_bytes(), is_sealed());
  put.page = staging_->Take(head_bytes);
  std::memset(put.page.get() + kTierPageBytes, 0, head_bytes - kTierPageBytes);
  TierPage fields;
  fields.directory = store_->directory->id();
  fields.generation = put.placement->generation;
  fields.frame_bytes = put.placement->frame_bytes();
  fields.expiry_ns = Nanoseconds(put.meta.expiry);
  fields.priority = put.meta.priority;
  if (is_sealed()) {
    fields.sealed = true;
    fields.key_id = store_->keys.newest_id();
    fields.salt = put.salt;
    fields.id = put.id;
  }
  const auto extents = put.placement->extents();
  fields.extents.assign(extents.begin(), extents.end());
  WriteTierPage(fields, put.buffer.frame().first(put.placement->header_bytes()), *secret_,
                {put.page.get(), kTierPageBytes});
}

// The device is done with the buffers, whatever came of it.
void NvmeCore::FinishWrite(const PutRef& put, Status status) {
  NoteOutcome(*put, put->placement);
  put->buffer.Reset();
  put->sealer.reset();
  put->page.reset();
  if (std::exchange(put->orphaned, false) && metrics_.orphaned_buffers) metrics_.orphaned_buffers->Add(-1);
  if (status.ok() && put->answered) status = CancelledError("given up by the caller");
  if (status.ok() && put->cleared_by) status = CancelledError("cleared while it was written");
  if (!status.ok()) {
    FreeExtents(*put->placement);
    return FinishPut(put, status);
  }
  for (const Extent& extent : put->placement->extents()) store_->segments->MarkDirty(extent.segment);
  if (superblock_unsure_) RestoreSuperblock();
  CommitPut(put, [this, put](Status committed) {
    const bool is_sync = store_->options.durability == Durability::kSync;
    if (!committed.ok() && is_sync) ++failed_syncs_;
    const bool was_ok = committed.ok();
    if (was_ok && put->cleared_by) {
      // The Clear decides.
    } else if (was_ok && superblock_unsure_) {
      // Its tier page has a secret that the next open may not find.
      committed = UnavailableError("the superblock is not written since the last Clear");
    } else if (was_ok && is_sync && put->failed_syncs != failed_syncs_) {
      committed = UnavailableError("a sync failed while it was written");
    }
    if (was_ok && !committed.ok()) {
      DeleteRecord(put->placement, [](const Status&) {});
    } else if (!committed.ok()) {
      FreeExtents(*put->placement);
    } else if (put->cleared_by) {
      put->cleared_by->placements.push_back(put->placement);  // its record goes with the others
    } else {
      store_->index.insert(put->placement);
    }
    FinishPut(put, committed);
  });
}

void NvmeCore::CommitPut(const PutRef& put, std::function<void(const Status&)> done) {
  CommitTask task;
  task.changes.push_back(put->record);
  task.write = record_write();
  if (store_->options.durability == Durability::kSync && !switches_.skip_data_sync) {
    for (const Extent& extent : put->placement->extents()) {
      task.sync_files.push_back(store_->segments->file(extent.segment));
    }
  }
  task.done = std::move(done);
  Commit(std::move(task));
}

void NvmeCore::FinishPut(const PutRef& put, const Status& status) {
  const auto pending = pending_puts_.find(put->id);
  if (pending != pending_puts_.end() && pending->second == put) pending_puts_.erase(pending);
  put_sequences_.erase(put->sequence);
  const bool was_answered = std::exchange(put->answered, true);
  const auto answer = std::exchange(put->answer, nullptr);
  put->transfer.reset();
  UpdateFigures();
  const bool is_stored = status.ok() && !put->cleared_by;
  if (is_stored && was_answered && put->waiters.empty()) {
    // The caller was told that it failed, and counts on its absence.
    store_->index.erase(put->id);
    DeleteRecord(put->placement, [](const Status&) {});
  }
  Unwatch(put);
  if (!was_answered) answer(status);
  for (EraseWaiter& waiter : std::exchange(put->waiters, {})) {
    StartErase(put->id, waiter.mode, std::move(waiter.answer));
  }
  RunFlushes();
}

}  // namespace terrace
