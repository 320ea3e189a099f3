// The remote part of a lookup: a tier that answers for itself is asked for what lies beyond the local match.
// Its answer is checked against what was asked, and its bytes against the keys when they are loaded.
#include "lib/storage/remote_lookup.h"

#include <algorithm>
#include <optional>

#include "lib/storage/asked.h"
#include "lib/storage/manager_core.h"

namespace terrace {
namespace {

// No sum here overflows, whatever was answered: a pool is far below 2^64 bytes.
bool IsLoadable(uint64_t frame_bytes, uint64_t pool_bytes) {
  return frame_bytes > 0 && frame_bytes % kFrameAlignment == 0 && frame_bytes <= pool_bytes &&
         frame_bytes + kTierPageBytes <= pool_bytes;
}

// The objects that the answer promises, in order, up to the first that it cannot. Empty: the answer is of no
// use. `matched_tokens`: what they cover, counted from the prompt's beginning.
std::vector<LeaseItem> PromisedItems(const RemoteQuestion& question, const PrefixMatch& match,
                                     uint64_t pool_bytes, uint64_t& matched_tokens) {
  const KvSpec& spec = question.root->spec;
  const uint64_t chunk_tokens = spec.tokens_per_chunk;
  const uint64_t begin = question.first_chunk * chunk_tokens;
  const uint64_t promised = std::min(match.matched_tokens, question.limit - begin);
  const size_t num_parts = question.parts.size();
  const uint64_t num_chunks = (promised + chunk_tokens - 1) / chunk_tokens;
  // What its group's rule asks for before the boundary.
  const auto is_needed = [&](uint64_t i, ObjectPart part) {
    const GroupSpec& group = spec.groups[part.group];
    if (group.rule == Retention::kState) return i + 1 == num_chunks;
    if (group.rule == Retention::kWindow) return i + WindowChunks(group, spec.tokens_per_chunk) >= num_chunks;
    return true;
  };
  const bool all_full = std::all_of(question.parts.begin(), question.parts.end(), [&](ObjectPart part) {
    return question.root->RuleOf(part.group) == Retention::kFull;
  });
  std::vector<LeaseItem> items;
  for (uint64_t i = 0; i * chunk_tokens < promised; ++i) {
    if ((i + 1) * num_parts > match.chunks.size()) break;
    const uint64_t first = i * chunk_tokens;
    const uint64_t tokens = std::min(chunk_tokens, promised - first);
    const bool is_full = tokens == chunk_tokens && i < question.keys.size();
    const ChunkKey& parent = i == 0 ? question.parent : question.keys[i - 1];
    const auto content = [&] {
      return SliceContent({question.content.tokens, question.content.items}, {first, first + tokens});
    };
    // Empty: of a chunk that goes on beyond the match the key says nothing. Payloads that cannot be cut are
    // of use only where nothing goes on, and then the key does follow.
    std::optional<ChunkKey> key;
    if (is_full) {
      key = question.keys[i];
    } else if (spec.cut == Cut::kNone) {
      key = TokenHasher::KeyOf(parent, content());
    }
    for (size_t p = 0; p < num_parts; ++p) {
      if (!is_needed(i, question.parts[p])) continue;
      const ChunkPresence& presence = match.chunks[i * num_parts + p];
      const bool is_right =
          presence.present && IsLoadable(presence.frame_bytes, pool_bytes) && (!key || presence.key == *key);
      if (!is_right) {
        // Of a chunk all parts or none; what windows and states need at an earlier boundary was not asked.
        items.resize(all_full ? i * num_parts : 0);
        if (!all_full) matched_tokens = 0;
        return items;
      }
      LeaseItem item;
      item.id = {presence.key, question.parts[p]};
      item.chunk_index = question.first_chunk + i;
      item.payload_tokens = {begin + first, begin + first + tokens};
      item.matched_tokens = item.payload_tokens;
      item.meta.frame_bytes = presence.frame_bytes;
      item.meta.division = question.root->division;
      item.root = question.root.get();
      item.fastest_tier = static_cast<uint8_t>(question.tier);
      item.remote_tier = question.tier;
      auto identity = std::make_shared<LeaseItem::RemoteIdentity>();
      identity->parent = parent;
      if (!key) identity->begins_with = content();
      item.remote_identity = std::move(identity);
      items.push_back(std::move(item));
    }
    matched_tokens = begin + first + tokens;
    if (!is_full) break;  // only full chunks have children
  }
  return items;
}

PrefixQuery QueryOf(const RemoteQuestion& question) {
  PrefixQuery query;
  query.root = question.root->root;
  query.parent = question.parent;
  query.tokens_per_chunk = question.root->spec.tokens_per_chunk;
  query.first_token = question.first_chunk * query.tokens_per_chunk;
  query.keys = question.keys;
  query.content = question.content;
  query.parts = question.parts;
  query.run_key = question.run_key;
  query.division = question.root->division;
  return query;
}

}  // namespace

void ManagerCore::AskRemote(const std::shared_ptr<Lease::State>& lease, const Asked& asked,
                            const TokenView& prompt, const LookupOptions& options, RequestTracer& tracer) {
  const auto tier =
      std::find_if(tiers_.begin(), tiers_.end(), [](const TierState& t) { return t.answers_itself; });
  if (tier == tiers_.end() || options.remote_deadline <= Duration::zero()) return;
  const uint64_t limit = std::min<uint64_t>(prompt.tokens.size(), options.max_tokens);
  if (lease->matched_tokens >= limit) return;
  // Windows and states that lie partly here and partly there are not put together.
  const bool all_full = std::all_of(asked.parts.begin(), asked.parts.end(), [&](ObjectPart part) {
    return asked.root->RuleOf(part.group) == Retention::kFull;
  });
  if (!all_full && lease->matched_tokens > 0) return;
  auto question = std::make_shared<RemoteQuestion>();
  question->tier = static_cast<size_t>(tier - tiers_.begin());
  question->root = asked.root;
  question->parts = asked.parts;
  question->first_chunk = lease->full_chunks;
  question->limit = limit;
  question->on_remote = options.on_remote;
  question->trace = tracer.Take();
  question->asked_at = std::chrono::steady_clock::now();
  const uint64_t chunk_tokens = asked.root->spec.tokens_per_chunk;
  const std::span<const ChunkKey> keys = asked.request->keys;
  const uint64_t num_keys = std::min<uint64_t>(keys.size(), limit / chunk_tokens);
  for (uint64_t i = question->first_chunk; i < num_keys; ++i) question->keys.push_back(keys[i]);
  question->parent = question->first_chunk == 0 ? asked.root->root : keys[question->first_chunk - 1];
  if (const uint64_t begin = RunBegin(question->first_chunk); begin != question->first_chunk)
    question->run_key = keys[begin];
  question->content = SliceContent(prompt, {question->first_chunk * chunk_tokens, limit});
  PrefixQuery query = QueryOf(*question);
  query.deadline = DeadlineIn(options.remote_deadline);
  query.lease = options_.lease_time;
  {
    std::lock_guard lock(lease->mutex);
    lease->is_pending = true;
  }
  // Whatever becomes of the question: an answer, an error, or a backend that forgets it.
  struct Answer {
    std::shared_ptr<ManagerCore> core;
    std::weak_ptr<Lease::State> lease;  // it may go first: then nobody waits for the answer
    std::shared_ptr<RemoteQuestion> question;
    bool is_given = false;

    Answer(std::shared_ptr<ManagerCore> c, std::weak_ptr<Lease::State> l, std::shared_ptr<RemoteQuestion> q)
        : core(std::move(c)), lease(std::move(l)), question(std::move(q)) {}
    Answer(const Answer&) = delete;
    Answer& operator=(const Answer&) = delete;
    ~Answer() {
      if (!is_given) Give(PrefixMatch{UnavailableError("the remote tier forgot the question"), {}, 0, ""});
    }
    void Give(const PrefixMatch& match) {
      is_given = true;
      if (const auto alive = lease.lock()) {
        core->OnRemoteMatch(alive, *question, match);
        return;
      }
      if (!match.lease_token.empty()) core->tiers_[question->tier].backend->Release(match.lease_token);
      if (question->trace) core->traces_.Record(*question->trace);
    }
  };
  tier->backend->Match(std::move(query),
                       [answer = std::make_shared<Answer>(shared_from_this(), lease, question)](
                           const PrefixMatch& match) { answer->Give(match); });
}

void ManagerCore::OnRemoteMatch(const std::shared_ptr<Lease::State>& lease, const RemoteQuestion& question,
                                const PrefixMatch& match) {
  auto segment = std::make_shared<LeaseSegment>();
  segment->remote_tier = question.tier;
  segment->remote_token = match.lease_token;
  uint64_t matched_tokens = 0;
  if (match.status.ok()) {
    segment->items = PromisedItems(question, match, pool_->largest_buffer_bytes(), matched_tokens);
    NoteSeenRemotely(question, segment->items);
    for (const LeaseItem& item : segment->items) segment->frame_bytes += item.meta.frame_bytes;
  } else {
    metrics_
        ->GetCounter("terrace_manager_remote_lookup_failures_total", "Remote parts that were not answered",
                     {{"tier", tiers_[question.tier].name}})
        ->Add();
  }
  {
    std::lock_guard lock(lease->mutex);
    if (matched_tokens > lease->matched_tokens) {
      matched_tokens_->Add(matched_tokens - lease->matched_tokens);
      if (lease->tail) {
        lease->remote_replaces_tail = true;
        lease->num_objects -= lease->tail->items.size();
        lease->frame_bytes -= lease->tail->frame_bytes;
        lease->host_tokens =
            std::min<uint64_t>(lease->host_tokens, lease->full_chunks * lease->root->spec.tokens_per_chunk);
      }
      lease->CountIn(*segment);
      lease->matched_tokens = matched_tokens;
    } else {
      segment->items.clear();
    }
    matched_tokens = lease->matched_tokens;
    lease->remote = segment;
    lease->is_pending = false;
    lease->settled.notify_all();
  }
  if (question.trace) RecordRemote(*lease, question, match.status);
  if (!question.on_remote) return;
  std::shared_ptr<Executor> executor;
  {
    std::lock_guard lock(mutex_);
    executor = executor_;
  }
  if (!executor) return;
  try {
    executor->Post([core = shared_from_this(), call = question.on_remote, matched_tokens] {
      try {
        call(matched_tokens);
      } catch (...) {
        core->callback_exceptions_->Add();
      }
    });
  } catch (...) {  // of the executor: it must not reach the backend's thread
    callback_exceptions_->Add();
  }
}

// Of chunks that have children, what hangs on them and where they are placed.
void ManagerCore::NoteSeenRemotely(const RemoteQuestion& question, std::span<const LeaseItem> items) {
  std::lock_guard lock(mutex_);
  for (const LeaseItem& item : items) {
    const uint64_t place = item.chunk_index - question.first_chunk;
    if (place >= question.keys.size() || item.id.key != question.keys[place]) continue;
    const uint64_t run_start = RunBegin(item.chunk_index);
    const ChunkKey& run_key = run_start >= question.first_chunk
                                  ? question.keys[run_start - question.first_chunk]
                                  : question.run_key;
    if (!seen_remotely_.insert_or_assign(item.id, run_key).second) continue;
    seen_order_.push_back(item.id);
    if (seen_order_.size() <= kMaxSeenRemotely) continue;
    seen_remotely_.erase(seen_order_.front());
    seen_order_.pop_front();
  }
}

bool ManagerCore::IsSeenRemotely(const ObjectId& id, size_t tier) const {
  if (!seen_remotely_.contains(id)) return false;
  return std::any_of(tiers_.begin() + static_cast<ptrdiff_t>(tier), tiers_.end(),
                     [](const TierState& t) { return t.answers_itself; });
}

// It keeps its place in the order: seen again, it is forgotten the sooner.
void ManagerCore::ForgetSeenRemotely(const ObjectId& id) { seen_remotely_.erase(id); }

void ManagerCore::RecordRemote(const Lease::State& lease, const RemoteQuestion& question,
                               const Status& status) {
  RequestTrace& trace = *question.trace;
  lease.Describe(tiers_.size(), trace);
  const auto waited = std::chrono::steady_clock::now() - question.asked_at;
  trace.steps.push_back(
      {"remote",
       static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(waited).count())});
  if (!status.ok()) {
    trace.why_not = "remote tier: " + status.ToString();
  } else if (trace.planned_tokens >= question.limit) {
    trace.why_not.clear();
  }
  traces_.Record(trace);
}

void ManagerCore::ReleaseRemote(Lease::State& lease) {
  if (!lease.remote || lease.remote->remote_token.empty()) return;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
  }
  tiers_[lease.remote->remote_tier].backend->Release(lease.remote->remote_token);
}

}  // namespace terrace
