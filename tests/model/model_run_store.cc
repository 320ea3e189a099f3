// What a model run stores and erases.
#include <algorithm>
#include <array>

#include "tests/model/model_payload.h"
#include "tests/model/model_run.h"

namespace terrace {

TokenView ModelRun::Prompt::First(uint64_t n) const {
  const auto end =
      std::find_if(items.begin(), items.end(), [&](const Item& item) { return item.position >= n; });
  return {std::span(tokens).first(n), {items.begin(), end}};
}

// Few distinct tokens, and mostly a variation of what was asked for before: prompts share prefixes.
ModelRun::Prompt ModelRun::DrawPrompt() {
  constexpr size_t kMaxPrompts = 12;
  Prompt prompt;
  const auto token = [&] { return static_cast<Token>(Chance(0.7) ? 0 : 1 + Draw(2)); };
  if (!prompts_.empty() && Chance(0.93)) {
    prompt = prompts_[Draw(prompts_.size())];
    if (Chance(0.1)) prompt.tokens[Draw(prompt.tokens.size())] = token();
    if (Chance(0.15)) prompt.tokens.resize(1 + Draw(prompt.tokens.size()));
    for (uint64_t n = Chance(0.2) ? Draw(8) : 0; n > 0 && prompt.tokens.size() < 24; --n)
      prompt.tokens.push_back(token());
    std::erase_if(prompt.items, [&](const Item& item) { return item.position >= prompt.tokens.size(); });
  } else {
    prompt.tokens.resize(1 + Draw(22));
    for (Token& t : prompt.tokens) t = token();
  }
  if (Chance(0.04)) {
    prompt.items.clear();
    for (uint64_t at = Draw(8); at < prompt.tokens.size(); at += 1 + Draw(12)) {
      prompt.items.push_back({at, std::vector<std::byte>(1 + Draw(2), std::byte{7})});
    }
  }
  if (prompts_.size() < kMaxPrompts) {
    prompts_.push_back(prompt);
  } else {
    prompts_[Draw(kMaxPrompts)] = prompt;
  }
  return prompt;
}

std::vector<ObjectPart> ModelRun::DrawParts(size_t root) {
  const std::vector<ObjectPart>& all = model_->roots()[root].parts;
  if (all.size() == 1 || Chance(0.4)) return {};
  if (Chance(0.6)) return all;
  std::vector<ObjectPart> some;
  for (const ObjectPart part : all) {
    if (Chance(0.5)) some.push_back(part);
  }
  return some;
}

std::vector<ObjectPart> ModelRun::AskedParts(size_t root, std::vector<ObjectPart> parts) const {
  if (!parts.empty()) return parts;
  for (uint16_t group = 0; group < model_->roots()[root].spec.groups.size(); ++group)
    parts.push_back({group, 0});
  return parts;
}

uint64_t ModelRun::DrawPayloadBytes(const ModelRoot& root, TokenRange tokens, ObjectPart part) {
  if (root.spec.payload_form == PayloadForm::kCanonical)
    return root.spec.PayloadBytes(part, static_cast<uint32_t>(tokens.end - tokens.begin));
  const uint64_t kind = Draw(200);
  if (kind == 0) return limits_.pool_bytes / 2 + Draw(limits_.pool_bytes);
  if (kind < 20) return 60'000 + Draw(240'000);
  return 5'000 + Draw(15'000);
}

// One Prepare: what was asked for, and what the manager asked back.
struct ModelRun::Walk {
  size_t root;
  TokenRange range;
  std::vector<ObjectPart> parts;
  struct Asked {
    ModelNode* node;
    ObjectPart part;
    TokenRange tokens;
    uint64_t claim = 0;  // not 0: the manager asked for its size, so it is absent
    uint64_t payload_bytes = 0;
    bool is_refused = false;  // the callback answered with an error
  };
  std::vector<Asked> asked;  // in the order of the answers
  bool was_quiet;
};

