#include "lib/storage/lease_table.h"

#include <algorithm>

#include "lib/base/status_macros.h"

namespace terrace {

bool RequestChain::IsExtendedBy(const TokenView& prompt) const {
  return prompt.tokens.size() >= tokens.size() && prompt.items.size() >= items.size() &&
         std::equal(tokens.begin(), tokens.end(), prompt.tokens.begin()) &&
         std::equal(items.begin(), items.end(), prompt.items.begin()) &&
         (prompt.items.size() == items.size() || prompt.items[items.size()].position >= tokens.size());
}

Result<std::optional<uint64_t>> RequestState::Extend(const RootStateRef& root, const TokenView& prompt,
                                                     bool keep_tokens) {
  std::lock_guard lock(chain->mutex);
  std::vector<Token>& tokens = chain->tokens;
  std::vector<Item>& items = chain->items;
  if (chain->root->root != root->root || !chain->IsExtendedBy(prompt)) return std::optional<uint64_t>();
  const TokenView more(prompt.tokens.subspan(tokens.size()), prompt.items.subspan(items.size()));
  TERRACE_RETURN_IF_ERROR(chain->hasher.Append(more));
  const std::span<const ChunkKey> all_keys = chain->hasher.full_keys();
  keys.insert(keys.end(), all_keys.begin() + static_cast<std::ptrdiff_t>(keys.size()), all_keys.end());
  if (!keep_tokens) return std::optional<uint64_t>(more.tokens.size());
  // Room ahead: a prompt grows by little, and moving all of it costs more than a lookup.
  if (prompt.tokens.size() > tokens.capacity())
    tokens.reserve(prompt.tokens.size() + prompt.tokens.size() / 4 + 1024);
  tokens.insert(tokens.end(), more.tokens.begin(), more.tokens.end());
  items.insert(items.end(), more.items.begin(), more.items.end());
  kept_tokens = tokens.capacity();
  return std::optional<uint64_t>(more.tokens.size());
}

bool ProtectionBudget::TryTake(uint64_t bytes) {
  uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_ || used > limit_ - bytes) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return true;
}

void LeaseTable::SetBudgets(uint64_t host_bytes, uint64_t lower_bytes) {
  host_budget_.SetLimit(host_bytes);
  lower_budget_.SetLimit(lower_bytes);
}

std::unique_ptr<RequestState> LeaseTable::TakeRequest(uint64_t id, const RootStateRef& root,
                                                      TimePoint deadline) {
  if (id == 0) return std::make_unique<RequestState>(std::make_shared<RequestChain>(root));
  std::vector<KeptRequest> let_go;
  std::lock_guard lock(mutex_);
  const auto found = requests_.find(id);
  if (found == requests_.end()) {
    auto chain = std::make_shared<RequestChain>(root);
    Add(id, KeptRequest{.chain = chain}, deadline, let_go);
    return std::make_unique<RequestState>(std::move(chain));
  }
  if (found->second.state) return std::move(found->second.state);
  return std::make_unique<RequestState>(found->second.chain);
}

LeaseTable::KeptRequest LeaseTable::Remove(RequestMap::iterator request) {
  KeptRequest removed = std::move(request->second);
  kept_tokens_ -= removed.tokens;
  request_deadlines_.erase(removed.place);
  requests_.erase(request);
  return removed;
}

void LeaseTable::Add(uint64_t id, KeptRequest request, TimePoint deadline, std::vector<KeptRequest>& let_go) {
  request.place = request_deadlines_.emplace(deadline, id);
  kept_tokens_ += request.tokens;
  requests_.emplace(id, std::move(request));
  if (deadline.time_since_epoch().count() < next_deadline_ns_.load(std::memory_order_relaxed))
    next_deadline_ns_.store(deadline.time_since_epoch().count(), std::memory_order_relaxed);
  while (requests_.size() > 1 && (requests_.size() > kMaxRequests || kept_tokens_ > kMaxKeptTokens))
    let_go.push_back(Remove(requests_.find(request_deadlines_.begin()->second)));
}

void LeaseTable::KeepRequest(uint64_t id, std::unique_ptr<RequestState> request, TimePoint deadline) {
  if (id == 0) return;
  std::vector<KeptRequest> let_go;  // ends after the lock
  KeptRequest kept{.chain = request->chain, .tokens = request->kept_tokens};
  kept.state = std::move(request);
  std::lock_guard lock(mutex_);
  if (const auto earlier = requests_.find(id); earlier != requests_.end()) let_go.push_back(Remove(earlier));
  Add(id, std::move(kept), deadline, let_go);
}

bool LeaseTable::Protect(LeaseSegment& segment) {
  segment.protects_host = host_budget_.TryTake(segment.host_bytes);
  segment.protects_lower = lower_budget_.TryTake(segment.lower_bytes);
  if (segment.protects_host && segment.protects_lower) return true;
  for (MatchedChunk& chunk : segment.chunks) {
    index_.Change(*chunk.entry, [&](IndexEntry& entry) {
      if (!segment.protects_host && std::exchange(chunk.host_pin, false)) --entry.host_pins;
      if (!segment.protects_lower && std::exchange(chunk.lower_pin, false)) --entry.lower_pins;
    });
  }
  return segment.protects_host;
}

void LeaseTable::Disown(const LeaseSegmentRef& segment, std::vector<LeaseSegmentRef>& disowned) {
  if (std::exchange(segment->holds, false)) disowned.push_back(segment);
}

