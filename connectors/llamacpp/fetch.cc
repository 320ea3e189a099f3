// Fetch: what the slot holds already, or what the store has, whichever is longer.
#include <algorithm>
#include <optional>
#include <string>

#include "connectors/llamacpp/cache_state.h"

namespace terrace::llamacpp {

using std::chrono::steady_clock;

// Tokens of the prompt that are in the slot and can stay.
uint64_t LlamaCache::State::KeepablePrefix(llama_seq_id slot, const Prompt& prompt, uint64_t limit) const {
  const SlotRecord& record = slots[static_cast<size_t>(slot)];
  const uint64_t held = scratch.TokensIn(slot);
  // Fewer than were reported: somebody cut or shifted the slot. More is the host's last, unreported step.
  if (!record.known || record.tokens.empty() || held < record.tokens.size()) return 0;
  if (!scratch.IsWhole(slot, held)) return 0;
  uint64_t common = std::min(record.CommonPrefix(prompt), limit);
  if (options.exact_only) common = std::min(common, record.exact_tokens);
  if (traits.CanCut()) return options.exact_only ? common / kChunkTokens * kChunkTokens : common;
  return common == held && held == record.tokens.size() ? common : 0;
}

// Where a load may go on after `kept` tokens of the slot: a chunk boundary.
uint64_t LlamaCache::State::LoadFrom(uint64_t kept) const {
  if (traits.recurrent) return 0;
  if (traits.CanCut()) return kept / kChunkTokens * kChunkTokens;
  return kept % kChunkTokens == 0 ? kept : 0;
}

std::optional<Lease> LlamaCache::State::LookUp(const Prompt& prompt, uint64_t limit, TimePoint deadline,
                                               FetchResult* result) {
  LookupOptions asked;
  asked.request_id = 0;  // the lease ends with the call of Fetch, so it needs no id of its own
  asked.max_tokens = limit;
  asked.remote_deadline = options.remote_deadline;
  Result<Lease> found = options.manager->Lookup(root, ViewOf(prompt), asked);
  if (!found.ok()) {
    result->reason = found.status();
    return std::nullopt;
  }
  if (found->is_pending()) {
    const auto waiting = steady_clock::now();
    if (!found->WaitRemote(std::min(deadline, waiting + options.remote_deadline)).ok()) {
      ++counters.remote_timeouts;
      result->reason = DeadlineExceededError("the remote tier did not answer in time");
    }
    result->remote_ms = MsSince(waiting);
  }
  return *std::move(found);
}

FetchResult LlamaCache::State::Fetch(llama_seq_id slot, const Prompt& prompt) {
  FetchResult result;
  const TimePoint deadline = steady_clock::now() + options.load_deadline;
  ++counters.fetches;
  if (slot < 0 || slot >= options.slots) {
    result.reason = CheckCall(slot, prompt);
    return result;
  }
  SlotRecord& record = slots[static_cast<size_t>(slot)];
  if (Status call = CheckCall(slot, prompt); !call.ok() || prompt.tokens.empty()) {
    ClearSlot(slot);
    result.reason = call;
    return result;
  }
  const uint64_t limit = prompt.tokens.size() - 1;  // the state has no logits: one token is left to compute
  const uint64_t kept = KeepablePrefix(slot, prompt, limit);
  std::optional<Lease> lease;
  if (HasStore() && kept < limit) {
    lease = LookUp(prompt, limit, deadline, &result);
  } else if (options.manager != nullptr && !root_status.ok()) {
    result.reason = root_status;
  }
  const uint64_t matched = lease ? lease->matched_tokens() : 0;
  const bool load = matched > kept;
  const uint64_t stored = load ? LoadFrom(kept) : kept;
  const uint64_t begin = scratch.Cut(slot, stored);
  uint64_t ready = begin;
  record.Assign(prompt, begin);  // if what follows is interrupted, this holds
  record.exact_tokens = std::min(record.exact_tokens, begin);
  record.stored_tokens = std::min(record.stored_tokens, begin / kChunkTokens * kChunkTokens);
  if (load && begin == stored) {
    ready = LoadInto(slot, *lease, {.range = {begin, matched}, .deadline = deadline}, &result);
  }
  if (lease) lease->Release();
  if (!scratch.IsWhole(slot, ready)) ready = scratch.Cut(slot, 0);
  if (ready <= begin) {
    result.loaded_tokens = result.loaded_objects = result.loaded_bytes = 0;
    result.by_tier.clear();
  }
  result.ready_tokens = ready;
  record.Assign(prompt, ready);
  if (ready > begin) {
    record.stored_tokens = ready / kChunkTokens * kChunkTokens;
    record.exact_tokens = options.exact_only ? ready : 0;
  } else if (ready < begin) {
    record.stored_tokens = record.exact_tokens = 0;
  }
  return result;
}

// Loads and injects in prefix order; what the slot holds then. A chunk that fails ends it, what precedes
// stays.
uint64_t LlamaCache::State::LoadInto(llama_seq_id slot, const Lease& lease, const LoadWish& wish,
                                     FetchResult* result) {
  SlotRecord& record = slots[static_cast<size_t>(slot)];
  const TokenRange range = wish.range;
  LoadHandle load = options.manager->Load(lease, range);
  uint64_t ready = range.begin;
  while (true) {
    const auto waited = steady_clock::now();
    Result<std::optional<LeasedChunk>> next = load.Next(wish.deadline);
    result->load_ms += MsSince(waited);
    if (!next.ok()) {
      result->reason = next.status();
      break;
    }
    if (!next->has_value()) {
      if (Status end = load.report().status; !end.ok()) result->reason = std::move(end);
      break;
    }
    const LeasedChunk& chunk = **next;
    const TokenRange payload_tokens = chunk.payload_tokens();
    const uint64_t end = chunk.matched_tokens().end;
    if (!traits.recurrent && payload_tokens.begin != ready) {
      result->reason = InternalError("the load goes on at token " + std::to_string(payload_tokens.begin) +
                                     ", not " + std::to_string(ready));
      break;
    }
    const auto injecting = steady_clock::now();
    const ScratchSequence::Injection injection = scratch.Inject(slot, chunk.payload(), payload_tokens, end);
    result->set_data_ms += MsSince(injecting);
    if (!injection.status.ok()) {
      ++counters.injection_failures;
      result->reason = injection.status;
      if (!injection.slot_intact) ready = scratch.Cut(slot, 0);
      break;
    }
    if (result->by_tier.size() <= chunk.tier()) result->by_tier.resize(chunk.tier() + 1);
    TierShare& share = result->by_tier[chunk.tier()];
    ++share.objects;
    share.tokens += traits.recurrent ? end - range.begin : end - ready;
    ready = end;
    ++counters.injected_chunks;
    ++result->loaded_objects;
    result->loaded_bytes += chunk.payload().size();
    if (options.check_logits) record.unreported.push_back(chunk.id().key);
  }
  load.Cancel();
  result->loaded_tokens = ready - std::min(ready, range.begin);
  return ready;
}

}  // namespace terrace::llamacpp
