// Prefix queries of others: MatchPrefix on keys that they hashed, and leases under random names.
#include <sys/random.h>

#include <algorithm>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "lib/storage/frame_store_state.h"

namespace terrace {
namespace {

constexpr size_t kTokenBytes = 16;

// Who has not been given it does not guess it.
std::string RandomToken() {
  std::string token(kTokenBytes, '\0');
  const ssize_t got = getrandom(token.data(), token.size(), 0);
  TERRACE_CHECK(got == static_cast<ssize_t>(kTokenBytes)) << "no random bytes";
  return token;
}

}  // namespace

struct FrameStore::State::Question {
  RootStateRef root;  // null: not known, nothing matches
  std::vector<ObjectPart> parts;
  TokenView prompt;  // from the query's first token on
  MatchRequest Request(const ManagerCore& core, const PrefixQuery& query) const {
    return {.root = *root,
            .keys = query.keys,
            .prompt = prompt,
            .limit = prompt.tokens.size(),
            .parts = parts,
            .parent = &query.parent,
            .division = query.division,
            .has_host = core.HasHostTier(),
            .pool_bytes = core.pool_->largest_buffer_bytes()};
  }
};

Status FrameStore::State::Check(const PrefixQuery& query, Question& question) const {
  TERRACE_RETURN_IF_ERROR(CheckUsable());
  question.prompt = TokenView(query.content.tokens, query.content.items);
  TERRACE_RETURN_IF_ERROR(question.prompt.Validate());
  question.root = core->roots_.Find(query.root);
  if (!question.root) return OkStatus();
  const KvSpec& spec = question.root->spec;
  if (query.tokens_per_chunk != spec.tokens_per_chunk) {
    return InvalidArgumentError("chunks of " + std::to_string(query.tokens_per_chunk) +
                                " tokens; the root's have " + std::to_string(spec.tokens_per_chunk));
  }
  if (query.first_token % spec.tokens_per_chunk != 0 || query.first_token > UINT32_MAX ||
      query.content.tokens.size() > UINT32_MAX) {
    return InvalidArgumentError("a query from token " + std::to_string(query.first_token) +
                                " on; allowed: multiples of tokens_per_chunk below 2^32");
  }
  if (query.keys.size() > query.content.tokens.size() / spec.tokens_per_chunk)
    return InvalidArgumentError("more keys than the query has full chunks");
  for (const ObjectPart part : query.parts) {
    // A root says nothing of shards.
    if (part.group >= spec.groups.size()) {
      return InvalidArgumentError("group " + std::to_string(part.group) + "; allowed: below " +
                                  std::to_string(spec.groups.size()));
    }
  }
  question.parts = query.parts.empty() ? question.root->DefaultParts() : query.parts;
  return OkStatus();
}

PrefixMatch FrameStore::State::Match(const PrefixQuery& query) {
  PrefixMatch match;
  Question question;
  match.status = Check(query, question);
  if (!match.status.ok() || !question.root) return match;
  core->ReapLeases();
  MatchRequest request = question.Request(*core, query);
  request.pin = query.lease > Duration::zero();
  MatchPlan plan = MatchPrefix(*core->index_, request);
  plan.first_token = query.first_token;
  match.matched_tokens = plan.matched_tokens;
  const size_t num_parts = question.parts.size();
  for (size_t i = 0; i < plan.chunks.size(); ++i) {
    const MatchedChunk& chunk = plan.chunks[i];
    for (size_t p = 0; p < num_parts; ++p) {
      const ObjectPresence& object = plan.found[i * num_parts + p];
      match.chunks.push_back({.key = chunk.entry != nullptr ? chunk.key : query.keys[i],
                              .present = object.tiers != 0,
                              .frame_bytes = object.frame_bytes()});
    }
  }
  core->lookups_->Add();
  core->lookup_tokens_->Add(question.prompt.tokens.size());
  core->matched_tokens_->Add(plan.matched_tokens);
  if (request.pin) match.lease_token = Protect(plan, question, query.lease);
  core->RemoveUnused(plan.unused);
  return match;
}

std::string FrameStore::State::Protect(const MatchPlan& plan, const Question& question, Duration time) {
  auto lease = std::make_shared<Lease::State>();
  lease->core = core;
  lease->root = question.root;
  lease->parts = question.parts;
  const LeaseSegmentRef segment =
      core->MakeSegment(plan, *question.root, question.parts, 0, plan.chunks.size());
  segment->holds = true;
  lease->CountIn(*segment);
  lease->segments.push_back(segment);
  std::vector<ChunkKey> unused;
  const TimePoint deadline = core->DeadlineIn(std::min(time, core->options_.lease_time));
  const LeaseTable::Started started = core->leases_->Start(lease, deadline, {&segment, 1}, nullptr, unused);
  core->RemoveUnused(unused);
  core->NoteTouched(*lease);
  if (started == LeaseTable::Started::kHint) core->budget_hints_->Add();
  // A hint's holds end with it, and so does the protection of nothing.
  if (started != LeaseTable::Started::kProtected || lease->num_objects == 0) return {};
  std::string token = RandomToken();
  std::vector<std::shared_ptr<Lease::State>> dropped;  // ends after the lock
  std::lock_guard lock(mutex);
  DropLapsed(dropped);
  if (leases.size() >= kMaxLeases) {
    dropped.push_back(std::move(lease));
    return {};
  }
  leases.emplace(token, KeptLease{std::move(lease), lease_deadlines.emplace(deadline, token)});
  return token;
}

void FrameStore::State::DropLapsed(std::vector<std::shared_ptr<Lease::State>>& dropped) {
  const TimePoint now = core->clock_->Now();
  while (!lease_deadlines.empty() && lease_deadlines.begin()->first <= now) {
    const auto lapsed = leases.find(lease_deadlines.begin()->second);
    dropped.push_back(std::move(lapsed->second.lease));
    leases.erase(lapsed);
    lease_deadlines.erase(lease_deadlines.begin());
  }
}

bool FrameStore::State::Release(std::string_view token) {
  if (!CheckUsable().ok()) return false;
  std::shared_ptr<Lease::State> released;
  std::vector<std::shared_ptr<Lease::State>> dropped;  // both end after the lock
  std::lock_guard lock(mutex);
  DropLapsed(dropped);
  const auto found = leases.find(token);
  if (found == leases.end()) return false;
  released = std::move(found->second.lease);
  lease_deadlines.erase(found->second.place);
  leases.erase(found);
  return true;
}

Result<uint64_t> FrameStore::State::Pin(std::string_view name, const PrefixQuery& query) {
  Question question;
  TERRACE_RETURN_IF_ERROR(ManagerCore::CheckPinName(name));
  TERRACE_RETURN_IF_ERROR(Check(query, question));
  if (!question.root) return NotFoundError("the root is not known");
  MatchRequest request = question.Request(*core, query);
  request.pin = true;
  MatchPlan plan = MatchPrefix(*core->index_, request);
  plan.first_token = query.first_token;
  return core->KeepPin(name, plan, *question.root, question.parts);
}

}  // namespace terrace