void LeaseTable::DisownAll(Lease::State& lease, std::vector<LeaseSegmentRef>& disowned) {
  if (!std::exchange(lease.is_live, false)) return;
  deadlines_.erase(lease.place);
  num_active_.fetch_sub(1, std::memory_order_relaxed);
  std::lock_guard lock(lease.mutex);
  lease.ForEachSegment([&](const LeaseSegmentRef& segment) { Disown(segment, disowned); });
}

void LeaseTable::Unpin(LeaseSegment& segment, std::vector<ChunkKey>& unused) {
  if (segment.protects_host) host_budget_.GiveBack(segment.host_bytes);
  if (segment.protects_lower) lower_budget_.GiveBack(segment.lower_bytes);
  for (const MatchedChunk& chunk : segment.chunks) {
    if (index_.Unhold(*chunk.entry, chunk.host_pin, chunk.lower_pin)) unused.push_back(chunk.key);
  }
  segment.chunks.clear();
}

LeaseTable::Started LeaseTable::Start(const std::shared_ptr<Lease::State>& lease, TimePoint deadline,
                                      std::span<const LeaseSegmentRef> added, Lease::State* earlier,
                                      std::vector<ChunkKey>& unused) {
  std::lock_guard lock(mutex_);
  if (earlier != nullptr) {
    if (!std::exchange(earlier->is_live, false)) return Started::kNot;
    deadlines_.erase(earlier->place);
    num_active_.fetch_sub(1, std::memory_order_relaxed);
    if (earlier->tail && std::exchange(earlier->tail->holds, false)) Unpin(*earlier->tail, unused);
  }
  bool is_protected = true;
  for (const LeaseSegmentRef& segment : added) is_protected &= Protect(*segment);
  lease->deadline = deadline;
  lease->is_live = true;
  lease->place = deadlines_.emplace(deadline, lease);
  num_active_.fetch_add(1, std::memory_order_relaxed);
  const int64_t first_ns = deadlines_.begin()->first.time_since_epoch().count();
  if (first_ns < next_deadline_ns_.load(std::memory_order_relaxed))
    next_deadline_ns_.store(first_ns, std::memory_order_relaxed);
  return is_protected ? Started::kProtected : Started::kHint;
}

void LeaseTable::Drop(const LeaseSegmentRef& segment, std::vector<ChunkKey>& unused) {
  {
    std::lock_guard lock(mutex_);
    if (!std::exchange(segment->holds, false)) return;
  }
  Unpin(*segment, unused);
}

void LeaseTable::End(Lease::State& lease, std::vector<ChunkKey>& unused) {
  std::vector<LeaseSegmentRef> disowned;
  {
    std::lock_guard lock(mutex_);
    DisownAll(lease, disowned);
  }
  for (const LeaseSegmentRef& segment : disowned) Unpin(*segment, unused);
}

bool LeaseTable::CouldProtectMore(const Lease::State& lease) const {
  uint64_t host_bytes = 0;
  uint64_t lower_bytes = 0;
  std::lock_guard lock(mutex_);
  for (const LeaseSegmentRef& segment : lease.segments) {
    if (!segment->protects_host) host_bytes += segment->host_bytes;
    if (!segment->protects_lower) lower_bytes += segment->lower_bytes;
  }
  return (host_bytes > 0 && host_bytes <= host_budget_.free()) ||
         (lower_bytes > 0 && lower_bytes <= lower_budget_.free());
}

bool LeaseTable::IsProtecting(const Lease::State& lease, TimePoint now) const {
  std::lock_guard lock(mutex_);
  if (!lease.is_live || lease.deadline <= now) return false;
  bool protects = true;
  std::lock_guard state_lock(lease.mutex);
  bool any = false;
  lease.ForEachSegment([&](const LeaseSegmentRef& segment) {
    if (segment == lease.remote) return;  // its store protects that
    protects &= segment->protects_host;
    any = true;
  });
  return protects && any;
}

std::vector<std::shared_ptr<Lease::State>> LeaseTable::Reap(TimePoint now, std::vector<ChunkKey>& unused) {
  std::vector<std::shared_ptr<Lease::State>> ended;
  if (now.time_since_epoch().count() < next_deadline_ns_.load(std::memory_order_relaxed)) return ended;
  std::vector<LeaseSegmentRef> disowned;
  std::vector<KeptRequest> forgotten;
  {
    std::lock_guard lock(mutex_);
    for (auto next = deadlines_.begin(); next != deadlines_.end() && next->first <= now;) {
      const auto place = next++;
      // One whose last reference is gone waits for the lock, to take itself out.
      if (auto lease = place->second.lock()) {
        DisownAll(*lease, disowned);
        ended.push_back(std::move(lease));
      }
    }
    for (auto end = request_deadlines_.begin(); end != request_deadlines_.end() && end->first <= now;) {
      const auto next = std::next(end);
      forgotten.push_back(Remove(requests_.find(end->second)));
      end = next;
    }
    int64_t next_ns = INT64_MAX;
    if (!deadlines_.empty()) next_ns = deadlines_.begin()->first.time_since_epoch().count();
    if (!request_deadlines_.empty())
      next_ns = std::min<int64_t>(next_ns, request_deadlines_.begin()->first.time_since_epoch().count());
    next_deadline_ns_.store(next_ns, std::memory_order_relaxed);
  }
  for (const LeaseSegmentRef& segment : disowned) Unpin(*segment, unused);
  return ended;
}

}  // namespace terrace
