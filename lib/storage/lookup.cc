// Lookup and Peek: the longest loadable prefix, and what protects it. Neither takes the manager's lock.
#include <algorithm>
#include <bit>
#include <optional>

#include "lib/base/status_macros.h"
#include "lib/storage/asked.h"
#include "lib/storage/manager_core.h"

namespace terrace {

Result<ManagerCore::Asked> ManagerCore::Ask(uint64_t request_id, const ChunkKey& root_key,
                                            const TokenView& prompt, std::span<const ObjectPart> parts) {
  TERRACE_RETURN_IF_ERROR(CheckNotForked());
  TERRACE_RETURN_IF_ERROR(prompt.Validate());
  if (prompt.tokens.size() > UINT32_MAX)
    return InvalidArgumentError("a prompt of " + std::to_string(prompt.tokens.size()) +
                                " tokens; allowed: below 2^32");
  TERRACE_RETURN_IF_ERROR(CheckOpen());
  Asked asked;
  asked.root = roots_.Find(root_key);
  if (!asked.root) return NotFoundError("the root was not made by Root() of this manager");
  TERRACE_RETURN_IF_ERROR(asked.root->CheckParts(parts));
  asked.parts.assign(parts.begin(), parts.end());
  if (asked.parts.empty()) asked.parts = asked.root->DefaultParts();
  asked.request = leases_->TakeRequest(request_id, asked.root, LeaseDeadline());
  TERRACE_ASSIGN_OR_RETURN(std::optional<uint64_t> hashed,
                           asked.request->Extend(asked.root, prompt, request_id != 0));
  if (!hashed) {
    asked.other = std::move(asked.request);
    asked.request = std::make_unique<RequestState>(std::make_shared<RequestChain>(asked.root));
    TERRACE_ASSIGN_OR_RETURN(hashed, asked.request->Extend(asked.root, prompt, request_id != 0));
  }
  hashed_tokens_->Add(hashed.value_or(0));
  return asked;
}

void ManagerCore::KeepAsked(uint64_t request_id, Asked& asked) {
  if (asked.other) asked.request = std::move(asked.other);
  leases_->KeepRequest(request_id, std::move(asked.request), LeaseDeadline());
}

MatchRequest ManagerCore::MatchRequestOf(const Asked& asked, const TokenView& prompt,
                                         uint64_t max_tokens) const {
  return {.root = *asked.root,
          .keys = asked.request->keys,
          .prompt = prompt,
          .limit = std::min<uint64_t>(prompt.tokens.size(), max_tokens),
          .parts = asked.parts,
          .division = asked.root->division,
          .has_host = HasHostTier(),
          .pool_bytes = pool_->largest_buffer_bytes()};
}

// Chunks [first, last) of the plan.
LeaseSegmentRef ManagerCore::MakeSegment(const MatchPlan& plan, const RootState& root,
                                         std::span<const ObjectPart> parts, size_t first, size_t last) const {
  auto segment = std::make_shared<LeaseSegment>();
  segment->items.reserve((last - first) * parts.size());
  segment->chunks.reserve(last - first);
  segment->is_in_host = true;
  for (size_t i = first; i < last; ++i) {
    const MatchedChunk& chunk = plan.chunks[i];
    if (chunk.entry == nullptr) continue;
    segment->chunks.push_back(chunk);
    bool chunk_in_host = segment->is_in_host;
    LeaseItem item;
    item.chunk_index = chunk.first_token / root.spec.tokens_per_chunk;
    item.payload_tokens = {chunk.first_token, chunk.first_token + uint64_t{chunk.num_tokens}};
    item.matched_tokens = {chunk.first_token,
                           std::min(item.payload_tokens.end, plan.first_token + plan.matched_tokens)};
    item.root = &root;
    for (size_t p = 0; p < parts.size(); ++p) {
      const ObjectPresence& object = plan.found[i * parts.size() + p];
      if (object.tiers == 0) continue;
      item.id = {chunk.key, parts[p]};
      item.meta = {object.frame_bytes(), object.payload_bytes, object.division};
      item.fastest_tier = static_cast<uint8_t>(std::countr_zero(object.tiers));
      item.in_host = HasHostTier() && (object.tiers & TierBit(0));
      (item.in_host ? segment->host_bytes : segment->lower_bytes) += item.meta.frame_bytes + kTierPageBytes;
      segment->frame_bytes += item.meta.frame_bytes;
      chunk_in_host &= item.in_host;
      segment->items.push_back(item);
    }
    segment->is_in_host = chunk_in_host;
    if (chunk_in_host) segment->host_tokens = item.matched_tokens.end;
  }
  return segment;
}

// Segments of what was matched and pinned; not yet counted in a budget.
std::vector<LeaseSegmentRef> ManagerCore::AddMatch(const MatchPlan& plan, const Asked& asked,
                                                   Lease::State& lease) {
  const size_t num_full = plan.chunks.size() - (plan.has_tail ? 1 : 0);
  std::vector<LeaseSegmentRef> added;
  if (num_full > 0) {
    added.push_back(MakeSegment(plan, *asked.root, asked.parts, 0, num_full));
    lease.segments.push_back(added.back());
  }
  if (plan.has_tail) {
    added.push_back(MakeSegment(plan, *asked.root, asked.parts, num_full, num_full + 1));
    lease.tail = added.back();
  }
  for (const LeaseSegmentRef& segment : added) {
    segment->holds = true;
    lease.CountIn(*segment);
  }
  lease.full_chunks += num_full;
  lease.matched_tokens = plan.matched_tokens;
  return added;
}

bool ManagerCore::StartLease(const std::shared_ptr<Lease::State>& lease,
                             std::span<const LeaseSegmentRef> added, Lease::State* earlier,
                             std::vector<ChunkKey>& unused) {
  if (lease->num_objects == 0) return false;
  const LeaseTable::Started started = leases_->Start(lease, LeaseDeadline(), added, earlier, unused);
  if (started == LeaseTable::Started::kHint) budget_hints_->Add();
  return started != LeaseTable::Started::kNot;
}

// What an earlier match found may be taken as it is: nothing of it was lost, or came nearer, and all is
// protected.
bool ManagerCore::MayExtend(const Lease::State& earlier, const Asked& asked, uint64_t limit) const {
  if (earlier.root != asked.root || earlier.parts != asked.parts) return false;
  for (const ObjectPart part : asked.parts) {
    if (asked.root->RuleOf(part.group) != Retention::kFull) return false;
  }
  if (limit / asked.root->spec.tokens_per_chunk < earlier.full_chunks) return false;
  if (earlier.losses != losses_.load(std::memory_order_acquire)) return false;
  bool is_in_host = true;
  for (const LeaseSegmentRef& segment : earlier.segments) is_in_host &= segment->is_in_host;
  if (!is_in_host && earlier.promotions != promotions_.load(std::memory_order_acquire)) return false;
  return !leases_->CouldProtectMore(earlier);
}

bool ManagerCore::ExtendEarlier(Asked& asked, const TokenView& prompt, uint64_t max_tokens,
                                const std::shared_ptr<Lease::State>& lease) {
  const std::shared_ptr<Lease::State> earlier = asked.request->lease.lock();
  MatchRequest request = MatchRequestOf(asked, prompt, max_tokens);
  if (!earlier || !MayExtend(*earlier, asked, request.limit)) return false;
  request.known_chunks = earlier->full_chunks;
  request.pin = true;
  lease->losses = earlier->losses;
  lease->promotions = earlier->promotions;
  lease->segments = earlier->segments;
  for (const LeaseSegmentRef& segment : lease->segments) lease->CountIn(*segment);
  lease->full_chunks = earlier->full_chunks;
  MatchPlan plan = MatchPrefix(*index_, request);
  const std::vector<LeaseSegmentRef> added = AddMatch(plan, asked, *lease);
  const bool started = StartLease(lease, added, earlier.get(), plan.unused);
  if (!started) {  // nothing is matched any more, or the earlier one has lapsed meanwhile, and its pins with
                   // it
    for (const LeaseSegmentRef& segment : added) leases_->Drop(segment, plan.unused);
  }
  RemoveUnused(plan.unused);
  if (started && lease->segments.size() > earlier->segments.size()) NoteTouched(*lease);
  return started;
}

void ManagerCore::MatchAnew(Asked& asked, const TokenView& prompt, uint64_t max_tokens,
                            const std::shared_ptr<Lease::State>& lease) {
  MatchRequest request = MatchRequestOf(asked, prompt, max_tokens);
  request.pin = true;
  lease->losses = losses_.load(std::memory_order_acquire);
  lease->promotions = promotions_.load(std::memory_order_acquire);
  MatchPlan plan = MatchPrefix(*index_, request);
  // What the earlier lease shares with this one is pinned by both now, so nothing is unprotected for a
  // moment; its budget is given back first, so that it counts once.
  if (const auto earlier = asked.request->lease.lock()) leases_->End(*earlier, plan.unused);
  StartLease(lease, AddMatch(plan, asked, *lease), nullptr, plan.unused);
  RemoveUnused(plan.unused);
  NoteTouched(*lease);
}

void ManagerCore::CountLookup(const Lease::State& lease, const TokenView& prompt, uint64_t limit) {
  const uint64_t matched = lease.MatchedTokens();
  lookups_->Add();
  lookup_tokens_->Add(prompt.tokens.size());
  matched_tokens_->Add(matched);
  Counter* outcome = matched == 0 ? lookup_misses_ : matched < limit ? lookup_partial_hits_ : lookup_hits_;
  outcome->Add();
}

Result<Lease> ManagerCore::Lookup(const ChunkKey& root_key, const TokenView& prompt,
                                  const LookupOptions& options) {
  TERRACE_RETURN_IF_ERROR(CheckNotForked());
  RequestTracer tracer(traces_, TraceKind::kLookup);
  ReapLeases();
  Result<Asked> checked = Ask(options.request_id, root_key, prompt, options.parts);
  if (!checked.ok()) return tracer.Fail(checked.status());
  Asked& asked = *checked;
  if (asked.other) {
    if (const auto earlier = asked.other->lease.lock()) EndLease(*earlier);
    asked.other.reset();
  }
  tracer.Step("hash");
  auto lease = std::make_shared<Lease::State>();
  lease->core = shared_from_this();
  lease->root = asked.root;
  lease->request_id = options.request_id;
  lease->parts = asked.parts;
  if (!ExtendEarlier(asked, prompt, options.max_tokens, lease)) {
    lease->Reset();
    MatchAnew(asked, prompt, options.max_tokens, lease);
  }
  tracer.Step("match");
  const uint64_t limit = std::min<uint64_t>(prompt.tokens.size(), options.max_tokens);
  CountLookup(*lease, prompt, limit);
  if (RequestTrace* trace = tracer.trace()) {
    trace->request_id = options.request_id;
    trace->root = root_key;
    trace->tokens = prompt.tokens.size();
    lease->Describe(tiers_.size(), *trace);
    if (lease->matched_tokens < limit) trace->why_not = "not stored from there on";
  }
  AskRemote(lease, asked, prompt, options, tracer);
  asked.request->lease = lease;
  leases_->KeepRequest(options.request_id, std::move(asked.request), LeaseDeadline());
  return Lease(std::move(lease));
}

Result<PrefixPresence> ManagerCore::Peek(const ChunkKey& root_key, const TokenView& prompt,
                                         const LookupOptions& options) {
  TERRACE_RETURN_IF_ERROR(CheckNotForked());
  RequestTracer tracer(traces_, TraceKind::kPeek);
  Result<Asked> checked = Ask(options.request_id, root_key, prompt, options.parts);
  if (!checked.ok()) return tracer.Fail(checked.status());
  Asked& asked = *checked;
  tracer.Step("hash");
  const MatchRequest request = MatchRequestOf(asked, prompt, options.max_tokens);
  const MatchPlan plan = MatchPrefix(*index_, request);
  tracer.Step("match");
  const LeaseSegmentRef segment = MakeSegment(plan, *asked.root, asked.parts, 0, plan.chunks.size());
  PrefixPresence presence;
  presence.matched_tokens = plan.matched_tokens;
  presence.host_tokens = segment->host_tokens;
  presence.num_objects = segment->items.size();
  presence.frame_bytes = segment->frame_bytes;
  for (const LeaseItem& item : segment->items) {
    if (item.in_host) presence.host_frame_bytes += item.meta.frame_bytes;
  }
  if (RequestTrace* trace = tracer.trace()) {
    trace->request_id = options.request_id;
    trace->root = root_key;
    trace->tokens = prompt.tokens.size();
    Lease::State seen;  // protects nothing
    seen.segments.push_back(segment);
    seen.matched_tokens = plan.matched_tokens;
    seen.Describe(tiers_.size(), *trace);
    if (plan.matched_tokens < request.limit) trace->why_not = "not stored from there on";
  }
  KeepAsked(options.request_id, asked);
  return presence;
}

void ManagerCore::ReapLeases() {
  std::vector<ChunkKey> unused;
  const std::vector<std::shared_ptr<Lease::State>> ended = leases_->Reap(clock_->Now(), unused);
  RemoveUnused(unused);
  if (!ended.empty()) pool_->Nudge();
}

void ManagerCore::EndLease(Lease::State& lease) {
  std::vector<ChunkKey> unused;
  leases_->End(lease, unused);
  RemoveUnused(unused);
  pool_->Nudge();
}

void ManagerCore::NoteTouched(const Lease::State& lease) {
  std::vector<LeaseSegmentRef> used;
  lease.ForEachSegment([&](const LeaseSegmentRef& segment) { used.push_back(segment); });
  if (used.empty() || touches_.Add(used)) return;
  // Full, and nobody has evicted for long: told now if that costs no waiting, else left untold.
  if (!mutex_.try_lock()) return;
  std::lock_guard lock(mutex_, std::adopt_lock);
  ApplyTouches();
  touches_.Add(std::move(used));
}

void ManagerCore::ApplyTouches() {
  for (const std::vector<LeaseSegmentRef>& used : touches_.Take()) {
    for (auto segment = used.rbegin(); segment != used.rend(); ++segment) {
      for (auto item = (*segment)->items.rbegin(); item != (*segment)->items.rend(); ++item) {
        for (TierState& tier : tiers_) tier.policy->Touch(item->id);
      }
    }
  }
}

}  // namespace terrace
