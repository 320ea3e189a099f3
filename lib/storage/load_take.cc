// Taking a load's units in order, and how a load ends.
#include <algorithm>
#include <utility>

#include "lib/base/check.h"
#include "lib/base/wait_until.h"
#include "lib/storage/load_registry.h"
#include "lib/storage/load_state.h"

namespace terrace {

LoadHandle::State::~State() {
  if (!core) return;
  if (core->IsForkedChild()) {  // see LeasedChunk::State
    new std::vector<Slot>(std::move(slots));
    new std::vector<Assembly>(std::move(assemblies));
    return;
  }
  // Who ends a load's handle waited for them: they name the load, and do not keep it.
  TERRACE_CHECK(device_copies == 0) << "a load ends before its copies: " << device_copies;
  if (trace) trace->Record(core->traces_, report);
  if (room_notice != 0) core->pool_->CancelNotify(room_notice);
  if (core->loads_) core->loads_->Remove(this);
}

bool LoadHandle::State::IsVoid(size_t unit) const {
  return std::any_of(failures.begin(), failures.end(), [&](const Failure& failure) {
    return unit >= failure.unit && units[unit].item >= failure.item;
  });
}

bool LoadHandle::State::IsOver() const { return next_done == units.size(); }

void LoadHandle::State::SkipVoid() {
  // Else Drain comes here when the unit before next_take is with the target.
  while (!is_copying && next_take < units.size() && IsVoid(next_take)) {
    taken_layers.are_whole = false;
    EndGroup(taken_layers, ++next_take);
  }
  CountDone();
}

void LoadHandle::State::CountDone() {
  while (next_done < next_take && slots[next_done].phase != Slot::Phase::kCopying) {
    if (slots[next_done].is_copied && !IsVoid(next_done)) {
      CountTaken(next_done);
    } else {
      done_layers.are_whole = false;
    }
    EndGroup(done_layers, ++next_done);
  }
  report.loaded_layers = done_layers.end;
}

void LoadHandle::State::EndGroup(Layers& layers, size_t end_unit) const {
  if (order != LoadOrder::kLayerMajor) return;
  const uint32_t end_layer = units[end_unit - 1].end_layer;
  const bool ends_group = end_unit == units.size() || units[end_unit].end_layer != end_layer;
  if (ends_group && layers.are_whole) layers.end = end_layer;
}

void LoadHandle::State::CountTaken(size_t unit) {
  const LoadUnit& step = units[unit];
  report.loaded_bytes += slots[unit].place.length;
  if (step.is_last) ++report.loaded_objects;
  --units_left[step.item];
  for (; whole_items < items.size() && units_left[whole_items] == 0; ++whole_items) {
    const LeaseItem& item = items[whole_items];
    const bool ends_chunk =
        whole_items + 1 == items.size() || items[whole_items + 1].chunk_index != item.chunk_index;
    if (!ends_chunk || item.matched_tokens.end < first_whole_token) continue;
    report.recompute_from = item.matched_tokens.end;
    report.loaded_tokens = item.matched_tokens.end - begin_token;
  }
}

void LoadHandle::State::Ready(size_t unit, size_t tier, BufferRef buffer, PayloadRange place) {
  bool is_next = false;
  bool is_void;
  {
    std::lock_guard lock(mutex);
    Slot& slot = slots[unit];
    is_void = IsVoid(unit);
    if (is_void) {
      resident_bytes -= std::exchange(slot.charge, 0);
      slot.phase = Slot::Phase::kTaken;
    } else {
      slot.buffer = std::move(buffer);
      slot.place = place;
      slot.tier = tier;
      slot.phase = Slot::Phase::kReady;
      is_next = unit == next_take;
      changed.notify_all();
    }
  }
  if (is_void) {
    buffer.Reset();
    return Pump();  // units of earlier objects may have waited for this one's room
  }
  if (is_next && !target.is_taken_by_caller()) PostDrain();
  core->loads_->WakeStarving(this);
}

void LoadHandle::State::EndAt(Failure failure, Status why, std::vector<BufferRef>* dropped) {
  failures.push_back(failure);
  for (size_t unit = failure.unit; unit < started_end; ++unit) {
    Slot& slot = slots[unit];
    if (slot.phase != Slot::Phase::kReady || units[unit].item < failure.item) continue;
    resident_bytes -= std::exchange(slot.charge, 0);
    dropped->push_back(std::move(slot.buffer));
    slot.phase = Slot::Phase::kTaken;
  }
  for (size_t i = failure.item; i < assemblies.size(); ++i) {
    assemblies[i].phase = Assembly::Phase::kNever;
    dropped->push_back(std::move(assemblies[i].buffer));
    assemblies[i].verifier.reset();
  }
  report.status = std::move(why);
  SkipVoid();
  changed.notify_all();
}

void LoadHandle::State::Fail(size_t unit, Status status) {
  {
    std::vector<BufferRef> dropped;  // released after the lock
    std::lock_guard lock(mutex);
    resident_bytes -= std::exchange(slots[unit].charge, 0);
    slots[unit].phase = Slot::Phase::kTaken;
    if (!IsVoid(unit)) EndAt({.item = units[unit].item, .unit = unit}, std::move(status), &dropped);
  }
  SetStarving(false, nullptr);
  // What is left, units of earlier objects, may be ready already, or have waited for this one's room.
  if (!target.is_taken_by_caller()) PostDrain();
  Pump();
  ReleaseIfKept();
}

bool LoadHandle::State::CanDrain() const {
  return next_take < units.size() && slots[next_take].phase == Slot::Phase::kReady &&
         device_copies < kMaxDeviceCopies;
}

void LoadHandle::State::PostDrain() {
  {
    std::lock_guard lock(mutex);
    if (is_draining || !CanDrain()) return;
    is_draining = true;
  }
  // Notices an executor that drops what it was given.
  struct Turn {
    std::shared_ptr<State> load;
    bool has_run = false;
    explicit Turn(std::shared_ptr<State> l) : load(std::move(l)) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      if (!has_run) load->DrainWasDropped();
    }
  };
  core->loads_->Post([turn = std::make_shared<Turn>(shared_from_this())] {
    turn->has_run = true;
    turn->load->Drain();
  });
}

