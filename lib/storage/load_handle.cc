// LoadHandle and LeasedChunk: the caller's side of a load.
#include <algorithm>
#include <cstring>

#include "lib/storage/load_state.h"

namespace terrace {
namespace {

// How often a load that holds nothing asks a full pool again.
constexpr std::chrono::milliseconds kParkedRetry{2};

}  // namespace

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
  auto chunk = std::make_unique<LeasedChunk::State>();
  if (Status status = state.core->CheckNotForked(); !status.ok()) return status;
  TimePoint give_up = kNoDeadline;  // of waiting for room; real time
  std::unique_lock lock(state.mutex);
  const auto arrived = [&] {
    return state.next_take >= state.items.size() || state.next_take >= state.failed_at ||
           state.slots[state.next_take].phase == State::Slot::Phase::kReady;
  };
  while (!arrived()) {
    const TimePoint now = std::chrono::steady_clock::now();
    if (now >= deadline) return DeadlineExceededError("the next chunk did not arrive in time");
    if (!state.is_parked || state.next_start != state.next_take) {
      if (deadline == kNoDeadline) {
        state.changed.wait(lock);
      } else {
        state.changed.wait_until(lock, deadline);
      }
      continue;
    }
    const size_t parked = state.next_start;
    const bool is_first = give_up == kNoDeadline;  // room may have come while nobody asked
    if (is_first)
      give_up = now + std::chrono::duration_cast<TimePoint::duration>(state.core->options_.io_deadline);
    const bool is_over = now >= give_up;
    if (!is_first && !is_over) state.changed.wait_until(lock, std::min(deadline, now + kParkedRetry));
    lock.unlock();
    if (is_over) {
      state.GiveUp(parked);
    } else {
      state.Pump();
    }
    lock.lock();
  }
  if (state.next_take >= state.items.size() || state.next_take >= state.failed_at) {
    return std::optional<LeasedChunk>();
  }
  const size_t index = state.next_take++;
  State::Slot& slot = state.slots[index];
  chunk->load = state_;
  chunk->item = state.items[index];
  chunk->buffer = std::move(slot.buffer);
  chunk->header_bytes = slot.header_bytes;
  slot.phase = State::Slot::Phase::kTaken;
  state.CountTaken(index);
  return std::optional<LeasedChunk>(LeasedChunk(std::move(chunk)));
}

LoadReport LoadHandle::Wait(TimePoint deadline) {
  if (!state_) return LoadReport{.status = FailedPreconditionError("an empty load handle")};
  if (!state_->memory.empty()) {
    for (size_t i = 0; i < state_->items.size(); ++i) {
      Result<std::optional<LeasedChunk>> next = Next(deadline);
      if (!next.ok()) {
        state_->Cancel(next.status());
        break;
      }
      if (!next->has_value()) break;
      const Bytes payload = (*next)->payload();
      if (!payload.empty()) std::memcpy(state_->memory[i].data(), payload.data(), payload.size());
    }
  }
  return report();
}

void LoadHandle::Cancel() {
  if (state_ && !state_->core->IsForkedChild()) state_->Cancel(CancelledError("the load was cancelled"));
}

LoadReport LoadHandle::report() const {
  if (!state_) return {};
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

Bytes LeasedChunk::payload() const {
  if (!state_) return {};
  return state_->buffer.frame().subspan(state_->header_bytes, state_->item.meta.payload_bytes);
}

}  // namespace terrace
