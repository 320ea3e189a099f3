// Room for what is put: segments made off this thread, and written with zeros while the device is idle, so
// that a frame's place is bytes that were written before.
#include <algorithm>

#include "backends/nvme/nvme_core.h"
#include "lib/base/status_macros.h"
#include "lib/wire/sealed_layout.h"

namespace terrace {
namespace {

constexpr uint64_t kZeroRunBytes = uint64_t{4} << 20;  // held at a time

}  // namespace

// The Put gets its place, or waits, or is refused; with a status that is an error it does not wait, and is
// refused with that. Nothing of it is on the device yet.
void NvmeCore::PlacePut(const PutRef& put, const Status& room) {
  if (put->answered) return EndUnplaced(put, CancelledError("given up by the caller"));
  if (put->cleared_by) return EndUnplaced(put, CancelledError("cleared while it waited"));
  const uint64_t run_bytes = RunBytes(put->meta.frame_bytes, is_sealed());
  std::optional<std::vector<Extent>> extents = store_->allocator.Allocate(run_bytes);
  if (extents) return WritePut(put, std::move(*extents));
  if (!room.ok()) return EndUnplaced(put, room);
  if (WillHaveRoom(run_bytes)) {
    room_.waiting.push_back(put);
    return;
  }
  EndUnplaced(put, ResourceExhaustedError("no room for " + std::to_string(run_bytes) +
                                          " bytes: " + std::to_string(used_bytes()) + " of " +
                                          std::to_string(data_bytes()) + " are in use"));
}

// Whether room is on its way: what is being written with zeros, or a segment that is being made, or can be.
bool NvmeCore::WillHaveRoom(uint64_t bytes) {
  if (room_.zeroing || room_.making) return true;
  const uint64_t uncreated = store_->segments->uncreated_bytes();
  if (uncreated == 0 || store_->allocator.free_bytes() + uncreated < bytes) return false;
  MakeSegment();
  return true;
}

void NvmeCore::MakeSegment() {
  room_.making = true;
  const uint32_t index = store_->segments->NextMissing().value();
  const auto made = std::make_shared<std::optional<MadeSegment>>();
  CommitTask task;
  task.alone = [this, made, index]() -> Status {
    TERRACE_ASSIGN_OR_RETURN(*made, store_->segments->Make(index));
    return OkStatus();
  };
  task.done = [this, made](const Status& status) {
    room_.making = false;
    if (status.ok()) {
      Adopt(std::move(**made));
    } else {
      room_.failed = true;
    }
    RoomCame(status);
  };
  Commit(std::move(task));
}

void NvmeCore::Adopt(MadeSegment made) {
  const uint32_t index = made.index;
  store_->segments->Adopt(std::move(made));
  store_->allocator.GrowSegment(index, store_->segments->size_bytes(index));
  engine_->AddFile(store_->segments->file(index)->fd());
}

// What waits is placed, in order; with an error, what still has no place is refused with it.
void NvmeCore::RoomCame(const Status& status) {
  std::vector<PutRef> waiting;
  waiting.swap(room_.waiting);
  for (const PutRef& put : waiting) PlacePut(put, status);
}

void NvmeCore::EndUnplaced(const PutRef& put, const Status& status) {
  put->buffer.Reset();
  FinishPut(put, status);
}

// Called when nothing else is to be done: the device is left alone as soon as somebody wants it.
void NvmeCore::PrepareRoom() {
  const uint64_t wanted = store_->options.prepare_ahead_bytes;
  if (wanted == 0 || closing_ || !room_.in_use || room_.failed || room_.zeroing || room_.making) return;
  if (!transfers_->is_idle() || health_->is_degraded()) return;
  ExtentAllocator& allocator = store_->allocator;
  const uint64_t unwritten = UnwrittenBytes();
  const uint64_t free = allocator.free_bytes();
  if (free > unwritten && free - unwritten >= wanted) return;
  for (uint32_t index = 0; index < store_->segments->count(); ++index) {
    uint64_t& written = room_.written_bytes[index];
    const uint64_t size = store_->segments->size_bytes(index);
    if (written >= size) continue;
    const std::optional<Extent> extent = allocator.TakeFreeFrom(index, written, kZeroRunBytes);
    if (!extent) {
      written = size;
      continue;
    }
    return WriteZeros(*extent);
  }
  if (store_->segments->uncreated_bytes() > 0) MakeSegment();
}

// Of the segments that are there: what no write has reached. What was put beyond the edge counts as unwritten
// until the edge is there: then less is written ahead, not more.
uint64_t NvmeCore::UnwrittenBytes() {
  room_.written_bytes.resize(store_->segments->count());
  uint64_t bytes = 0;
  for (uint32_t index = 0; index < store_->segments->count(); ++index) {
    uint64_t& written = room_.written_bytes[index];
    written = std::max(written, store_->segments->written_bytes(index));
    const uint64_t size = store_->segments->size_bytes(index);
    bytes += size - std::min(size, written);
  }
  return bytes;
}

void NvmeCore::WriteZeros(const Extent& extent) {
  if (!room_.zeros) room_.zeros = MakeAlignedPage(kZeroRunBytes);
  room_.zeroing = extent;
  UpdateFigures();
  const auto transfer = std::make_shared<Transfer>();
  transfer->direction = IoDirection::kWrite;
  transfer->spans.push_back(
      {store_->segments->file(extent.segment)->fd(), extent.offset, extent.length, room_.zeros.get()});
  Begin();
  transfer->on_end = [this, extent](const Status& status) {
    room_.zeroing.reset();
    store_->allocator.Free({&extent, 1});
    if (status.ok()) {
      room_.written_bytes[extent.segment] = extent.offset + extent.length;
      if (metrics_.prepared_bytes) metrics_.prepared_bytes->Add(extent.length);
    } else {
      room_.failed = true;  // what is put there is written all the same, and says for itself how it went
      Log(LogLevel::kWarning, "space is no longer written ahead of use: " + status.ToString());
    }
    UpdateFigures();
    RoomCame(OkStatus());
    End();
  };
  transfers_->Add(transfer);
}

}  // namespace terrace