void LoadHandle::State::DrainWasDropped() {
  {
    std::vector<BufferRef> dropped;  // released after the lock
    std::lock_guard lock(mutex);
    is_draining = false;
    if (next_take == units.size()) return;
    EndAt({.item = 0, .unit = next_take}, UnavailableError("the executor did not run the load's copies"),
          &dropped);
  }
  SetStarving(false, nullptr);
  ReleaseIfKept();
}

void LoadHandle::State::Drain() {
  std::unique_lock lock(mutex);
  while (CanDrain()) {
    const size_t unit = next_take++;
    slots[unit].phase = Slot::Phase::kCopying;
    is_copying = true;
    lock.unlock();
    CopyUnit(unit);
    Pump();
    lock.lock();
  }
  is_draining = false;
  lock.unlock();
  ReleaseIfKept();
}

void LoadHandle::State::CopyUnit(size_t unit) {
  const LoadUnit& step = units[unit];
  Slot& slot = slots[unit];
  if (trace) slot.copy_begin = LoadTrace::Clock::now();
  LoadTarget::Copied copied =
      target.Copy(step, items[step.item], slot.buffer.frame().subspan(slot.place.offset, slot.place.length));
  if (!copied.status.ok())
    devices->CountRefused(*target.CopierOf(items[step.item]), CopyDirection::kToDevice);
  if (!copied.done) slot.buffer.Reset();
  {
    std::vector<BufferRef> dropped;  // released after the lock
    std::lock_guard lock(mutex);
    const bool is_void = IsVoid(unit);
    taken_layers.are_whole &= copied.status.ok() && !is_void;
    EndGroup(taken_layers, unit + 1);
    is_copying = false;
    if (copied.done) {
      if (copied.is_marked) slot.copy = copied.done;
      ++device_copies;
    } else {
      SettleCopy(unit, copied.status.ok());
    }
    if (!copied.status.ok() && !is_void) EndAt({.item = step.item, .unit = unit}, copied.status, &dropped);
    SkipVoid();
    changed.notify_all();
  }
  if (!copied.done) return;
  AwaitCopy(unit, std::move(copied));
}

void LoadHandle::State::SettleCopy(size_t unit, bool is_copied) {
  Slot& slot = slots[unit];
  slot.phase = Slot::Phase::kTaken;
  slot.is_copied = is_copied;
  resident_bytes -= std::exchange(slot.charge, 0);
  if (trace) trace->AddCopy(slot.copy_begin);
}

void LoadHandle::State::ReleaseBytes(uint64_t bytes) {
  {
    std::lock_guard lock(mutex);
    resident_bytes -= bytes;
  }
  Pump();
}

void LoadHandle::State::Cancel(Status why, TimePoint deadline) {
  cancel->store(true);
  {
    std::vector<BufferRef> dropped;  // released after the lock
    std::shared_ptr<Lease::State> ended;
    std::shared_ptr<DeviceUse> unused;
    std::unique_lock lock(mutex);
    if (next_take < units.size()) EndAt({.item = 0, .unit = next_take}, std::move(why), &dropped);
    const auto is_untouched = [this] { return !is_copying && device_copies == 0; };
    if (!terrace::WaitUntil(changed, lock, deadline, is_untouched)) return;
    ended.swap(lease);
    unused.swap(devices);
    lock.unlock();
  }
  SetStarving(false, nullptr);
  ReleaseIfKept();
}

void LoadHandle::State::ReleaseIfKept() {
  {
    std::lock_guard lock(mutex);
    if (!IsOver()) return;
  }
  core->loads_->Release(this);
}

}  // namespace terrace
