// What becomes of a device that fails: refused while it does not answer, and without the places that it lost.
#include "backends/nvme/nvme_core.h"

namespace terrace {

Status NvmeCore::AdmitToDevice() {
  const bool admitted = health_->Admit(transfers_->is_idle());
  ReportHealth();
  if (admitted) return OkStatus();
  if (metrics_.degraded_refusals) metrics_.degraded_refusals->Add();
  return UnavailableError("the device fails; it is asked once a second whether it still does");
}

void NvmeCore::NoteOutcome(const ActiveOp& op, const PlacementRef& placement) {
  const Transfer& transfer = *op.transfer;
  // What came late has failed when its deadline passed.
  if (transfer.status.ok() && !op.orphaned) health_->OnSuccess();
  if (transfer.status.code() == StatusCode::kUnavailable && !op.orphaned) health_->OnFailure();
  ReportHealth();
  if (transfer.failed_bytes > 0) NoteFailedPlace(transfer, placement);
}

void NvmeCore::ReportHealth() {
  if (health_->is_degraded() == reported_degraded_) return;
  reported_degraded_ = health_->is_degraded();
  metrics_.degraded.Set(reported_degraded_ ? 1 : 0);
  if (reported_degraded_) {
    Log(LogLevel::kError,
        "degraded: the device fails; reads and writes are refused but for a probe a second");
  } else {
    Log(LogLevel::kInfo, "recovered: the device answers again");
  }
}

// Of a Put the place is freed by its caller; of a Get the object has to go first.
void NvmeCore::NoteFailedPlace(const Transfer& transfer, const PlacementRef& placement) {
  for (const Extent& extent : placement->extents()) {
    if (store_->segments->file(extent.segment)->fd() != transfer.failed_fd) continue;
    const Extent failed{extent.segment, transfer.failed_offset, transfer.failed_bytes};
    const uint64_t bytes_done =
        transfers_->bytes_done(IoDirection::kRead) + transfers_->bytes_done(IoDirection::kWrite);
    const std::vector<Extent> bad = failed_places_.Note(failed, bytes_done);
    if (bad.empty()) return;
    std::vector<Extent>& all = bad_extents_[&*placement];
    all.insert(all.end(), bad.begin(), bad.end());
    const auto current = store_->index.find(placement->id);
    if (current == store_->index.end() || *current != placement) return;
    Log(LogLevel::kWarning, "dropped object " + placement->id.key.ToHex() +
                                ": the device failed twice where it lies: " + transfer.status.ToString());
    store_->index.erase(current);
    DeleteRecord(placement, [](const Status&) {});
    return;
  }
}

void NvmeCore::QuarantineBad(std::span<const Extent> extents, std::span<const Extent> bad) {
  std::vector<Extent> quarantined = store_->allocator.FreeExcept(extents, bad);
  for (const Extent& extent : quarantined) {
    Log(LogLevel::kWarning, "in quarantine: " + std::to_string(extent.length) + " bytes of segment " +
                                std::to_string(extent.segment) + " at " + std::to_string(extent.offset) +
                                ": the device failed there twice");
  }
  CommitTask task;
  task.alone = [this, quarantined = std::move(quarantined)] {
    return store_->manifest->PutQuarantine(quarantined);
  };
  task.done = [this](const Status& status) {
    // It holds until the end of this process, and is found again by whoever fails there.
    if (!status.ok()) Log(LogLevel::kWarning, "the quarantine is not in the manifest: " + status.ToString());
  };
  Commit(std::move(task));
}

}  // namespace terrace
