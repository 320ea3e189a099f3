// What a model run looks up and loads.
#include <algorithm>
#include <array>

#include "tests/model/model_payload.h"
#include "tests/model/model_run.h"

namespace terrace {

// A lookup that extends its request's lease may know the earlier chunks as they lay at the earlier lookup.
void ModelRun::TakeEarlierPlaces(uint64_t request_id, uint64_t host_tokens, ModelMatch& match) {
  const auto earlier = requests_[request_id].lock();
  if (!earlier || earlier->has_ended) return;
  uint64_t earlier_host_tokens = 0;
  bool all_in_host = true;
  for (size_t i = 0; i < match.items.size(); ++i) {
    ModelItem& item = match.items[i];
    bool in_host = item.in_host;
    for (const ModelItem& known : earlier->match.items) {
      if (known.node != item.node || known.part != item.part) continue;
      item.is_unsure = known.is_unsure || known.in_host != item.in_host;
      if (!known.is_unsure) in_host = known.in_host;
    }
    all_in_host &= in_host;
    const bool is_whole = i + 1 == match.items.size() || match.items[i + 1].node != item.node;
    if (all_in_host && is_whole) earlier_host_tokens = item.matched.end;
  }
  const bool is_between = host_tokens >= earlier_host_tokens && host_tokens < match.host_tokens;
  if (is_between) match.host_tokens = host_tokens;
}

void ModelRun::Lookup() {
  if (leases_.size() >= kMaxHeld) return ReleaseLease();
  const size_t root = DrawRoot();
  const Prompt prompt = DrawPrompt();
  LookupOptions options;
  options.request_id = Chance(0.5) ? 1 + Draw(kNumRequests) : 0;
  options.parts = DrawParts(root);
  if (Chance(0.2)) options.max_tokens = Draw(prompt.tokens.size() + 1);
  const uint64_t limit = std::min<uint64_t>(options.max_tokens, prompt.tokens.size());
  const std::vector<ObjectPart> parts = AskedParts(root, options.parts);
  std::vector<ModelMatch> matches = model_->Matches(root, prompt.view(), limit, parts);
  Result<Lease> lease = manager_->Lookup(model_->roots()[root].key, prompt.view(), options);
  if (!Expect(lease.ok(), "a Lookup failed")) return;
  Expect(lease->matched_tokens() == matches[0].matched_tokens,
         "a Lookup matches " + std::to_string(lease->matched_tokens()) + " tokens, not " +
             std::to_string(matches[0].matched_tokens));
  const ModelMatch expected = matches[0];
  if (options.request_id != 0) {
    for (ModelMatch& match : matches) TakeEarlierPlaces(options.request_id, lease->host_tokens(), match);
  }
  std::erase_if(matches, [&](const ModelMatch& match) {
    return match.items.size() != lease->num_objects() || match.frame_bytes != lease->frame_bytes() ||
           match.host_tokens != lease->host_tokens();
  });
  if (matches.empty()) {
    Expect(false, "a lease counts wrong: " + std::to_string(lease->num_objects()) + " objects, " +
                      std::to_string(lease->frame_bytes()) + " bytes, " +
                      std::to_string(lease->host_tokens()) + " host tokens; not " +
                      std::to_string(expected.items.size()) + ", " + std::to_string(expected.frame_bytes) +
                      ", " + std::to_string(expected.host_tokens));
    return;
  }
  bool extends_hint = false;
  uint64_t earlier_bytes = 0;
  if (options.request_id != 0) {
    if (const auto earlier = requests_[options.request_id].lock()) {
      if (!earlier->has_ended)
        earlier_bytes = earlier->host_bytes + earlier->lower_bytes + earlier->unsure_bytes;
      extends_hint = !earlier->has_ended && !(earlier->protects_host && earlier->protects_lower);
      model_->EndLease(*earlier);
    }
  }
  counts_.matched_lookups += lease->matched_tokens() > 0 ? 1 : 0;
  const bool is_ambiguous = matches.size() > 1;
  std::shared_ptr<ModelLease> model =
      model_->AddLease(root, options.request_id, std::move(matches[0]), is_ambiguous, clock_.Now());
  model_->SetProtected(*model, lease->is_protected(), earlier_bytes, extends_hint);
  if (options.request_id != 0) requests_[options.request_id] = model;
  if (Chance(model->match.items.empty() ? 0.2 : 0.8))
    leases_.push_back({*std::move(lease), std::move(model), prompt});
}

void ModelRun::ReleaseLease() {
  if (leases_.empty()) return;
  const size_t at = Draw(leases_.size());
  leases_.erase(leases_.begin() + static_cast<ptrdiff_t>(at));
}

std::shared_ptr<ModelRun::ModelLoad> ModelRun::MakeModelLoad(const HeldLease& lease, TokenRange range) {
  auto load = std::make_shared<ModelLoad>();
  load->lease = lease.model;
  load->made_at = model_->tick();
  load->made_when = clock_.Now();
  load->begin = range.begin;
  for (ModelItem item : lease.model->match.items) {
    if (item.matched.begin < range.begin || item.matched.begin >= range.end) continue;
    item.matched.end = std::min(item.matched.end, range.end);
    load->items.push_back(item);
  }
  return load;
}

void ModelRun::Load() {
  if (leases_.empty()) return Lookup();
  if (loads_.size() >= kMaxHeld) return DropLoad();
  const auto is_match = [](const HeldLease& held) { return !held.model->match.items.empty(); };
  auto at = leases_.begin() + static_cast<ptrdiff_t>(Draw(leases_.size()));
  if (!is_match(*at)) at = std::find_if(leases_.begin(), leases_.end(), is_match);
  if (at == leases_.end()) return Lookup();
  const HeldLease& lease = *at;
  const KvSpec& spec = model_->roots()[lease.model->root].spec;
  TokenRange range{0, lease.lease.matched_tokens()};
  if (spec.groups.size() == 1 && Chance(0.3)) {
    range.end = Draw(range.end + 1);
    range.begin = Draw(range.end / spec.tokens_per_chunk + 1) * spec.tokens_per_chunk;
  }
  std::shared_ptr<ModelLoad> model = MakeModelLoad(lease, range);
  loads_.push_back({manager_->Load(lease.lease, range), std::move(model)});
}

// Bytes of an object's payload are those of a save that no erase had ended before the load began. Returns
// the save.
uint64_t ModelRun::CheckPayload(const ModelLoad& load, const ObjectId& id, Bytes payload) {
  const ModelNode* node = model_->Find(id.key);
  if (!Expect(node != nullptr, "a load gives an object that was never stored")) return 0;
  const uint64_t number = ModelPayload::SaveOf(payload);
  const auto& saves = model_->ObjectOf(*node, id.part).saves;
  const auto save =
      std::find_if(saves.begin(), saves.end(), [&](const ModelSave& s) { return s.number == number; });
  const bool is_known = save != saves.end() && save->payload_bytes == payload.size();
  if (!model_->Expect(is_known, "a load gives bytes that were never committed", *node, id.part)) return 0;
  // What a failed erase left on the disk, unknown, may answer for a later save of the same object.
  const bool was_left = control_->unsure_erases.contains(id);
  model_->Expect(save->ended_at >= load.made_at || was_left, "a load gives bytes that were erased before it",
                 *node, id.part);
  model_->Expect(ModelPayload(id, number).Equals(payload), "a load gives wrong bytes", *node, id.part);
  return number;
}

void ModelRun::CheckReport(const LoadHandle& handle, const ModelLoad& load) {
  const LoadReport report = handle.report();
  Expect(report.loaded_objects == load.taken && report.loaded_bytes == load.bytes,
         "a report counts objects or bytes wrong");
  if (load.lease->is_ambiguous) return;
  const uint64_t from = model_->RecomputeFrom(load.lease->root, load.items, load.taken, load.begin);
  Expect(report.recompute_from == from, "a report says recompute from " +
                                            std::to_string(report.recompute_from) + ", not " +
                                            std::to_string(from));
  Expect(report.loaded_tokens == from - load.begin, "a report counts tokens wrong");
}

// The load gives nothing more: is everything loaded, or is there a reason?
void ModelRun::CheckLoadEnd(HeldLoad& held) {
  ModelLoad& load = *held.model;
  const Status status = held.handle.report().status;
  load.has_ended = true;
  if (load.taken == load.items.size()) {
    Expect(status.ok() || load.is_cancelled, "a whole load has an error");
    return;
  }
  ++counts_.failed_loads;
  Expect(!status.ok(), "a load ends early without a word");
  if (load.is_cancelled || options_.with_faults || load.lease->is_ambiguous) return;
  if (status.code() == StatusCode::kNotFound) {
    // The first that is missing, or one behind it, left the tiers since the lookup.
    const bool has_left =
        std::any_of(load.items.begin() + static_cast<ptrdiff_t>(load.taken), load.items.end(),
                    [&](const ModelItem& item) {
                      const ModelObject& object = model_->ObjectOf(*item.node, item.part);
                      return std::max(object.left_at[0], object.left_at[1]) >= load.lease->made_at;
                    });
    Expect(has_left, "a load misses what lies in a tier");
  } else {
    Expect(status.code() == StatusCode::kDeadlineExceeded &&
               clock_.Now() - load.made_when > std::chrono::seconds(10),
           "a load failed: " + status.ToString());
  }
}

void ModelRun::Next() {
  if (loads_.empty()) return Load();
  const size_t at = Draw(loads_.size());
  HeldLoad& held = loads_[at];
  ModelLoad& load = *held.model;
  // Nobody else is here who could bring what is missing: a poll, that is; but one that may be waiting for
  // room asks for it only while it waits.
  const bool may_want_room = IsQuiet() && !load.has_ended;
  const TimePoint now = std::chrono::steady_clock::now();
  Result<std::optional<LeasedChunk>> next =
      held.handle.Next(may_want_room ? now + std::chrono::milliseconds(20) : now);
  if (!next.ok()) {
    Expect(next.status().code() == StatusCode::kDeadlineExceeded, "a Next failed");
    Expect(!load.has_ended && !load.is_cancelled, "a load that has ended makes wait");
    if (!may_want_room) return;
    // Everything has arrived, so it waits for room: others hold it.
    Expect(!chunks_.empty() || !writables_.empty() || loads_.size() > 1 || !leases_.empty() ||
               !control_->orphans.empty(),
           "a load waits for room that nobody holds");
    return EraseLoad(at);
  }
  if (!next->has_value()) {
    CheckLoadEnd(held);
    return CheckReport(held.handle, load);
  }
  LeasedChunk chunk = **std::move(next);
  if (!Expect(!load.is_cancelled && load.taken < load.items.size(), "a load gives more than its lease names"))
    return;
  ModelItem& item = load.items[load.taken++];
  const ModelNode* node = model_->Find(chunk.id().key);
  const bool is_its_turn =
      node == item.node || (load.lease->is_ambiguous && node != nullptr && node->parent == item.node->parent);
  Expect(is_its_turn && chunk.id().part == item.part, "a load gives its objects in another order");
  if (!is_its_turn) return;
  Expect(chunk.payload_tokens().begin == node->first_token &&
             chunk.payload_tokens().end == node->end_token() &&
             chunk.matched_tokens().begin == item.matched.begin &&
             chunk.matched_tokens().end == item.matched.end,
         "a chunk names other tokens");
  load.bytes += chunk.payload().size();
  const ObjectId id = chunk.id();
  const uint64_t save = CheckPayload(load, id, chunk.payload());
  ++counts_.loaded_objects;
  CheckReport(held.handle, load);
  if (chunks_.size() < kMaxHeld && Chance(0.4)) chunks_.push_back({std::move(chunk), held.model, id, save});
}

void ModelRun::ReleaseChunk() {
  if (chunks_.empty()) return;
  const size_t at = Draw(chunks_.size());
  HeldChunk held = std::move(chunks_[at]);
  chunks_.erase(chunks_.begin() + static_cast<ptrdiff_t>(at));
  Expect(ModelPayload(held.id, held.save).Equals(held.chunk.payload()), "bytes changed while they were held");
  if (std::find(limbo_.begin(), limbo_.end(), held.model) == limbo_.end() && !IsQuiet())
    limbo_.push_back(held.model);
}

void ModelRun::EraseLoad(size_t at) {
  // A read in flight keeps the load, and the load its lease.
  if (!IsQuiet()) limbo_.push_back(loads_[at].model);
  loads_.erase(loads_.begin() + static_cast<ptrdiff_t>(at));
}

void ModelRun::DropLoad() {
  if (loads_.empty()) return;
  const size_t at = Draw(loads_.size());
  HeldLoad& held = loads_[at];
  if (Chance(0.5)) return EraseLoad(at);
  held.handle.Cancel();
  held.model->is_cancelled = true;
  const Result<std::optional<LeasedChunk>> next = held.handle.Next(std::chrono::steady_clock::now());
  Expect(next.ok() && !next->has_value(), "a cancelled load goes on");
  CheckLoadEnd(held);
  CheckReport(held.handle, *held.model);
}

void ModelRun::LoadToMemory() {
  if (leases_.empty()) return Lookup();
  const HeldLease& lease = leases_[Draw(leases_.size())];
  if (lease.model->is_ambiguous || lease.model->match.items.empty()) return;
  HeldLoad held{LoadHandle(), MakeModelLoad(lease, {0, lease.lease.matched_tokens()})};
  std::vector<std::vector<std::byte>> memory;
  for (const ModelItem& item : held.model->items) {
    // Saves of one object differ in length; the lease names the one that it found.
    const auto& saves = model_->ObjectOf(*item.node, item.part).saves;
    const auto save = std::find_if(saves.rbegin(), saves.rend(), [&](const ModelSave& s) {
      return kTierPageBytes + (s.payload_bytes + 4095) / 4096 * 4096 == item.frame_bytes;
    });
    if (save == saves.rend()) return;
    memory.emplace_back(save->payload_bytes);
  }
  const std::vector<MutableBytes> sink(memory.begin(), memory.end());
  held.handle = manager_->Load(lease.lease, {0, lease.lease.matched_tokens()}, {.memory = sink});
  Settle();
  const LoadReport report =
      held.handle.Wait(std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
  Settle();
  if (report.status.code() == StatusCode::kInvalidArgument) return;  // another save of as many pages
  for (size_t i = 0; i < report.loaded_objects; ++i) {
    const ModelItem& item = held.model->items[i];
    CheckPayload(*held.model, {item.node->key, item.part}, memory[i]);
    held.model->bytes += memory[i].size();
    ++counts_.loaded_objects;
  }
  held.model->taken = report.loaded_objects;
  held.model->is_cancelled = report.status.code() == StatusCode::kDeadlineExceeded;
  CheckLoadEnd(held);
  CheckReport(held.handle, *held.model);
}

}  // namespace terrace
