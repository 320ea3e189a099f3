// Taking a load's units in order, and how a load ends.
#include <algorithm>
#include <utility>

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
  if (trace) trace->Record(core->traces_, report);
  if (room_notice != 0) core->pool_->CancelNotify(room_notice);
  if (core->loads_) core->loads_->Remove(this);
}

bool LoadHandle::State::IsVoid(size_t unit) const {
  return std::any_of(failures.begin(), failures.end(), [&](const Failure& failure) {
    return unit >= failure.unit && units[unit].item >= failure.item;
  });
}

bool LoadHandle::State::IsOver() const { return next_take == units.size() && !is_copying; }

void LoadHandle::State::SkipVoid() {
  if (is_copying) return;  // Drain comes here when it has counted what it copies
  while (next_take < units.size() && IsVoid(next_take)) {
    group_is_whole = false;
    EndGroups(++next_take);
  }
}

// Steps before `end_unit` are done.
void LoadHandle::State::EndGroups(size_t end_unit) {
  if (order != LoadOrder::kLayerMajor) return;
  const uint32_t end_layer = units[end_unit - 1].end_layer;
  const bool ends_group = end_unit == units.size() || units[end_unit].end_layer != end_layer;
  if (ends_group && group_is_whole) report.loaded_layers = end_layer;
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

void LoadHandle::State::PostDrain() {
  {
    std::lock_guard lock(mutex);
    if (is_draining || next_take == units.size() || slots[next_take].phase != Slot::Phase::kReady) return;
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
  while (next_take < units.size() && slots[next_take].phase == Slot::Phase::kReady) {
    const size_t unit = next_take++;
    Slot& slot = slots[unit];
    BufferRef buffer = std::move(slot.buffer);
    const PayloadRange place = slot.place;
    slot.phase = Slot::Phase::kTaken;
    is_copying = true;
    lock.unlock();
    const LoadUnit& step = units[unit];
    const LoadTrace::Clock::time_point begin =
        trace ? LoadTrace::Clock::now() : LoadTrace::Clock::time_point{};
    target.Copy(step, items[step.item], buffer.frame().subspan(place.offset, place.length));
    buffer.Reset();
    if (trace) trace->AddCopy(begin);
    lock.lock();
    is_copying = false;
    resident_bytes -= std::exchange(slot.charge, 0);
    CountTaken(unit);
    EndGroups(unit + 1);
    SkipVoid();
    changed.notify_all();
    lock.unlock();
    Pump();
    lock.lock();
  }
  is_draining = false;
  lock.unlock();
  ReleaseIfKept();
}

void LoadHandle::State::ReleaseBytes(uint64_t bytes) {
  {
    std::lock_guard lock(mutex);
    resident_bytes -= bytes;
  }
  Pump();
}

void LoadHandle::State::Cancel(Status why) {
  cancel->store(true);
  {
    std::vector<BufferRef> dropped;  // released after the lock
    std::shared_ptr<Lease::State> ended;
    std::unique_lock lock(mutex);
    if (next_take < units.size()) EndAt({.item = 0, .unit = next_take}, std::move(why), &dropped);
    changed.wait(lock, [this] { return !is_copying; });
    ended.swap(lease);
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