void ModelRun::Prepare() {
  if (writables_.size() >= 4 * kMaxHeld) return Abandon();
  Walk walk{.root = DrawRoot(), .range = {}, .parts = {}, .asked = {}, .was_quiet = false};
  const ModelRoot& root = model_->roots()[walk.root];
  const uint64_t size = root.spec.tokens_per_chunk;
  const Prompt prompt = DrawPrompt();
  walk.range.end = Chance(0.7) ? prompt.tokens.size() : 1 + Draw(prompt.tokens.size());
  walk.range.begin = Chance(0.6) ? 0 : Draw(walk.range.end / size + 1) * size;
  const std::vector<ObjectPart> parts = DrawParts(walk.root);
  walk.parts = AskedParts(walk.root, parts);
  ModelNode* node = model_->RootNode(walk.root);
  for (uint64_t begin = 0; begin < walk.range.end; begin += size) {
    const TokenRange tokens{begin, std::min(begin + size, walk.range.end)};
    node = model_->Chunk(walk.root, node, prompt.view(), tokens);
    if (begin < walk.range.begin) continue;
    for (const ObjectPart part : walk.parts) walk.asked.push_back({node, part, tokens});
  }
  walk.was_quiet = IsQuiet() && pending_writes_ == 0 && writables_.empty() && loads_.empty() &&
                   chunks_.empty() && leases_.empty() && limbo_.empty() && control_->orphans.empty();
  model_->moment().may_be_writing = true;  // what is present is offered to the disk again
  const auto sizes = [&](TokenRange tokens, ObjectPart part) -> Result<uint64_t> {
    const auto asked = std::find_if(walk.asked.begin(), walk.asked.end(), [&](const Walk::Asked& a) {
      return a.tokens.begin == tokens.begin && a.tokens.end == tokens.end && a.part == part;
    });
    if (!Expect(asked != walk.asked.end(), "a size was asked for that is not of this store"))
      return InternalError("");
    ModelObject& object = model_->ObjectOf(*asked->node, part);
    // What was committed may have been published and have lost its only write since.
    const bool may_be_lost = has_run_since_commit_ &&
                             std::any_of(committed_.begin(), committed_.end(),
                                         [&](const Committed& done) { return done.claim == object.claim; });
    model_->Expect((object.claim == 0 || may_be_lost) && !object.IsAnywhere(),
                   "absent for the manager, not for the model", *asked->node, part);
    asked->claim = object.claim = model_->NewNumber();
    asked->payload_bytes = DrawPayloadBytes(root, tokens, part);
    asked->is_refused = Chance(0.01);
    if (asked->is_refused) return UnavailableError("no size");
    return asked->payload_bytes;
  };
  Result<PrepareResult> result = manager_->Prepare(root.key, prompt.view(), walk.range, sizes, parts);
  CheckPrepared(walk, result);
}

void ModelRun::CheckPrepared(Walk& walk, Result<PrepareResult>& result) {
  if (!Expect(result.ok(), "a Prepare was refused")) return;
  if (!Expect(result->chunks.size() <= walk.asked.size(), "a Prepare answers more than was asked")) return;
  for (size_t i = 0; i < result->chunks.size(); ++i) {
    PreparedChunk& answer = result->chunks[i];
    Walk::Asked& asked = walk.asked[i];
    const ObjectId id{asked.node->key, asked.part};
    ModelObject& object = model_->ObjectOf(*asked.node, asked.part);
    const bool is_right_place =
        answer.id == id && answer.tokens.begin == asked.tokens.begin && answer.tokens.end == asked.tokens.end;
    model_->Expect(is_right_place && answer.present == !answer.writable,
                   "an answer of a Prepare is misplaced", *asked.node, asked.part);
    if (answer.present) {
      const bool left_now = object.left_at[0] == model_->tick() || object.left_at[1] == model_->tick();
      const bool may_be_there = object.claim != 0 || object.IsAnywhere() || left_now;
      model_->Expect(asked.claim == 0 && (may_be_there || pending_writes_ > 0),
                     "present for the manager, not for the model", *asked.node, asked.part);
      continue;
    }
    if (!answer.writable) return;
    model_->Expect(asked.claim != 0 && !asked.is_refused, "writable, but no size was asked for", *asked.node,
                   asked.part);
    if (model_->NeedsParent(*asked.node, asked.part) && pending_writes_ == 0 && asked.claim != 0) {
      const ModelObject& parent = model_->ObjectOf(*asked.node->parent, asked.part);
      model_->Expect(parent.claim != 0 || parent.IsAnywhere(), "a store went on over a hole", *asked.node,
                     asked.part);
    }
    model_->Expect(answer.writable->payload().size() == asked.payload_bytes && answer.writable->id() == id,
                   "a writable chunk is of another object or size", *asked.node, asked.part);
    writables_.push_back(
        {*std::move(answer.writable), asked.node, asked.part, asked.claim, life_, asked.payload_bytes});
  }
  CheckPreparedEnd(walk, result->chunks.size(), result->status);
}

