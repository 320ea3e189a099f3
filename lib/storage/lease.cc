// Lease: the caller's side of a lookup.
#include <algorithm>
#include <chrono>

#include "lib/base/wait_until.h"
#include "lib/storage/manager_core.h"

namespace terrace {

Lease::State::~State() {
  if (!core || core->IsForkedChild()) return;
  core->EndLease(*this);
  core->ReleaseRemote(*this);
}

void Lease::State::Reset() {
  segments.clear();
  tail.reset();
  full_chunks = matched_tokens = host_tokens = num_objects = frame_bytes = 0;
  is_in_host = true;
}

void Lease::State::CountIn(const LeaseSegment& segment) {
  // Tokens in the host tier count from the beginning on.
  if (is_in_host && segment.host_tokens > 0) host_tokens = segment.host_tokens;
  is_in_host &= segment.is_in_host;
  num_objects += segment.items.size();
  frame_bytes += segment.frame_bytes;
}

std::vector<LeaseItem> Lease::State::Items() const {
  std::vector<LeaseItem> items;
  std::lock_guard lock(mutex);
  items.reserve(num_objects);
  ForEachSegment([&](const LeaseSegmentRef& segment) {
    if (segment == tail && remote_replaces_tail) return;
    items.insert(items.end(), segment->items.begin(), segment->items.end());
  });
  return items;
}

void Lease::State::Describe(size_t num_tiers, RequestTrace& trace) const {
  trace.matched_by_tier.assign(num_tiers, 0);
  std::lock_guard lock(mutex);
  trace.planned_tokens = matched_tokens;
  // Parts of a chunk stand one after another; they count once, as their slowest.
  uint64_t chunk_tokens = 0;
  uint64_t chunk_index = UINT64_MAX;
  size_t chunk_tier = 0;
  const auto count_chunk = [&] {
    if (chunk_tokens > 0) trace.matched_by_tier[chunk_tier] += chunk_tokens;
  };
  ForEachSegment([&](const LeaseSegmentRef& segment) {
    if (segment == tail && remote_replaces_tail) return;
    for (const LeaseItem& item : segment->items) {
      const bool is_remote = item.remote_tier != LeaseItem::kLocal;
      const size_t tier = is_remote ? item.remote_tier : item.fastest_tier;
      if (item.chunk_index == chunk_index) {
        chunk_tier = std::max(chunk_tier, tier);
        continue;
      }
      count_chunk();
      chunk_index = item.chunk_index;
      chunk_tier = tier;
      chunk_tokens = item.matched_tokens.end - item.matched_tokens.begin;
      if (is_remote) trace.remote_tokens += chunk_tokens;
    }
  });
  count_chunk();
}

Lease::Lease() = default;
Lease::~Lease() = default;
Lease::Lease(Lease&&) noexcept = default;
Lease& Lease::operator=(Lease&&) noexcept = default;
Lease::Lease(std::shared_ptr<State> state) : state_(std::move(state)) {}

uint64_t Lease::matched_tokens() const { return state_ ? state_->MatchedTokens() : 0; }

uint64_t Lease::host_tokens() const {
  if (!state_) return 0;
  std::lock_guard lock(state_->mutex);
  return state_->host_tokens;
}

uint64_t Lease::num_objects() const {
  if (!state_) return 0;
  std::lock_guard lock(state_->mutex);
  return state_->num_objects;
}

uint64_t Lease::frame_bytes() const {
  if (!state_) return 0;
  std::lock_guard lock(state_->mutex);
  return state_->frame_bytes;
}

bool Lease::is_protected() const {
  if (!state_ || state_->core->IsForkedChild()) return false;
  return state_->core->leases_->IsProtecting(*state_, state_->core->clock_->Now());
}

bool Lease::is_pending() const {
  if (!state_) return false;
  std::lock_guard lock(state_->mutex);
  return state_->is_pending;
}

Status Lease::WaitRemote(TimePoint deadline) const {
  if (!state_) return OkStatus();
  std::unique_lock lock(state_->mutex);
  const auto is_settled = [&] { return !state_->is_pending; };
  if (!WaitUntil(state_->settled, lock, deadline, is_settled)) {
    return DeadlineExceededError("the remote tier has not answered yet");
  }
  return OkStatus();
}

void Lease::Release() { state_.reset(); }

}  // namespace terrace
