// LoadHandle and LeasedChunk: the caller's side of a load.
#include <algorithm>

#include "lib/storage/load_registry.h"
#include "lib/storage/load_state.h"

namespace terrace {
namespace {

// How often a load that waits for room looks at the injected clock, and asks the pool again in case that the
// executor is busy.
constexpr std::chrono::milliseconds kStarvingCheck{20};

}  // namespace

bool LoadHandle::State::WaitUntil(std::unique_lock<std::mutex>& lock, TimePoint deadline,
                                  const std::function<bool()>& arrived) {
  ++waiters;
  // What is waited for may not have been next when it found no room.
  wants_pump |= next_take < units.size() && slots[next_take].phase == Slot::Phase::kWaiting;
  while (!arrived()) {
    const TimePoint now = std::chrono::steady_clock::now();
    if (now >= deadline) break;
    if (is_starving && IsStarvedOut()) {
      GiveUp(lock);
    } else if (std::exchange(wants_pump, false)) {
      lock.unlock();
      Pump();
      lock.lock();
    } else if (is_starving) {
      const bool has_word = changed.wait_until(lock, std::min<TimePoint>(deadline, now + kStarvingCheck)) ==
                            std::cv_status::no_timeout;
      wants_pump |= !has_word;
    } else if (deadline == kNoDeadline) {
      changed.wait(lock);
    } else {
      changed.wait_until(lock, deadline);
    }
  }
  if (std::exchange(wants_pump, false)) {  // nobody else would; a caller that polls is one that waits
    lock.unlock();
    Pump();
    lock.lock();
  }
  --waiters;
  return arrived();
}

bool LoadHandle::State::IsStarvedOut() const {
  if (next_done < next_take) return false;  // what is being copied gives room when it is done
  const Duration limit = core->options_.io_deadline;
  return std::chrono::steady_clock::now() - starving_since >= limit ||
         core->clock_->Now() - starving_since_injected >= limit;
}

// The next unit never got room.
void LoadHandle::State::GiveUp(std::unique_lock<std::mutex>& lock) {
  std::vector<BufferRef> dropped;
  if (next_take < units.size()) {
    EndAt({.item = units[next_take].item, .unit = next_take},
          ResourceExhaustedError("no room in the pool for the next chunk"), &dropped);
  }
  lock.unlock();
  dropped.clear();
  SetStarving(false, nullptr);
  Pump();
  lock.lock();
}

LoadHandle::LoadHandle() = default;
LoadHandle::LoadHandle(LoadHandle&&) noexcept = default;
LoadHandle::LoadHandle(std::shared_ptr<State> state) : state_(std::move(state)) {}

LoadHandle::~LoadHandle() { Cancel(); }

LoadHandle& LoadHandle::operator=(LoadHandle&& other) noexcept {
  if (this == &other) return *this;
  Cancel();
  state_ = std::move(other.state_);
  return *this;
}

Result<std::optional<LeasedChunk>> LoadHandle::Next(TimePoint deadline) {
  if (!state_) return FailedPreconditionError("an empty load handle");
  State& state = *state_;
  if (Status status = state.core->CheckNotForked(); !status.ok()) return status;
  if (!state.target.is_taken_by_caller())
    return FailedPreconditionError("the load has a sink: Next hands out nothing; see Wait");
  auto chunk = std::make_unique<LeasedChunk::State>();
  std::unique_lock lock(state.mutex);
  const bool arrived = state.WaitUntil(lock, deadline, [&state] {
    return state.next_take == state.units.size() ||
           state.slots[state.next_take].phase == State::Slot::Phase::kReady;
  });
  if (!arrived) return DeadlineExceededError("the next chunk did not arrive in time");
  if (state.next_take == state.units.size()) return std::optional<LeasedChunk>();
  const size_t unit = state.next_take++;
  State::Slot& slot = state.slots[unit];
  chunk->load = state_;
  chunk->item = state.items[unit];
  chunk->buffer = std::move(slot.buffer);
  chunk->place = slot.place;
  chunk->tier = slot.tier;
  chunk->charge = std::exchange(slot.charge, 0);
  slot.phase = State::Slot::Phase::kTaken;
  slot.is_copied = true;
  state.SkipVoid();
  return std::optional<LeasedChunk>(LeasedChunk(std::move(chunk)));
}

LoadReport LoadHandle::Wait(TimePoint deadline) {
  if (!state_) return LoadReport{.status = FailedPreconditionError("an empty load handle")};
  State& state = *state_;
  if (state.core->IsForkedChild()) return LoadReport{.status = state.core->CheckNotForked()};
  if (!state.target.is_taken_by_caller()) {
    std::unique_lock lock(state.mutex);
    const bool is_over = state.WaitUntil(lock, deadline, [&state] { return state.IsOver(); });
    lock.unlock();
    if (!is_over) state.Cancel(DeadlineExceededError("the load was not done in time"));
  }
  return report();
}

Status LoadHandle::WaitLayer(uint32_t layer, TimePoint deadline) {
  if (!state_) return FailedPreconditionError("an empty load handle");
  State& state = *state_;
  if (Status status = state.core->CheckNotForked(); !status.ok()) return status;
  std::unique_lock lock(state.mutex);
  if (state.report.status.ok() && state.order != LoadOrder::kLayerMajor)
    return FailedPreconditionError("the load is not layer-major; see Wait");
  const auto is_there = [&] { return state.report.loaded_layers > layer; };
  if (!state.WaitUntil(lock, deadline, [&] { return is_there() || state.IsOver(); }))
    return DeadlineExceededError("layer " + std::to_string(layer) + " did not arrive in time");
  if (is_there()) return OkStatus();
  if (!state.report.status.ok()) return state.report.status;
  return InvalidArgumentError("layer " + std::to_string(layer) + "; allowed: below " +
                              std::to_string(state.report.loaded_layers));
}

void LoadHandle::Cancel() {
  if (state_ && !state_->core->IsForkedChild()) state_->Cancel(CancelledError("the load was cancelled"));
}

LoadReport LoadHandle::report() const {
  if (!state_) return {};
  if (state_->core->IsForkedChild()) return LoadReport{.status = state_->core->CheckNotForked()};
  std::lock_guard lock(state_->mutex);
  return state_->report;
}

LeasedChunk::LeasedChunk() = default;
LeasedChunk::~LeasedChunk() = default;
LeasedChunk::LeasedChunk(LeasedChunk&&) noexcept = default;
LeasedChunk& LeasedChunk::operator=(LeasedChunk&&) noexcept = default;
LeasedChunk::LeasedChunk(std::unique_ptr<State> state) : state_(std::move(state)) {}

ObjectId LeasedChunk::id() const { return state_ ? state_->item.id : ObjectId{}; }
uint64_t LeasedChunk::chunk_index() const { return state_ ? state_->item.chunk_index : 0; }
TokenRange LeasedChunk::payload_tokens() const { return state_ ? state_->item.payload_tokens : TokenRange{}; }
TokenRange LeasedChunk::matched_tokens() const { return state_ ? state_->item.matched_tokens : TokenRange{}; }
size_t LeasedChunk::tier() const { return state_ ? state_->tier : 0; }

Bytes LeasedChunk::payload() const {
  if (!state_) return {};
  return state_->buffer.frame().subspan(state_->place.offset, state_->place.length);
}

}  // namespace terrace