void ModelRun::CheckPreparedEnd(const Walk& walk, size_t at, const Status& status) {
  if (at == walk.asked.size()) {
    Expect(status.ok(), "a whole Prepare has an error");
    return;
  }
  const Walk::Asked& asked = walk.asked[at];
  ModelObject& object = model_->ObjectOf(*asked.node, asked.part);
  if (asked.claim != 0 && object.claim == asked.claim) object.claim = 0;  // given back
  if (asked.is_refused) {
    Expect(status.code() == StatusCode::kUnavailable, "the callback's error is lost");
  } else if (asked.claim == 0) {
    model_->Expect(status.code() == StatusCode::kFailedPrecondition &&
                       model_->NeedsParent(*asked.node, asked.part) &&
                       !model_->IsReachable(*asked.node->parent, asked.part, 0, true),
                   "a store ended although its parent is there", *asked.node, asked.part);
  } else {
    const bool may_be_full = !walk.was_quiet || at > 0 || options_.with_faults ||
                             asked.payload_bytes + 3 * kTierPageBytes > limits_.pool_bytes;
    model_->Expect(status.code() == StatusCode::kResourceExhausted && may_be_full,
                   "a store ended although everything may be evicted", *asked.node, asked.part);
  }
}

// A run of what is prepared, in its order; now and then only a part of it.
void ModelRun::Commit() {
  if (writables_.empty()) return;
  const size_t begin = Chance(0.8) ? 0 : Draw(writables_.size());
  const size_t n = 1 + (Chance(0.8) ? writables_.size() - begin - 1 : Draw(writables_.size() - begin));
  std::vector<WritableChunk> filled;
  for (size_t i = begin; i < begin + n; ++i) {
    HeldWritable& held = writables_[i];
    ModelObject& object = model_->ObjectOf(*held.node, held.part);
    const uint64_t save = held.claim;
    ModelPayload(held.chunk.id(), save).Fill(held.chunk.payload());
    if (held.life == life_) {
      if (object.claim == held.claim) {
        object.saves.push_back({save, held.payload_bytes});
      }
      committed_.push_back({held.node, held.part, held.claim});
      ++commits_of_life_;
      ++counts_.commits;
    }
    filled.push_back(std::move(held.chunk));
  }
  writables_.erase(writables_.begin() + static_cast<ptrdiff_t>(begin),
                   writables_.begin() + static_cast<ptrdiff_t>(begin + n));
  manager_->Commit(std::move(filled));
  has_run_since_commit_ = false;
}

void ModelRun::ResolveCommits() {
  for (const Committed& done : committed_) {
    ModelObject& object = model_->ObjectOf(*done.node, done.part);
    if (object.claim == done.claim) object.claim = 0;
  }
  committed_.clear();
}

void ModelRun::Abandon() {
  if (writables_.empty()) return;
  const size_t at = Draw(writables_.size());
  HeldWritable held = std::move(writables_[at]);
  writables_.erase(writables_.begin() + static_cast<ptrdiff_t>(at));
  ModelObject& object = model_->ObjectOf(*held.node, held.part);
  if (object.claim == held.claim) object.claim = 0;
}

