// Copies of a load into the memory of devices: their end, and how an engine's stream waits for them.
#include <algorithm>
#include <utility>

#include "lib/storage/load_registry.h"
#include "lib/storage/load_state.h"

namespace terrace {

// Asks for FinishCopy of what was enqueued: all of the unit's copy, or what there is of a refused one.
void LoadHandle::State::AwaitCopy(size_t unit, LoadTarget::Copied copied) {
  const auto finish = [this, unit](const Status& status) { FinishCopy(unit, status); };
  const std::shared_ptr<DeviceUse> use =
      devices;  // the copy may end, and with it the load, before Add returns
  if (!copied.status.ok()) return use->devices().poller().Add(std::move(copied.done), finish);
  use->Await(*target.CopierOf(items[units[unit].item]), CopyDirection::kToDevice, copied.bytes,
             std::move(copied.done), finish);
}

// The load lives: whoever would end it waits for device_copies, which is given back last.
void LoadHandle::State::FinishCopy(size_t unit, const Status& status) {
  BufferRef buffer;
  std::shared_ptr<Event> event;
  {
    std::lock_guard lock(mutex);
    buffer = std::move(slots[unit].buffer);
    event = std::move(slots[unit].copy);
  }
  // Before the load is seen to be over, whose caller may look at the pool.
  buffer.Reset();
  event.reset();
  {
    std::vector<BufferRef> dropped;  // released after the lock
    std::lock_guard lock(mutex);
    SettleCopy(unit, status.ok());
    if (!status.ok() && !IsVoid(unit)) EndAt({.item = units[unit].item, .unit = unit}, status, &dropped);
    SkipVoid();
    if (is_starving) {  // there is more room than when it began to starve
      starving_since = std::chrono::steady_clock::now();
      starving_since_injected = core->clock_->Now();
    }
    changed.notify_all();
  }
  PostDrain();
  WakeToPump();
  std::lock_guard lock(mutex);
  --device_copies;
  changed.notify_all();
}

std::vector<std::shared_ptr<Event>> LoadHandle::State::LastCopies(size_t end_unit) const {
  std::vector<std::shared_ptr<Event>> events;
  std::vector<const DeviceCopier*> seen;
  for (size_t unit = end_unit; unit-- > next_done;) {
    if (!slots[unit].copy) continue;
    // All of a copier's are on one stream.
    const DeviceCopier* copier = target.CopierOf(items[units[unit].item]);
    if (std::find(seen.begin(), seen.end(), copier) != seen.end()) continue;
    seen.push_back(copier);
    events.push_back(slots[unit].copy);
  }
  return events;
}

size_t LoadHandle::State::EndUnitOf(uint32_t layer) const {
  const auto group = std::find_if(units.begin(), units.end(),
                                  [layer](const LoadUnit& unit) { return unit.end_layer > layer; });
  if (group == units.end()) return units.size();
  const auto end = std::find_if(group, units.end(),
                                [group](const LoadUnit& unit) { return unit.end_layer != group->end_layer; });
  return static_cast<size_t>(end - units.begin());
}

Status LoadHandle::WaitLayerOn(uint32_t layer, Stream& stream, TimePoint deadline) {
  if (!state_ || !state_->target.has_device()) return WaitLayer(layer, deadline);
  State& state = *state_;
  if (Status status = state.core->CheckNotForked(); !status.ok()) return status;
  std::vector<std::shared_ptr<Event>> events;
  {
    std::unique_lock lock(state.mutex);
    if (state.order != LoadOrder::kLayerMajor)
      return FailedPreconditionError("the load is not layer-major; see WaitOn");
    const auto is_enqueued = [&] { return state.taken_layers.end > layer; };
    if (!state.WaitUntil(lock, deadline, [&] { return is_enqueued() || state.IsOver(); }))
      return DeadlineExceededError("layer " + std::to_string(layer) + " did not arrive in time");
    const size_t end_unit = state.EndUnitOf(layer);
    const bool has_failed =
        std::any_of(state.failures.begin(), state.failures.end(),
                    [end_unit](const State::Failure& failure) { return failure.unit < end_unit; });
    if (has_failed && state.report.loaded_layers <= layer) return state.report.status;
    if (!is_enqueued()) {
      return InvalidArgumentError("layer " + std::to_string(layer) + "; allowed: below " +
                                  std::to_string(state.report.loaded_layers));
    }
    events = state.LastCopies(end_unit);
  }
  for (const std::shared_ptr<Event>& event : events) {
    if (Status status = stream.WaitFor(*event); !status.ok()) return status;
  }
  return OkStatus();
}

Status LoadHandle::WaitOn(Stream& stream, TimePoint deadline) {
  if (!state_) return FailedPreconditionError("an empty load handle");
  State& state = *state_;
  if (Status status = state.core->CheckNotForked(); !status.ok()) return status;
  std::vector<std::shared_ptr<Event>> events;
  Status ended;
  {
    std::unique_lock lock(state.mutex);
    if (state.report.status.ok() && state.target.is_taken_by_caller())
      return FailedPreconditionError("the load has no sink: its chunks are taken with Next");
    const bool is_enqueued = state.WaitUntil(
        lock, deadline, [&state] { return state.next_take == state.units.size() && !state.is_copying; });
    if (!is_enqueued) return DeadlineExceededError("the load was not enqueued in time");
    events = state.LastCopies(state.units.size());
    ended = state.report.status;
  }
  for (const std::shared_ptr<Event>& event : events) {
    if (Status status = stream.WaitFor(*event); !status.ok()) return status;
  }
  return ended;
}

}  // namespace terrace
