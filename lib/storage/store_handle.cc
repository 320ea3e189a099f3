// StoreHandle: the caller's end of a Store of views.
#include <utility>

#include "lib/base/status_macros.h"
#include "lib/base/wait_until.h"
#include "lib/storage/store_state.h"

namespace terrace {

void StoreHandle::State::Free() {
  std::function<void(const StoreReport&)> call;
  StoreReport final_report;
  {
    std::lock_guard lock(mutex);
    if (is_free) return;
    is_free = true;
    call = std::move(on_source_free);
    final_report = report;
    changed.notify_all();
  }
  if (!call) return;
  try {
    call(final_report);
  } catch (...) {
    core->callback_exceptions_->Add();
  }
}

namespace {

// In a forked child nobody would wake who waits, and the lock may have been held at the fork.
Status CheckUsable(const StoreHandle::State* state) {
  if (state == nullptr) return FailedPreconditionError("an empty store handle");
  if (state->core->IsForkedChild())
    return FailedPreconditionError("the process was forked after the store began");
  return OkStatus();
}

}  // namespace

StoreHandle::StoreHandle() = default;
StoreHandle::~StoreHandle() = default;
StoreHandle::StoreHandle(StoreHandle&&) noexcept = default;
StoreHandle& StoreHandle::operator=(StoreHandle&&) noexcept = default;
StoreHandle::StoreHandle(std::shared_ptr<State> state) : state_(std::move(state)) {}

StoreReport StoreHandle::Wait(TimePoint deadline) {
  if (Status status = CheckUsable(state_.get()); !status.ok())
    return StoreReport{.status = std::move(status)};
  std::unique_lock lock(state_->mutex);
  if (!WaitUntil(state_->changed, lock, deadline, [&] { return state_->is_free; })) {
    return StoreReport{.status = DeadlineExceededError("the views' memory is still being read")};
  }
  return state_->report;
}

bool StoreHandle::IsSourceFree() const {
  if (!CheckUsable(state_.get()).ok()) return false;
  std::lock_guard lock(state_->mutex);
  return state_->is_free;
}

Status StoreHandle::ReleaseTo(Stream& stream, TimePoint deadline) {
  TERRACE_RETURN_IF_ERROR(CheckUsable(state_.get()));
  const bool waits_itself = stream.device()->properties().kind == DeviceKind::kHost;
  std::vector<std::shared_ptr<Event>> ends;
  {
    std::unique_lock lock(state_->mutex);
    // Copies out of host memory are done once they are enqueued.
    const auto may_release = [&] {
      const bool has_ends = state_->is_enqueued && !waits_itself && !state_->has_unmarked_copies;
      return state_->is_free || has_ends;
    };
    if (!WaitUntil(state_->changed, lock, deadline, may_release))
      return DeadlineExceededError("copies out of the views' memory are not yet enqueued");
    if (state_->is_free) return OkStatus();
    for (const auto& [copier, end] : state_->last_copies) ends.push_back(end);
  }
  for (const std::shared_ptr<Event>& end : ends) TERRACE_RETURN_IF_ERROR(stream.WaitFor(*end));
  return OkStatus();
}

void StoreHandle::Cancel() {
  if (!state_ || state_->core->IsForkedChild()) return;
  std::lock_guard lock(state_->mutex);
  state_->is_cancelled = true;
}

}  // namespace terrace