void ModelRun::Erase() {
  std::vector<ModelNode*> stored;
  model_->ForEachObject([&](ModelNode& node, ObjectPart, ModelObject& object) {
    if (object.IsAnywhere() || object.claim != 0) stored.push_back(&node);
  });
  if (stored.empty()) return;
  std::vector<ChunkKey> keys;
  std::vector<ModelNode*> tops;
  for (uint64_t n = 1 + Draw(2); n > 0; --n) {
    ModelNode* node = stored[Draw(stored.size())];
    if (node->first_token == 0 && Chance(0.7)) continue;  // whole trees go seldom
    if (!IsEraseSaid(*node)) continue;
    keys.push_back(node->key);
    tops.push_back(node);
  }
  EraseBelow(tops, [&] { return manager_->Erase(keys); });
}

// Where a chunk is known by name alone an erase takes more than what hangs below: all that may. With faults
// the model does not know where that is.
bool ModelRun::IsEraseSaid(const ModelNode& node) const {
  const std::vector<GroupSpec>& groups = model_->roots()[node.root].spec.groups;
  const bool may_be_unlinked = std::any_of(
      groups.begin(), groups.end(), [](const GroupSpec& group) { return group.rule != Retention::kFull; });
  return !may_be_unlinked || (!options_.with_faults && !model_->HasHoleBelow(*model_->RootNode(node.root)));
}

// `erase` is to end what hangs below the chunks, themselves included.
void ModelRun::EraseBelow(const std::vector<ModelNode*>& tops,
                          const std::function<Result<uint64_t>()>& erase) {
  // Writes that are in flight are waited for, and nobody else is here to end them.
  control_->Drain(false);
  uint64_t expected = 0;
  for (ModelNode* node : tops) expected += model_->EndSubtree(*node);
  model_->moment().is_erasing = true;
  const Result<uint64_t> count = erase();
  model_->moment().is_erasing = false;
  if (!count.ok()) {
    Expect(options_.with_faults, "an Erase failed");
    for (ModelNode* node : tops) model_->ReviveSubtree(*node);
    return;
  }
  Expect(*count == expected || options_.with_faults,
         "an Erase counts " + std::to_string(*count) + " objects, not " + std::to_string(expected));
  counts_.erased += *count;
  model_->ForEachObject([&](ModelNode& node, ObjectPart part, ModelObject& object) {
    const bool has_ended = std::all_of(object.saves.begin(), object.saves.end(),
                                       [](const ModelSave& save) { return save.ended_at != UINT64_MAX; });
    if (!has_ended) return;
    model_->Expect(!object.IsAnywhere(), "an erased object is in a tier", node, part);
    if (options_.with_faults) return;
    model_->Expect(!platters_->objects.contains({node.key, part}), "an erased object is on the disk", node,
                   part);
  });
}

void ModelRun::Clear() {
  control_->Drain(false);
  model_->EndAll();
  model_->moment().is_erasing = true;
  const Status status = manager_->Clear();
  model_->moment().is_erasing = false;
  Expect(status.ok() || options_.with_faults, "a Clear failed");
  if (!status.ok()) {
    for (const auto& [id, object] : platters_->objects) control_->unsure_erases.insert(id);
    for (size_t root = 0; root < model_->roots().size(); ++root)
      model_->ReviveSubtree(*model_->RootNode(root));
    return;
  }
  Expect(model_->num_present(0) + model_->num_present(1) == 0, "a Clear left something");
  Expect(platters_->objects.empty(), "a Clear left something on the disk");
}

void ModelRun::Flush() {
  Settle();
  const Status status = manager_->Flush(std::chrono::steady_clock::now() + std::chrono::seconds(20));
  Expect(status.ok() || options_.with_faults, "a Flush failed");
}

void ModelRun::PollFlush() {
  // What was committed and then erased leaves no trace when it has run.
  const bool is_pending = !committed_.empty() && !has_run_since_commit_;
  const bool is_drained = IsQuiet() && pending_writes_ == 0;
  const Status status = manager_->Flush(std::chrono::steady_clock::now());
  if (is_pending)
    Expect(status.code() == StatusCode::kDeadlineExceeded, "a Flush does not wait for a commit");
  if (is_drained && !options_.with_faults) Expect(status.ok(), "a Flush waits for nothing");
}

}  // namespace terrace
