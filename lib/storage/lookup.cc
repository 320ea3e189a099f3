// Lookup and leases: the longest loadable prefix, and what protects it.
#include <algorithm>

#include "lib/base/status_macros.h"
#include "lib/storage/manager_core.h"
#include "lib/storage/request_state.h"

namespace terrace {
namespace {

// Chunks that a window group needs before a boundary, the boundary's own included, and one more: an engine
// that leaves the last token to compute may step back over a boundary.
uint64_t WindowChunks(const GroupSpec& group, uint32_t tokens_per_chunk) {
  return (group.window_tokens + uint64_t{tokens_per_chunk} - 1) / tokens_per_chunk + 1;
}

}  // namespace

bool ManagerCore::RequestState::IsExtendedBy(const RootStateRef& other_root, const TokenView& prompt) const {
  return other_root->root == root->root && prompt.tokens.size() >= tokens.size() &&
         prompt.items.size() >= items.size() &&
         std::equal(tokens.begin(), tokens.end(), prompt.tokens.begin()) &&
         std::equal(items.begin(), items.end(), prompt.items.begin()) &&
         (prompt.items.size() == items.size() || prompt.items[items.size()].position >= tokens.size());
}

Status ManagerCore::RequestState::Extend(const TokenView& prompt) {
  const TokenView more(prompt.tokens.subspan(tokens.size()), prompt.items.subspan(items.size()));
  TERRACE_RETURN_IF_ERROR(hasher.Append(more));
  tokens.insert(tokens.end(), more.tokens.begin(), more.tokens.end());
  items.insert(items.end(), more.items.begin(), more.items.end());
  return OkStatus();
}

bool ManagerCore::IsUsable(const RootState& root, const IndexEntry& entry, ObjectPart part) const {
  const ObjectPresence* object = entry.Find(part);
  if (object == nullptr || object->tiers == 0 || object->division != root.division) return false;
  const bool in_host = HasHostTier() && (object->tiers & TierBit(0));
  return in_host || object->frame_bytes + kTierPageBytes <= pool_->size_bytes();
}

struct ManagerCore::MatchPlan {
  std::vector<const IndexEntry*> full;  // entries of the full chunks of the match; null where none is needed
  const IndexEntry* tail = nullptr;     // the child that the match ends inside (or with)
  uint64_t matched_tokens = 0;
};

// For a boundary after n chunks: full groups need all of them, window groups the last few, state groups the
// last one; after a boundary where full and window groups have what they need, a child may add tokens.
ManagerCore::MatchPlan ManagerCore::PlanMatch(const RootState& root, std::span<const ChunkKey> keys,
                                              const TokenView& prompt, uint64_t limit,
                                              std::span<const ObjectPart> parts) const {
  const uint64_t chunk = root.spec.tokens_per_chunk;
  const uint64_t max_full = limit / chunk;
  bool any_full = false;
  bool any_state = false;
  uint64_t window = 0;
  for (const ObjectPart part : parts) {
    const GroupSpec& group = root.spec.groups[part.group];
    any_full |= group.rule == Retention::kFull;
    any_state |= group.rule == Retention::kState;
    if (group.rule == Retention::kWindow)
      window = std::max(window, WindowChunks(group, root.spec.tokens_per_chunk));
  }
  const auto usable_by_rule = [&](const IndexEntry& entry, Retention rule) {
    return std::all_of(parts.begin(), parts.end(), [&](ObjectPart part) {
      return root.RuleOf(part.group) != rule || IsUsable(root, entry, part);
    });
  };
  std::vector<const IndexEntry*> entries;
  std::vector<uint64_t> window_run;  // consecutive chunks usable for window groups that end here
  uint64_t full_run = 0;
  for (uint64_t i = 0; i < max_full; ++i) {
    const IndexEntry* entry = index_.Find(keys[i]);
    if (entry == nullptr && any_full) break;
    if (any_full && !usable_by_rule(*entry, Retention::kFull)) break;
    entries.push_back(entry);
    const bool ok = entry != nullptr && usable_by_rule(*entry, Retention::kWindow);
    window_run.push_back(ok ? (i > 0 ? window_run[i - 1] : 0) + 1 : 0);
    full_run = i + 1;
  }
  for (uint64_t n = full_run + 1; n-- > 0;) {
    const bool window_ok = n == 0 || window == 0 || window_run[n - 1] >= std::min(n, window);
    if (!window_ok) continue;
    MatchPlan plan;
    plan.full.assign(entries.begin(), entries.begin() + static_cast<ptrdiff_t>(n));
    plan.matched_tokens = n * chunk;
    const uint64_t end = std::min(limit, (n + 1) * chunk);
    if (end > n * chunk) {
      const ChunkContent query = SliceContent(prompt, {n * chunk, end});
      const ChunkKey& parent = n == 0 ? root.root : keys[n - 1];
      const auto usable = [&](const IndexEntry& entry) {
        return std::all_of(parts.begin(), parts.end(),
                           [&](ObjectPart part) { return IsUsable(root, entry, part); });
      };
      const ChunkIndex::Match match = root.spec.cut == Cut::kNone
                                          ? index_.LongestWholePrefix(parent, query, usable)
                                          : index_.LongestCommonPrefix(parent, query, usable);
      if (match.tokens > 0) {
        plan.tail = match.entry;
        plan.matched_tokens += match.tokens;
        return plan;
      }
    }
    const bool state_ok =
        n == 0 || !any_state || (entries[n - 1] && usable_by_rule(*entries[n - 1], Retention::kState));
    if (state_ok) return plan;
  }
  return {};
}

void ManagerCore::AddLeaseItem(const IndexEntry& entry, ObjectPart part, uint64_t matched_end,
                               Lease::State& lease) const {
  const ObjectPresence* object = entry.Find(part);
  LeaseItem item;
  item.id = {entry.key, part};
  item.chunk_index = entry.first_token / lease.root->spec.tokens_per_chunk;
  item.payload_tokens = {entry.first_token, entry.first_token + entry.content->tokens.size()};
  item.matched_tokens = {entry.first_token, std::min(item.payload_tokens.end, matched_end)};
  item.meta.root = entry.root;
  item.meta.parent = entry.parent;
  item.meta.first_token = entry.first_token;
  item.meta.content = entry.content;
  item.meta.frame_bytes = object->frame_bytes;
  item.meta.payload_bytes = object->payload_bytes;
  item.meta.division = object->division;
  item.in_host = HasHostTier() && (object->tiers & TierBit(0));
  lease.frame_bytes += object->frame_bytes;
  lease.items.push_back(std::move(item));
}

void ManagerCore::FillLease(const MatchPlan& plan, std::span<const ObjectPart> parts, Lease::State& lease) {
  const KvSpec& spec = lease.root->spec;
  const uint64_t n = plan.full.size();
  const uint64_t last = n + (plan.tail != nullptr ? 1 : 0);  // chunks of the match, the partial one included
  lease.matched_tokens = plan.matched_tokens;
  for (uint64_t i = 0; i < last; ++i) {
    const IndexEntry* entry = i < n ? plan.full[i] : plan.tail;
    for (const ObjectPart part : parts) {
      const GroupSpec& group = spec.groups[part.group];
      uint64_t wanted = last;
      if (group.rule == Retention::kState) wanted = 1;
      if (group.rule == Retention::kWindow)
        wanted = std::min(last, WindowChunks(group, spec.tokens_per_chunk));
      if (i + wanted >= last) AddLeaseItem(*entry, part, plan.matched_tokens, lease);
    }
  }
  bool all_in_host = true;
  for (size_t i = 0; i < lease.items.size(); ++i) {
    const LeaseItem& item = lease.items[i];
    all_in_host &= item.in_host;
    const bool chunk_is_whole =
        i + 1 == lease.items.size() || lease.items[i + 1].chunk_index != item.chunk_index;
    if (all_in_host && chunk_is_whole) lease.host_tokens = item.matched_tokens.end;
  }
  // Tail to head, so that leaves are the coldest of the request.
  for (auto item = lease.items.rbegin(); item != lease.items.rend(); ++item) {
    for (TierState& tier : tiers_) tier.policy->Touch(item->id);
  }
}

void ManagerCore::Protect(const std::shared_ptr<Lease::State>& lease) {
  uint64_t bytes = 0;
  uint64_t lower_bytes = 0;
  for (const LeaseItem& item : lease->items) {
    (item.in_host ? bytes : lower_bytes) += item.meta.frame_bytes + kTierPageBytes;
  }
  uint64_t lower_capacity = 0;
  for (size_t t = HasHostTier() ? 1 : 0; t < tiers_.size(); ++t)
    lower_capacity += tiers_[t].backend->capacity_bytes();
  const auto lower_budget =
      static_cast<uint64_t>(options_.lease_budget * static_cast<double>(lower_capacity));
  const auto budget = static_cast<uint64_t>(options_.lease_budget * static_cast<double>(pool_->size_bytes()));
  if (lease->items.empty()) return;
  lease->is_protecting = leased_bytes_ + bytes <= budget;
  if (lease->is_protecting) {
    leased_bytes_ += bytes;
    lease->budget_bytes = bytes;
  } else {
    budget_hints_->Add();
  }
  lease->protects_lower = lower_leased_bytes_ + lower_bytes <= lower_budget;
  if (lease->protects_lower) {
    lower_leased_bytes_ += lower_bytes;
    lease->lower_budget_bytes = lower_bytes;
  }
  lease->holds_entries = true;
  ++active_leases_;
  for (const LeaseItem& item : lease->items) {
    IndexEntry* entry = index_.Find(item.id.key);
    ++entry->leases;
    // What a load brings up later is not in the budget, so it is not protected there.
    if (lease->is_protecting && item.in_host) ++entry->host_leases;
    if (lease->protects_lower && !item.in_host) ++entry->lower_leases;
  }
  lease->place = lease_deadlines_.emplace(lease->deadline, lease);
}

void ManagerCore::Unprotect(Lease::State& lease) {
  if (!lease.holds_entries) return;
  lease.holds_entries = false;
  lease_deadlines_.erase(lease.place);
  leased_bytes_ -= lease.budget_bytes;
  lease.budget_bytes = 0;
  lower_leased_bytes_ -= lease.lower_budget_bytes;
  lease.lower_budget_bytes = 0;
  const bool protected_lower = std::exchange(lease.protects_lower, false);
  --active_leases_;
  const bool protected_host = std::exchange(lease.is_protecting, false);
  for (const LeaseItem& item : lease.items) {
    IndexEntry* entry = index_.Find(item.id.key);
    if (protected_host && item.in_host) --entry->host_leases;
    if (protected_lower && !item.in_host) --entry->lower_leases;
    if (--entry->leases == 0) RemoveIfEmpty(entry);
  }
}

void ManagerCore::ReapLeases(std::vector<std::shared_ptr<Lease::State>>& ended) {
  const TimePoint now = clock_->Now();
  for (auto next = lease_deadlines_.begin(); next != lease_deadlines_.end() && next->first <= now;) {
    const auto place = next++;
    // One whose last reference is gone waits for the lock, to take itself out.
    if (auto lease = place->second.lock()) {
      Unprotect(*lease);
      ended.push_back(
          std::move(lease));  // dropped by the caller after it released the lock: the last reference takes it
    }
  }
  for (auto end = request_deadlines_.begin(); end != request_deadlines_.end() && end->first <= now;) {
    const auto request = requests_.find(end->second);
    if (request != requests_.end() && request->second->deadline <= now) requests_.erase(request);
    end = request_deadlines_.erase(end);
  }
}

void ManagerCore::ReleaseLease(Lease::State& lease) {
  std::lock_guard lock(mutex_);
  Unprotect(lease);
}

Result<Lease> ManagerCore::Lookup(const ChunkKey& root_key, const TokenView& prompt,
                                  const LookupOptions& options) {
  TERRACE_RETURN_IF_ERROR(CheckNotForked());
  TERRACE_RETURN_IF_ERROR(prompt.Validate());
  RootStateRef root;
  std::unique_ptr<RequestState> request;
  std::vector<std::shared_ptr<Lease::State>> ended;  // outlives every lock below
  {
    std::lock_guard lock(mutex_);
    TERRACE_RETURN_IF_ERROR(CheckOpen());
    root = FindRoot(root_key);
    if (!root) return NotFoundError("the root was not made by Root() of this manager");
    TERRACE_RETURN_IF_ERROR(root->CheckParts(options.parts));
    ReapLeases(ended);
    const auto known = options.request_id != 0 ? requests_.find(options.request_id) : requests_.end();
    if (known != requests_.end()) {
      request = std::move(known->second);
      requests_.erase(known);
    }
    if (request && !request->IsExtendedBy(root, prompt)) {
      if (auto lease = request->lease.lock()) {
        Unprotect(*lease);
        ended.push_back(std::move(lease));
      }
      request.reset();
    }
  }
  if (!request) request = std::make_unique<RequestState>(root);
  TERRACE_RETURN_IF_ERROR(request->Extend(prompt));

  auto lease = std::make_shared<Lease::State>();
  lease->core = shared_from_this();
  lease->root = root;
  const std::vector<ObjectPart> parts = options.parts.empty() ? root->DefaultParts() : options.parts;
  const uint64_t limit = std::min<uint64_t>(prompt.tokens.size(), options.max_tokens);
  std::lock_guard lock(mutex_);
  TERRACE_RETURN_IF_ERROR(CheckOpen());
  lease->deadline = clock_->Now() + std::chrono::duration_cast<TimePoint::duration>(options_.lease_time);
  FillLease(PlanMatch(*root, request->hasher.full_keys(), prompt, limit, parts), parts, *lease);
  // Under one lock with what follows: what both protect is protected without a gap, and counts once in the
  // budget.
  if (auto earlier = request->lease.lock()) {
    Unprotect(*earlier);
    ended.push_back(std::move(earlier));
  }
  Protect(lease);
  lookups_->Add();
  lookup_tokens_->Add(prompt.tokens.size());
  matched_tokens_->Add(lease->matched_tokens);
  if (options.request_id != 0) {
    request->lease = lease;
    request->deadline = lease->deadline;
    request_deadlines_.emplace(lease->deadline, options.request_id);
    requests_[options.request_id] = std::move(request);
  }
  return Lease(std::move(lease));
}

// --- Lease

Lease::State::~State() {
  if (core && !core->IsForkedChild()) core->ReleaseLease(*this);
}

Lease::Lease() = default;
Lease::~Lease() = default;
Lease::Lease(Lease&&) noexcept = default;
Lease& Lease::operator=(Lease&&) noexcept = default;
Lease::Lease(std::shared_ptr<State> state) : state_(std::move(state)) {}

uint64_t Lease::matched_tokens() const { return state_ ? state_->matched_tokens : 0; }
uint64_t Lease::host_tokens() const { return state_ ? state_->host_tokens : 0; }
uint64_t Lease::num_objects() const { return state_ ? state_->items.size() : 0; }
uint64_t Lease::frame_bytes() const { return state_ ? state_->frame_bytes : 0; }

bool Lease::is_protected() const {
  if (!state_ || state_->core->IsForkedChild()) return false;
  std::lock_guard lock(state_->core->mutex_);
  return state_->is_protecting && state_->deadline > state_->core->clock_->Now();
}

void Lease::Release() { state_.reset(); }

}  // namespace terrace
