// Starting a load's units: the window, room in the pool, and what loads give back for each other.
#include <algorithm>
#include <utility>

#include "lib/base/check.h"
#include "lib/storage/load_registry.h"
#include "lib/storage/load_state.h"

namespace terrace {

uint64_t LoadHandle::State::ChargeOf(size_t unit) const {
  const LeaseItem& item = items[units[unit].item];
  if (units[unit].is_whole()) return PoolBytes(item.meta.frame_bytes);
  // Frames that are put together fit the window, all of them.
  if (!assemblies.empty() && assemblies[units[unit].item].phase != Assembly::Phase::kNever) return 0;
  const FrameWindow window{HeaderBytesOf(item), units[unit].payload_begin, units[unit].payload_end};
  return PoolBytes(window.size_bytes());
}

void LoadHandle::State::Pump() {
  std::unique_lock lock(mutex);
  // One thread starts units, so that they start in order and one that finds no room can be taken back.
  pump_again = true;
  if (is_pumping) return;
  is_pumping = true;
  wants_pump = false;
  std::vector<Batch> batches;
  while (std::exchange(pump_again, false)) {
    bool is_barred = false;
    while (const std::optional<size_t> unit = NextToStart(&is_barred)) {
      const bool is_head = *unit == next_take;
      // What nobody waits for is not read while another load starves: it would be shed for that one, and read
      // again, for ever.
      const bool is_wanted = is_head && (waiters > 0 || !target.is_taken_by_caller());
      lock.unlock();
      const bool started = (is_wanted || !core->loads_->OthersStarve(this)) && Begin(*unit, batches);
      if (!started) Unstart(*unit, std::nullopt);
      if (started && is_head) SetStarving(false, nullptr);
      lock.lock();
      if (!started) break;
    }
    lock.unlock();
    // Its own units that are ready beyond the next one keep the window from it: the next one was taken back.
    const bool made_room = is_barred && ShedFarthest(/*for_itself=*/true);
    if (is_barred && !made_room) SetStarving(true, nullptr);
    Send(batches);
    lock.lock();
    pump_again |= made_room;
  }
  is_pumping = false;
}

// The next unit that the window has room for, as kReading. `is_barred`: the window has none, and the unit is
// the one to be taken next: nothing goes on before something is given back.
std::optional<size_t> LoadHandle::State::NextToStart(bool* is_barred) {
  while (next_start < units.size() &&
         (slots[next_start].phase != Slot::Phase::kWaiting || IsVoid(next_start))) {
    ++next_start;
  }
  if (next_start == units.size()) return std::nullopt;
  const size_t unit = next_start;
  const uint64_t charge = ChargeOf(unit);
  if (resident_bytes > 0 && resident_bytes + charge > window_bytes) {
    // What is being copied gives room when it is done.
    *is_barred = unit == next_take && next_done == next_take;
    return std::nullopt;
  }
  // Units of one frame are read one after another: they share its buffer.
  if (!assemblies.empty() && assemblies[units[unit].item].is_reading) return std::nullopt;
  resident_bytes += charge;
  slots[unit].charge = charge;
  slots[unit].phase = Slot::Phase::kReading;
  started_end = std::max(started_end, ++next_start);
  return unit;
}

void LoadHandle::State::Unstart(size_t unit, std::optional<size_t> from_tier) {
  std::lock_guard lock(mutex);
  if (from_tier) slots[unit].from_tier = static_cast<uint8_t>(*from_tier);
  resident_bytes -= std::exchange(slots[unit].charge, 0);
  slots[unit].phase = Slot::Phase::kWaiting;
  next_start = std::min(next_start, unit);
}

// False: no room for now. True: it was started, or failed.
bool LoadHandle::State::Begin(size_t unit, std::vector<Batch>& batches) {
  const LoadUnit& step = units[unit];
  const LeaseItem& item = items[step.item];
  size_t from_tier;
  {
    std::lock_guard lock(mutex);
    from_tier = slots[unit].from_tier;
  }
  if (ContinueAssembly(unit, batches)) return true;
  ManagerCore::ReadSource source;
  if (!step.is_first && from_tier == 0) source.borrowed = BorrowAgain(item);
  if (!source.borrowed) source = core->FindSource(item, from_tier);
  if (source.borrowed) {
    TakeBorrowed(unit, std::move(source.borrowed));
    return true;
  }
  if (source.tier == ManagerCore::kNoTier) {
    Fail(unit, NotFoundError("the chunk left every tier after the lookup"));
    return true;
  }
  if (BeginAssembly(unit, source, batches)) return true;
  const FrameWindow window{HeaderBytesOf(item), step.payload_begin, step.payload_end};
  const uint64_t bytes = kTierPageBytes + (step.is_whole() ? item.meta.frame_bytes : window.size_bytes());
  const bool never_fits = bytes > core->pool_->largest_buffer_bytes();
  BufferRef buffer = never_fits ? BufferRef() : AllocateFor(unit, bytes);
  if (!buffer) {
    const bool waits = target.kind() != LoadTarget::Kind::kNowhere || !IsHead(unit);
    if (waits && !never_fits) return false;
    Fail(unit, ResourceExhaustedError("no room in the pool for " + std::to_string(bytes) + " bytes"));
    return true;
  }
  AddRead(WindowRead(unit, source, std::move(buffer)), batches);
  return true;
}

// The next unit of a frame that is being put together.
bool LoadHandle::State::ContinueAssembly(size_t unit, std::vector<Batch>& batches) {
  const LoadUnit& step = units[unit];
  std::unique_lock lock(mutex);
  if (assemblies.empty() || step.is_whole()) return false;
  Assembly& assembly = assemblies[step.item];
  if (assembly.phase != Assembly::Phase::kFilling) return false;
  assembly.is_reading = true;
  Read read = AssemblyRead(unit, assembly);
  lock.unlock();
  AddRead(std::move(read), batches);
  return true;
}

// The first unit of a frame. False: it is read window by window, for want of room or after a failure.
bool LoadHandle::State::BeginAssembly(size_t unit, const ManagerCore::ReadSource& source,
                                      std::vector<Batch>& batches) {
  const LoadUnit& step = units[unit];
  {
    std::lock_guard lock(mutex);
    if (assemblies.empty() || step.is_whole() || assemblies[step.item].phase == Assembly::Phase::kNever)
      return false;
  }
  const uint64_t frame_bytes = items[step.item].meta.frame_bytes;
  Result<BufferRef> frame = core->pool_->Allocate(kTierPageBytes + frame_bytes, BufferUse::kLoad);
  std::unique_lock lock(mutex);
  Assembly& assembly = assemblies[step.item];
  if (!frame.ok() || !step.is_first || assembly.phase != Assembly::Phase::kNone) {
    assembly.phase = Assembly::Phase::kNever;
    const uint64_t charge = ChargeOf(unit);
    slots[unit].charge += charge;
    resident_bytes += charge;
    return false;
  }
  assembly = {.phase = Assembly::Phase::kFilling,
              .is_reading = true,
              .tier = source.tier,
              .erasures = source.erasures,
              .buffer = *frame,
              .verifier = std::make_shared<PieceVerifier>(frame->frame())};
  Read read = AssemblyRead(unit, assembly);
  lock.unlock();
  AddRead(std::move(read), batches);
  return true;
}

void LoadHandle::State::TakeBorrowed(size_t unit, BufferRef frame) {
  const LoadUnit& step = units[unit];
  LeaseItem& item = items[step.item];
  if (item.remote_tier == LeaseItem::kLocal) {
    const uint64_t begin = HeaderBytesOf(item) + step.payload_begin;
    return Ready(unit, 0, std::move(frame), {begin, step.payload_end - step.payload_begin});
  }
  const Result<FrameHeader> header = ParseFrameHeader(frame.frame());
  TERRACE_CHECK(header.ok()) << "a published frame lost its header: " << header.status().ToString();
  if (Status status = LearnFrom(*header, item); !status.ok()) return Fail(unit, std::move(status));
  Ready(unit, 0, std::move(frame), {header->header_bytes, header->payload_bytes});
}

bool LoadHandle::State::IsHead(size_t unit) const {
  std::lock_guard lock(mutex);
  return unit == next_take;
}

BufferRef LoadHandle::State::AllocateFor(size_t unit, uint64_t bytes) {
  BufferPool& pool = *core->pool_;
  const auto allocate = [&] {
    Result<BufferRef> buffer = pool.Allocate(bytes, BufferUse::kLoad);
    return buffer.ok() ? *std::move(buffer) : BufferRef();
  };
  BufferRef buffer = allocate();
  // A prefetch neither waits for room nor takes it from anyone.
  if (buffer || !IsHead(unit) || target.kind() == LoadTarget::Kind::kNowhere) return buffer;
  SetStarving(true, core->loads_.get());
  while (!buffer && (core->loads_->ShedOne(this) || ShedFarthest(/*for_itself=*/true))) buffer = allocate();
  if (buffer) return buffer;
  uint64_t notice = pool.NotifyOnRoom([weak = weak_from_this(), registry = core->loads_] {
    registry->Post([weak] {
      if (const auto self = weak.lock()) self->Pump();
    });
  });
  buffer = allocate();  // room that came before the notice was asked for
  {
    std::lock_guard lock(mutex);
    if (!buffer) std::swap(notice, room_notice);
  }
  if (notice != 0) pool.CancelNotify(notice);
  return buffer;
}

void LoadHandle::State::SetStarving(bool starving, LoadRegistry* for_room_in) {
  if (for_room_in != nullptr) for_room_in->BeginStarving(this);
  {
    std::lock_guard lock(mutex);
    if (is_starving == starving) return;
    is_starving = starving;
    starving_since = std::chrono::steady_clock::now();
    starving_since_injected = core->clock_->Now();
    changed.notify_all();
  }
  if (!starving) core->loads_->EndStarving(this);
}

void LoadHandle::State::WakeToPump() {
  {
    std::lock_guard lock(mutex);
    if (waiters > 0) {
      wants_pump = true;
      changed.notify_all();
      return;
    }
  }
  core->loads_->Post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Pump();
  });
}

