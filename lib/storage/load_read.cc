// Reading a load's units: what is asked of a backend, and what came of it.
#include <algorithm>
#include <utility>

#include "lib/base/check.h"
#include "lib/storage/load_registry.h"
#include "lib/storage/load_state.h"

namespace terrace {

uint32_t LoadHandle::State::HeaderBytesOf(const LeaseItem& item) const {
  return static_cast<uint32_t>(item.meta.frame_bytes - RoundUp(item.meta.payload_bytes, kFrameAlignment));
}

uint64_t LoadHandle::State::Read::BytesOf(const LeaseItem& item) const {
  if (ranges.empty()) return item.meta.frame_bytes;
  uint64_t bytes = 0;
  for (const FrameRange& range : ranges) bytes += range.length;
  return bytes;
}

// Of an object that this load found in the host tier before, and counted; empty where it is not there any
// more or is another save of it, of other lengths.
BufferRef LoadHandle::State::BorrowAgain(const LeaseItem& item) const {
  if (!core->HasHostTier()) return {};
  std::vector<BufferRef> found = core->tiers_[0].backend->Borrow({&item.id, 1});
  if (found.empty() || !found[0]) return {};
  const Result<FrameHeader> header = ParseFrameHeader(found[0].frame());
  if (!header.ok() || header->frame_bytes != item.meta.frame_bytes ||
      !ManagerCore::CheckIdentity(*header, item).ok()) {
    return {};
  }
  return std::move(found[0]);
}

LoadHandle::State::Read LoadHandle::State::WindowRead(size_t unit, const ManagerCore::ReadSource& source,
                                                      BufferRef buffer) const {
  const LoadUnit& step = units[unit];
  Read read{.kind = Read::Kind::kFrame,
            .unit = unit,
            .tier = source.tier,
            .erasures = source.erasures,
            .buffer = std::move(buffer),
            .verifier = {},
            .ranges = {}};
  if (step.is_whole()) {
    read.verifier = std::make_shared<PieceVerifier>(read.buffer.frame());
    return read;
  }
  const FrameWindow window{HeaderBytesOf(items[step.item]), step.payload_begin, step.payload_end};
  read.kind = Read::Kind::kWindow;
  read.verifier = std::make_shared<PieceVerifier>(read.buffer.frame(), window);
  read.ranges = {{.frame_offset = 0, .length = window.header_bytes, .dst_offset = 0},
                 {.frame_offset = window.header_bytes + window.first_page(),
                  .length = window.size_bytes() - window.header_bytes,
                  .dst_offset = window.header_bytes}};
  if (window.first_page() == 0)
    read.ranges = {{.frame_offset = 0, .length = window.size_bytes(), .dst_offset = 0}};
  return read;
}

// A unit's pages but for the first, where the unit before read it: that one may be copied at this moment.
LoadHandle::State::Read LoadHandle::State::AssemblyRead(size_t unit, const Assembly& assembly) const {
  const LoadUnit& step = units[unit];
  const uint64_t header_bytes = HeaderBytesOf(items[step.item]);
  const uint64_t begin = step.is_first ? 0 : header_bytes + RoundUp(step.payload_begin, kFrameAlignment);
  const uint64_t end = header_bytes + RoundUp(step.payload_end, kFrameAlignment);
  Read read{.kind = Read::Kind::kAssembly,
            .unit = unit,
            .tier = assembly.tier,
            .erasures = assembly.erasures,
            .buffer = assembly.buffer,
            .verifier = assembly.verifier,
            .ranges = {}};
  if (begin < end) read.ranges.push_back({.frame_offset = begin, .length = end - begin, .dst_offset = begin});
  return read;
}

void LoadHandle::State::AddRead(Read read, std::vector<Batch>& batches) {
  const uint64_t bytes = read.BytesOf(items[units[read.unit].item]);
  const auto same_tier = [&](const Batch& batch) { return batch.tier == read.tier; };
  auto batch = std::find_if(batches.rbegin(), batches.rend(), same_tier);
  if (batch == batches.rend() || batch->bytes + bytes > kBatchBytes) {
    batches.push_back({.tier = read.tier, .bytes = 0, .reads = {}});
    batch = batches.rbegin();
  }
  batch->bytes += bytes;
  batch->reads.push_back(std::move(read));
}

void LoadHandle::State::Send(std::vector<Batch>& batches) {
  const TimePoint deadline = core->DeadlineIn(core->options_.io_deadline);
  for (Batch& batch : batches) {
    std::vector<GetOp> ops;
    ops.reserve(batch.reads.size());
    for (Read& read : batch.reads) {
      if (trace) read.sent = LoadTrace::Clock::now();
      GetOp op;
      op.id = items[units[read.unit].item].id;
      op.ranges = read.ranges;
      op.dst = read.buffer;
      op.deadline = deadline;
      op.cancel = cancel;
      op.on_bytes = [verifier = read.verifier](uint64_t offset, uint64_t n) {
        verifier->MarkPresent(offset, n);
      };
      ops.push_back(std::move(op));
    }
    auto reads = std::make_shared<std::vector<Read>>(std::move(batch.reads));
    core->tiers_[batch.tier].backend->Get(
        std::move(ops), [self = shared_from_this(), reads](std::span<const GetResult> results) {
          for (size_t i = 0; i < reads->size(); ++i) {
            Read read = std::move((*reads)[i]);  // its buffer goes with it
            self->FinishUnit(read, results[i]);
          }
        });
  }
  batches.clear();
}

void LoadHandle::State::FinishUnit(const Read& read, const GetResult& result) {
  // The device may keep the buffer for a while; the loads' share of the pool is free of it.
  const StatusCode code = result.status.code();
  if (code == StatusCode::kCancelled || code == StatusCode::kDeadlineExceeded)
    core->pool_->MarkOrphan(read.buffer);
  Status status;
  switch (read.kind) {
    case Read::Kind::kFrame:
      status = FinishFrame(read, result);
      break;
    case Read::Kind::kWindow:
      status = FinishWindow(read, result);
      break;
    case Read::Kind::kAssembly:
      status = FinishAssembly(read, result);
      break;
  }
  if (trace) trace->AddRead(read.sent);
  if (!status.ok()) {
    if (read.tier + 1 == core->tiers_.size() || cancel->load()) return Fail(read.unit, std::move(status));
    Unstart(read.unit, read.tier + 1);
  }
  // Another tier is asked, or the frame's next unit.
  if (!status.ok() || read.kind == Read::Kind::kAssembly) Pump();
}

Status LoadHandle::State::FinishFrame(const Read& read, const GetResult& result) {
  LeaseItem& item = items[units[read.unit].item];
  Status status = result.status;
  Status fits;
  PayloadRange place;
  if (status.ok()) {
    const Result<FrameHeader> header = read.verifier->Finish(item.meta.frame_bytes);
    status = header.ok() ? ManagerCore::CheckIdentity(*header, item) : header.status();
    if (status.ok()) {
      place = {header->header_bytes, header->payload_bytes};
      fits = LearnFrom(*header, item);
    }
  }
  core->FinishRead(item, read.tier, read.buffer, status, read.erasures);
  if (!fits.ok()) {
    Fail(read.unit, std::move(fits));
  } else if (status.ok()) {
    Ready(read.unit, read.tier, read.buffer, place);
  }
  return status;
}

Status LoadHandle::State::LearnFrom(const FrameHeader& header, LeaseItem& item) const {
  if (item.remote_tier == LeaseItem::kLocal) return OkStatus();
  item.meta.payload_bytes = header.payload_bytes;
  item.payload_tokens.end = item.payload_tokens.begin + header.content.tokens.size();
  return target.CheckFit(static_cast<size_t>(&item - items.data()), item);
}

Status LoadHandle::State::FinishWindow(const Read& read, const GetResult& result) {
  const LoadUnit& step = units[read.unit];
  const LeaseItem& item = items[step.item];
  Status status = result.status;
  if (status.ok()) {
    const Result<FrameHeader> header = read.verifier->Finish(item.meta.frame_bytes);
    status = header.ok() ? ManagerCore::CheckIdentity(*header, item) : header.status();
  }
  if (!status.ok()) {
    core->FinishRead(item, read.tier, read.buffer, status, read.erasures);
    return status;
  }
  if (step.is_first) core->tiers_[read.tier].hits->Add();
  const FrameWindow window{HeaderBytesOf(item), step.payload_begin, step.payload_end};
  Ready(read.unit, read.tier, read.buffer, {window.payload_at(), step.payload_end - step.payload_begin});
  return status;
}

Status LoadHandle::State::FinishAssembly(const Read& read, const GetResult& result) {
  const LoadUnit& step = units[read.unit];
  const LeaseItem& item = items[step.item];
  const uint32_t header_bytes = HeaderBytesOf(item);
  PieceVerifier& verifier = *read.verifier;
  Status status = result.status;
  if (status.ok()) {
    for (const FrameRange& range : read.ranges) verifier.MarkPresent(range.dst_offset, range.length);
    status = verifier.status();
    if (status.ok() && verifier.verified_end() < step.payload_end)
      status = DataLossError("frame: cut off, or a piece crosses a layer");
    // The header is the first unit's; it came with this one's buffer where the unit begins the frame.
    if (status.ok() && step.is_first) status = ManagerCore::CheckIdentity(*verifier.header(), item);
    if (status.ok() && step.is_last) status = verifier.Finish(item.meta.frame_bytes).status();
  }
  // Only a whole frame is published, and a unit counts as a read of the object where it is the last or
  // failed.
  if (!status.ok() || step.is_last) core->FinishRead(item, read.tier, read.buffer, status, read.erasures);
  {
    std::vector<BufferRef> dropped;  // released after the lock
    std::lock_guard lock(mutex);
    Assembly& assembly = assemblies[step.item];
    assembly.is_reading = false;
    if (!status.ok() || step.is_last) {
      assembly.phase = Assembly::Phase::kNever;
      dropped.push_back(std::move(assembly.buffer));
      assembly.verifier.reset();
    }
  }
  if (status.ok()) {
    Ready(read.unit, read.tier, read.buffer,
          {header_bytes + step.payload_begin, step.payload_end - step.payload_begin});
  }
  return status;
}

}  // namespace terrace
