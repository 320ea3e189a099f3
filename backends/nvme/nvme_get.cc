// Reading: from the index to verified bytes in the caller's buffer.
#include <algorithm>

#include "backends/nvme/nvme_core.h"
#include "lib/wire/frame.h"
#include "lib/wire/tier_page.h"

namespace terrace {

void NvmeCore::Get(std::vector<GetOp> ops, GetDone done) {
  auto batch = std::make_shared<OpBatch<GetOp, GetResult>>(std::move(ops), std::move(done));
  const bool posted = Post([this, batch] {
    for (size_t i = 0; i < batch->ops.size(); ++i) {
      StartGet(std::move(batch->ops[i]), [batch, i](GetResult result) { batch->Set(i, std::move(result)); });
    }
  });
  if (!posted) batch->Refuse({FailedPreconditionError("not open"), 0});
}

void NvmeCore::StartGet(GetOp op, std::function<void(GetResult)> answer) {
  const auto get = std::make_shared<GetState>();
  get->id = op.id;
  get->deadline = op.deadline;
  get->cancel = op.cancel;
  const auto refuse = [&](Status status, uint64_t frame_bytes) {
    op.dst.Reset();
    answer({std::move(status), frame_bytes});
  };
  if (Status passed = PassedTime(*get); !passed.ok()) return refuse(std::move(passed), 0);
  const auto found = store_->index.find(op.id);
  if (found == store_->index.end()) return refuse(NotFoundError("no such object"), 0);
  get->placement = *found;
  get->transfer = std::make_shared<Transfer>();
  Status planned = PlanGet(op, *get->placement, *get->transfer);
  if (!planned.ok()) return refuse(std::move(planned), get->placement->frame_bytes());
  if (Status admitted = AdmitToDevice(); !admitted.ok()) return refuse(std::move(admitted), 0);
  get->whole = op.ranges.empty();
  get->secret = secret_;
  get->on_bytes = std::move(op.on_bytes);
  get->buffer = std::move(op.dst);
  get->answer = [answer](const Status& status) { answer({status, 0}); };
  ++get->placement->readers;
  if (is_sealed()) {
    PlanSealedGet(*get, op.ranges);
  } else if (get->on_bytes) {
    get->transfer->on_bytes = [state = get.get()](std::byte* memory, uint64_t n) {
      if (state->answered) return;
      // The tier page lies in front of the frame and is nobody's business.
      std::byte* const frame = state->buffer.mutable_frame().data();
      std::byte* const begin = std::max(memory, frame);
      if (begin < memory + n) state->on_bytes(static_cast<uint64_t>(begin - frame), memory + n - begin);
    };
  }
  get->transfer->on_end = [this, get, answer](const Status& status) { FinishGet(get, status, answer); };
  Watch(get);
  transfers_->Add(get->transfer);
}

Status NvmeCore::PlanGet(const GetOp& op, const Placement& placement, Transfer& transfer) const {
  const BufferRef& dst = op.dst;
  std::byte* const run = dst.mutable_run().data();
  const uint64_t room = dst.size_bytes() - kTierPageBytes;
  if (reinterpret_cast<uintptr_t>(run) % kFrameAlignment != 0) {
    return InvalidArgumentError("dst does not begin at a multiple of 4096");
  }
  transfer.direction = IoDirection::kRead;
  if (op.ranges.empty()) {
    if (placement.frame_bytes() > room) {
      return InvalidArgumentError("dst has " + std::to_string(room) + " frame bytes, the object " +
                                  std::to_string(placement.frame_bytes()));
    }
    if (!is_sealed()) AddSpans(placement, 0, kTierPageBytes + placement.frame_bytes(), run, &transfer.spans);
    return OkStatus();
  }
  for (const FrameRange& range : op.ranges) {
    if (range.frame_offset > placement.frame_bytes() ||
        range.length > placement.frame_bytes() - range.frame_offset) {
      return InvalidArgumentError("range at frame_offset " + std::to_string(range.frame_offset) + " of " +
                                  std::to_string(range.length) + " bytes is beyond the frame of " +
                                  std::to_string(placement.frame_bytes()));
    }
    if (is_sealed()) continue;  // see PlanSealedGet
    AddSpans(placement, kTierPageBytes + range.frame_offset, range.length,
             run + kTierPageBytes + range.dst_offset, &transfer.spans);
  }
  return OkStatus();
}

void NvmeCore::AddSpans(const Placement& placement, uint64_t run_offset, uint64_t length, std::byte* memory,
                        std::vector<TransferSpan>* spans) const {
  uint64_t extent_begin = 0;
  for (const Extent& extent : placement.extents()) {
    const uint64_t extent_end = extent_begin + extent.length;
    if (length > 0 && run_offset < extent_end) {
      const uint64_t skip = run_offset - extent_begin;
      const uint64_t n = std::min(length, extent.length - skip);
      spans->push_back({store_->segments->file(extent.segment)->fd(), extent.offset + skip, n, memory});
      run_offset += n;
      memory += n;
      length -= n;
    }
    extent_begin = extent_end;
  }
}

void NvmeCore::FinishGet(const std::shared_ptr<GetState>& get, Status status,
                         const std::function<void(GetResult)>& answer) {
  const PlacementRef placement = get->placement;
  NoteOutcome(*get, placement);
  // Whole or not, bytes of an abandoned read are nobody's: they say nothing about the object.
  if (!get->answered) {
    if (status.ok() && get->sealed) status = get->sealed->Finish();
    if (status.ok() && get->whole) status = Verify(*get);
    if (status.code() == StatusCode::kDataLoss) {
      const auto current = store_->index.find(get->id);
      if (current != store_->index.end() && *current == placement) {
        DropCorrupt(placement, status);
      } else {
        status = NotFoundError("erased while it was read");  // a wiped tier page is no damage
      }
    }
  }
  --placement->readers;
  FreeIfUnused(placement);
  get->sealed.reset();
  get->buffer.Reset();
  get->on_bytes = nullptr;
  get->answer = nullptr;
  const bool was_answered = std::exchange(get->answered, true);
  UpdateFigures();
  Unwatch(get);
  if (!was_answered) answer({status, placement->frame_bytes()});
}

Status NvmeCore::Verify(const GetState& get) const {
  const Placement& placement = *get.placement;
  const Bytes run = get.sealed ? get.sealed->tier_page() : get.buffer.run();
  const Bytes frame = get.buffer.frame();
  const Result<TierPage> page =
      ParseTierPage(run.first(kTierPageBytes), frame.first(placement.header_bytes()), *get.secret);
  if (!page.ok()) return page.status();
  if (page->directory != store_->directory->id()) {
    return DataLossError("tier page: of another directory");
  }
  if (page->generation != placement.generation) {
    return DataLossError("tier page: generation " + std::to_string(page->generation) + ", the record has " +
                         std::to_string(placement.generation));
  }
  if (page->frame_bytes != placement.frame_bytes()) return DataLossError("tier page: frame length differs");
  return OkStatus();
}

void NvmeCore::DropCorrupt(const PlacementRef& placement, const Status& reason) {
  if (metrics_.corrupt_objects) metrics_.corrupt_objects->Add();
  Log(LogLevel::kWarning, "dropped object " + placement->id.key.ToHex() + ": " + reason.ToString());
  store_->index.erase(placement->id);
  DeleteRecord(placement, [](const Status&) {});
}

}  // namespace terrace