// The unit that is taken next is left to whoever takes it: a caller that waits, or the executor.
std::optional<size_t> LoadHandle::State::FindSheddable(bool for_itself) const {
  const bool has_taker = for_itself || waiters > 0 || !target.is_taken_by_caller();
  for (size_t unit = started_end; unit-- > next_take;) {
    if (slots[unit].phase != Slot::Phase::kReady || (unit == next_take && has_taker)) continue;
    if (!assemblies.empty() && assemblies[units[unit].item].is_reading) continue;
    return unit;
  }
  return std::nullopt;
}

bool LoadHandle::State::DropIdleAssembly(std::vector<BufferRef>* dropped) {
  for (size_t i = assemblies.size(); i-- > 0;) {
    Assembly& assembly = assemblies[i];
    if (assembly.phase != Assembly::Phase::kFilling || assembly.is_reading) continue;
    assembly.phase = Assembly::Phase::kNever;
    dropped->push_back(std::move(assembly.buffer));
    assembly.verifier.reset();
    return true;
  }
  return false;
}

size_t LoadHandle::State::SheddableDistance() const {
  std::lock_guard lock(mutex);
  if (const std::optional<size_t> unit = FindSheddable(false)) return *unit - next_take + 1;
  const auto is_idle = [](const Assembly& assembly) {
    return assembly.phase == Assembly::Phase::kFilling && !assembly.is_reading;
  };
  return std::any_of(assemblies.begin(), assemblies.end(), is_idle) ? 1 : 0;
}

bool LoadHandle::State::ShedFarthest(bool for_itself) {
  std::vector<BufferRef> dropped;  // released after the lock
  std::lock_guard lock(mutex);
  const std::optional<size_t> unit = FindSheddable(for_itself);
  if (!unit) return DropIdleAssembly(&dropped);
  Slot& slot = slots[*unit];
  dropped.push_back(std::move(slot.buffer));
  slot.phase = Slot::Phase::kWaiting;
  resident_bytes -= std::exchange(slot.charge, 0);
  next_start = std::min(next_start, *unit);
  if (assemblies.empty()) return true;
  Assembly& assembly = assemblies[units[*unit].item];
  if (assembly.phase == Assembly::Phase::kFilling) {
    // Its later units are read on their own; what was taken of it stays valid.
    assembly.phase = Assembly::Phase::kNever;
    dropped.push_back(std::move(assembly.buffer));
    assembly.verifier.reset();
  }
  return true;
}

}  // namespace terrace
