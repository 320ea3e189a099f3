// Writing: room first, then data, then the record, then the index.
#include <algorithm>

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
  auto batch = std::make_shared<OpBatch<Status>>();
  batch->answers.resize(ops.size());
  batch->open = ops.size();
  batch->done = std::move(done);
  auto shared = std::make_shared<std::vector<PutOp>>(std::move(ops));
  const bool posted = Post([this, batch, shared] {
    for (size_t i = 0; i < shared->size(); ++i) {
      StartPut(std::move((*shared)[i]), [batch, i](const Status& status) { batch->Set(i, status); });
    }
  });
  if (posted) return;
  shared->clear();
  std::fill(batch->answers.begin(), batch->answers.end(), FailedPreconditionError("not open"));
  batch->done(batch->answers);
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

  auto placement = std::make_shared<Placement>();
  placement->id = op.id;
  placement->frame_bytes = op.meta.frame_bytes;
  placement->header_bytes = *header_bytes;
  Result<std::vector<Extent>> extents = AllocateExtents(kTierPageBytes + op.meta.frame_bytes);
  if (!extents.ok()) return refuse(extents.status());
  placement->extents = std::move(*extents);
  placement->generation = store_->next_generation++;
  op.meta.generation = placement->generation;
  put->record.key = EncodeRecordKey(op.id);
  put->record.place = EncodePlace({op.meta, placement->header_bytes, placement->extents});
  if (op.meta.content) put->record.content = EncodeRecordContent(*op.meta.content);
  placement->record_bytes = RecordBytes(put->record.place.size(), put->record.content.size());
  if (store_->record_bytes + placement->record_bytes > store_->record_budget) {
    store_->allocator.Free(placement->extents);
    return refuse(ResourceExhaustedError("the manifest's share of the capacity is full"));
  }
  store_->record_bytes += placement->record_bytes;
  put->placement = std::move(placement);
  put->meta = std::move(op.meta);
  put->buffer = std::move(op.frame);
  put->answer = std::move(answer);
  put->sequence = next_sequence_++;
  FillPage(*put);

  put->transfer = std::make_shared<Transfer>();
  put->transfer->direction = IoDirection::kWrite;
  // The tier page comes from a page of our own: the frame's buffer is shared with readers and other tiers.
  AddSpans(*put->placement, 0, kTierPageBytes, put->page.get(), &put->transfer->spans);
  AddSpans(*put->placement, kTierPageBytes, put->placement->frame_bytes,
           const_cast<std::byte*>(put->buffer.frame().data()), &put->transfer->spans);
  put->transfer->on_end = [this, put](const Status& status) { FinishWrite(put, status); };
  pending_puts_.emplace(put->id, put);
  put_sequences_.insert(put->sequence);
  UpdateFigures();
  Watch(put);
  transfers_->Add(put->transfer);
}

Result<std::vector<Extent>> NvmeCore::AllocateExtents(uint64_t bytes) {
  ExtentAllocator& allocator = store_->allocator;
  std::optional<std::vector<Extent>> extents = allocator.Allocate(bytes);
  // A segment is made only if that can help.
  while (!extents && allocator.free_bytes() + store_->segments->uncreated_bytes() >= bytes &&
         store_->segments->uncreated_bytes() > 0) {
    TERRACE_ASSIGN_OR_RETURN(const uint32_t made, store_->segments->CreateNext());
    allocator.GrowSegment(made, store_->segments->size_bytes(made));
    extents = allocator.Allocate(bytes);
  }
  if (!extents) {
    return ResourceExhaustedError("no room for " + std::to_string(bytes) +
                                  " bytes: " + std::to_string(allocator.live_bytes()) + " of " +
                                  std::to_string(data_bytes()) + " are in use");
  }
  return std::move(*extents);
}

void NvmeCore::FillPage(PutState& put) const {
  put.page = MakeAlignedPage();
  TierPage fields;
  fields.directory = store_->directory->superblock().directory;
  fields.generation = put.placement->generation;
  fields.frame_bytes = put.placement->frame_bytes;
  fields.expiry_ns = Nanoseconds(put.meta.expiry);
  fields.priority = put.meta.priority;
  WriteTierPage(fields, put.buffer.frame().first(put.placement->header_bytes), *secret_,
                {put.page.get(), kTierPageBytes});
}

// The device is done with the buffers, whatever came of it.
void NvmeCore::FinishWrite(const PutRef& put, Status status) {
  put->buffer.Reset();
  put->page.reset();
  if (std::exchange(put->orphaned, false) && metrics_.orphaned_buffers) metrics_.orphaned_buffers->Add(-1);
  if (status.ok() && put->answered) status = CancelledError("given up by the caller");
  if (status.ok() && put->cleared_by) status = CancelledError("cleared while it was written");
  if (!status.ok()) {
    FreeExtents(*put->placement);
    return FinishPut(put, status);
  }
  for (const Extent& extent : put->placement->extents) store_->segments->MarkDirty(extent.segment);
  CommitTask task;
  task.changes.push_back(std::move(put->record));
  task.done = [this, put](const Status& committed) {
    if (!committed.ok()) {
      FreeExtents(*put->placement);
    } else if (put->cleared_by) {
      put->cleared_by->placements.push_back(put->placement);  // its record goes with the others
    } else {
      store_->index.emplace(put->id, put->placement);
    }
    FinishPut(put, committed);
  };
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
