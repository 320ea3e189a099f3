// Peeks, pins, and erases by what objects belong to.
#include <algorithm>

#include "tests/model/model_run.h"

namespace terrace {

void ModelRun::Peek() {
  const size_t root = DrawRoot();
  const Prompt prompt = DrawPrompt();
  LookupOptions options;
  options.request_id = Chance(0.3) ? 1 + Draw(kNumRequests) : 0;
  options.parts = DrawParts(root);
  if (Chance(0.2)) options.max_tokens = Draw(prompt.tokens.size() + 1);
  const uint64_t limit = std::min<uint64_t>(options.max_tokens, prompt.tokens.size());
  const auto matches = model_->Matches(root, prompt.view(), limit, AskedParts(root, options.parts));
  const uint64_t leases = manager_->Stats().active_leases;
  const Result<PrefixPresence> seen = manager_->Peek(model_->roots()[root].key, prompt.view(), options);
  if (!Expect(seen.ok(), "a Peek failed")) return;
  const bool is_one = std::any_of(matches.begin(), matches.end(), [&](const ModelMatch& match) {
    uint64_t host_bytes = 0;
    for (const ModelItem& item : match.items) host_bytes += item.in_host ? item.frame_bytes : 0;
    return seen->matched_tokens == match.matched_tokens && seen->num_objects == match.items.size() &&
           seen->frame_bytes == match.frame_bytes && seen->host_tokens == match.host_tokens &&
           seen->host_frame_bytes == host_bytes;
  });
  Expect(is_one, "a Peek sees " + std::to_string(seen->matched_tokens) + " tokens, not " +
                     std::to_string(matches[0].matched_tokens) + ", or counts them wrong");
  Expect(manager_->Stats().active_leases == leases, "a Peek protects");
}

void ModelRun::Pin() {
  const size_t root = DrawRoot();
  const Prompt prompt = DrawPrompt();
  const std::vector<ObjectPart> parts = DrawParts(root);
  const std::string name = std::to_string(Draw(3));
  std::vector<ModelMatch> matches =
      model_->Matches(root, prompt.view(), prompt.tokens.size(), AskedParts(root, parts));
  const Result<uint64_t> pinned = manager_->Pin(name, model_->roots()[root].key, prompt.view(), parts);
  const ModelPin pin{matches[0].items, matches.size() > 1};
  if (!pinned.ok()) {
    Expect(pinned.status().code() == StatusCode::kResourceExhausted, "a Pin failed");
    return model_->CheckPinned(name, pin, false);
  }
  Expect(*pinned == matches[0].matched_tokens, "a Pin protects other tokens than match");
  model_->CheckPinned(name, pin, true);
  model_->pins()[name] = pin;
  counts_.pins += pin.items.empty() ? 0 : 1;
}

void ModelRun::Unpin() {
  if (model_->pins().empty()) {
    manager_->Unpin("no such name");
    return;
  }
  const auto pin = std::next(model_->pins().begin(), static_cast<ptrdiff_t>(Draw(model_->pins().size())));
  const bool was_there = manager_->Unpin(pin->first);
  // A name ends with the last that it protects.
  const auto& items = pin->second.items;
  const bool may_be_gone =
      items.empty() || pin->second.is_ambiguous ||
      std::any_of(items.begin(), items.end(), [](const ModelItem& item) { return item.is_unsure; });
  Expect(was_there || may_be_gone, "a pin is lost");
  model_->pins().erase(pin);
  Expect(!manager_->Unpin("no such name"), "a name is pinned that never was");
}

void ModelRun::ErasePrefix() {
  std::vector<ModelNode*> stored;
  model_->ForEachObject([&](ModelNode& node, ObjectPart, ModelObject& object) {
    if (object.IsAnywhere() || object.claim != 0) stored.push_back(&node);
  });
  if (stored.empty()) return;
  ModelNode* top = stored[Draw(stored.size())];
  if (Chance(0.1)) top = model_->RootNode(top->root);
  if (!IsEraseSaid(*top)) return;
  Prompt prompt;
  std::vector<const ModelNode*> path;
  for (const ModelNode* at = top; at->parent != nullptr; at = at->parent) path.push_back(at);
  for (auto at = path.rbegin(); at != path.rend(); ++at) {
    const ChunkContent& content = (*at)->content;
    for (const Item& item : content.items)
      prompt.items.push_back({(*at)->first_token + item.position, item.bytes});
    prompt.tokens.insert(prompt.tokens.end(), content.tokens.begin(), content.tokens.end());
  }
  const ChunkKey root = model_->roots()[top->root].key;
  EraseBelow({top}, [&] { return manager_->ErasePrefix(root, prompt.view()); });
}

void ModelRun::EraseRoots() {
  const ModelRoot& meant = model_->roots()[DrawRoot()];
  const bool by_salt = !meant.salt.empty() && Chance(0.5);
  std::vector<ModelNode*> tops;
  for (size_t i = 0; i < model_->roots().size(); ++i) {
    const ModelRoot& root = model_->roots()[i];
    if (by_salt ? root.salt == meant.salt : root.spec == meant.spec) tops.push_back(model_->RootNode(i));
  }
  EraseBelow(tops,
             [&] { return by_salt ? manager_->EraseSalt(meant.salt) : manager_->EraseSpec(meant.spec); });
}

}  // namespace terrace
