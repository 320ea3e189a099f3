#include "tests/model/manager_model.h"

#include <algorithm>

#include "terrace/token_hasher.h"

namespace terrace {

ManagerModel::ManagerModel(std::vector<ModelRoot> roots, const Limits& limits)
    : roots_(std::move(roots)), limits_(limits) {
  for (size_t i = 0; i < roots_.size(); ++i) {
    nodes_.push_back(std::make_unique<ModelNode>());
    nodes_.back()->root = i;
    nodes_.back()->key = roots_[i].key;
    root_nodes_.push_back(nodes_.back().get());
  }
}

bool ManagerModel::Expect(bool ok, std::string_view what, const ModelNode& node, ObjectPart part) {
  if (ok || !failure_.empty()) return ok;
  const ModelObject& object = ObjectOf(node, part);
  failure_ = std::string(what) + ": root " + std::to_string(node.root) + ", tokens [" +
             std::to_string(node.first_token) + ", " + std::to_string(node.end_token()) + "), group " +
             std::to_string(part.group) + ", shard " + std::to_string(part.shard) + ", key " +
             node.key.ToHex().substr(0, 8) + ", in host " + std::to_string(object.present[0]) + ", on disk " +
             std::to_string(object.present[1]) + ", claim " + std::to_string(object.claim) + ", saves " +
             std::to_string(object.saves.size());
  return ok;
}

ModelNode* ManagerModel::Find(const ChunkKey& key) const {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? nullptr : it->second;
}

ModelNode* ManagerModel::Chunk(size_t root, ModelNode* parent, const TokenView& prompt, TokenRange tokens) {
  ChunkContent content = SliceContent(prompt, tokens);
  for (ModelNode* child : parent->children) {
    if (child->content == content) return child;
  }
  auto node = std::make_unique<ModelNode>();
  node->root = root;
  node->parent = parent;
  node->key = TokenHasher::KeyOf(parent->key, content);
  node->first_token = tokens.begin;
  node->content = std::move(content);
  node->objects.resize(roots_[root].parts.size());
  parent->children.push_back(node.get());
  by_key_[node->key] = node.get();
  nodes_.push_back(std::move(node));
  return nodes_.back().get();
}

void ManagerModel::ForEachObject(const std::function<void(ModelNode&, ObjectPart, ModelObject&)>& visit) {
  for (const std::unique_ptr<ModelNode>& node : nodes_) {
    if (node->parent == nullptr) continue;
    for (const ObjectPart part : roots_[node->root].parts) visit(*node, part, ObjectOf(*node, part));
  }
}

// --- leases

std::shared_ptr<ModelLease> ManagerModel::AddLease(size_t root, uint64_t request_id, ModelMatch match,
                                                   bool is_ambiguous, TimePoint now) {
  auto lease = std::make_shared<ModelLease>();
  lease->root = root;
  lease->request_id = request_id;
  lease->made_at = tick_;
  lease->is_ambiguous = is_ambiguous;
  lease->deadline = now + limits_.lease_time;
  lease->match = std::move(match);
  lease->has_ended = lease->match.items.empty();  // nothing to protect
  for (const ModelItem& item : lease->match.items) {
    uint64_t& bytes = item.is_unsure ? lease->unsure_bytes
                      : item.in_host ? lease->host_bytes
                                     : lease->lower_bytes;
    bytes += item.frame_bytes + kTierPageBytes;
  }
  leases_.push_back(lease);
  return lease;
}

void ManagerModel::EndLease(ModelLease& lease) {
  lease.has_ended = true;
  lease.protects_host = lease.protects_lower = false;
}

void ManagerModel::ReapLeases(TimePoint now) {
  std::erase_if(leases_, [&](const std::shared_ptr<ModelLease>& lease) {
    if (lease->deadline <= now) EndLease(*lease);
    return lease->has_ended || lease.use_count() == 1;
  });
}

std::pair<uint64_t, uint64_t> ManagerModel::ActiveLeases() const {
  uint64_t least = 0;
  for (const auto& lease : leases_) least += lease->is_held ? 1 : 0;
  return {least, leases_.size()};
}

// Whether a lease that was made while the budget was partly used is protected depends on what it shares with
// others and on those that may have ended; not so below and above.
void ManagerModel::SetProtected(ModelLease& lease, bool is_protected, uint64_t earlier_bytes,
                                bool extends_hint) {
  if (lease.match.items.empty()) {
    Expect(!is_protected, "a lease over nothing protects");
    return;
  }
  uint64_t host = earlier_bytes;
  uint64_t lower = earlier_bytes;
  uint64_t surely_protected = is_protected ? lease.host_bytes : 0;
  for (const auto& other : leases_) {
    if (other->has_ended) continue;
    // Of an ambiguous one it is not known what lies where.
    host += other->host_bytes + other->unsure_bytes + (other->is_ambiguous ? other->lower_bytes : 0);
    lower += other->lower_bytes + other->unsure_bytes + (other->is_ambiguous ? other->host_bytes : 0);
    if (other->protects_host && other->is_held && !other->is_ambiguous && other.get() != &lease)
      surely_protected += other->host_bytes;
  }
  const auto budget = [&](uint64_t of) {
    return static_cast<uint64_t>(limits_.lease_budget * static_cast<double>(of));
  };
  if (!lease.is_ambiguous) {
    Expect(is_protected || extends_hint || host > budget(limits_.pool_bytes),
           "a lease within the budget is a hint: " + std::to_string(host) + " bytes with it, budget " +
               std::to_string(budget(limits_.pool_bytes)));
    Expect(surely_protected <= budget(limits_.pool_bytes), "leases above the budget are protected");
  }
  lease.protects_host = is_protected;
  lease.protects_lower = !extends_hint && lower <= budget(limits_.disk_bytes);
}

bool ManagerModel::IsLeased(const ModelNode& node) const {
  // Of an ambiguous match the last chunk may be any sibling.
  const auto names = [&](const std::vector<ModelItem>& items, bool is_ambiguous) {
    return std::any_of(items.begin(), items.end(), [&](const ModelItem& item) {
      return item.node == &node || (is_ambiguous && item.node->parent == node.parent);
    });
  };
  return std::any_of(leases_.begin(), leases_.end(),
                     [&](const auto& lease) {
                       return !lease->has_ended && names(lease->match.items, lease->is_ambiguous);
                     }) ||
         std::any_of(pins_.begin(), pins_.end(),
                     [&](const auto& pin) { return names(pin.second.items, pin.second.is_ambiguous); });
}

void ManagerModel::CheckPinned(const std::string& name, const ModelPin& pin, bool is_kept) {
  uint64_t bytes[kModelTiers] = {0, 0};
  const auto add = [&](const ModelPin& of) {
    for (const ModelItem& item : of.items) bytes[item.in_host ? 0 : 1] += item.frame_bytes + kTierPageBytes;
  };
  add(pin);
  for (const auto& [other_name, other] : pins_) {
    const bool is_unsure = std::any_of(other.items.begin(), other.items.end(),
                                       [](const ModelItem& item) { return item.is_unsure; });
    if (other.is_ambiguous || pin.is_ambiguous || is_unsure) return;  // what is charged is not known
    if (other_name != name || !is_kept) add(other);
  }
  const auto fits = [&](uint64_t n, uint64_t of) {
    return n <= static_cast<uint64_t>(limits_.pin_budget * static_cast<double>(of));
  };
  const bool all_fits = fits(bytes[0], limits_.pool_bytes) && fits(bytes[1], limits_.disk_bytes);
  if (!is_kept && moment_.is_faulty) return;  // an erase that failed may or may not have ended a pin
  Expect(is_kept == all_fits,
         is_kept ? "pins above the budget are kept" : "a pin within the budget is refused");
}

// --- life of an object

bool ManagerModel::NeedsParent(const ModelNode& node, ObjectPart part) const {
  return node.first_token > 0 && roots_[node.root].GroupOf(part).rule == Retention::kFull;
}

bool ManagerModel::IsReachable(const ModelNode& node, ObjectPart part, size_t tier, bool or_coming) const {
  const ModelObject& object = ObjectOf(node, part);
  if (or_coming && object.claim != 0) return true;
  for (size_t t = tier; t < kModelTiers; ++t) {
    if (object.present[t] && (t == tier || t == 1)) return true;
  }
  return false;
}

uint64_t ManagerModel::EndSubtree(ModelNode& node) {
  uint64_t count = 0;
  for (auto& [name, pin] : pins_) {
    for (ModelItem& item : pin.items) item.is_unsure |= item.node == &node;
  }
  for (ModelObject& object : node.objects) {
    const bool has_live_save = std::any_of(object.saves.begin(), object.saves.end(),
                                           [](const ModelSave& save) { return save.ended_at == UINT64_MAX; });
    if (object.claim != 0 || (object.IsAnywhere() && has_live_save)) ++count;
    object.claim = 0;
    for (ModelSave& save : object.saves) save.ended_at = std::min(save.ended_at, tick_);
  }
  for (ModelNode* child : node.children) count += EndSubtree(*child);
  return count;
}

bool ManagerModel::HasHoleBelow(const ModelNode& node) const {
  // Elsewhere an object needs the chunk before it, and the chunk is known as long as it does.
  const std::vector<GroupSpec>& groups = roots_[node.root].spec.groups;
  if (std::none_of(groups.begin(), groups.end(),
                   [](const GroupSpec& group) { return group.rule != Retention::kFull; })) {
    return false;
  }
  const auto is_known = [](const ModelNode& n) {
    return std::any_of(n.objects.begin(), n.objects.end(),
                       [](const ModelObject& object) { return object.claim != 0 || object.IsAnywhere(); });
  };
  const std::function<bool(const ModelNode&)> any_known_below = [&](const ModelNode& n) {
    return std::any_of(n.children.begin(), n.children.end(),
                       [&](const ModelNode* child) { return is_known(*child) || any_known_below(*child); });
  };
  return std::any_of(node.children.begin(), node.children.end(), [&](const ModelNode* child) {
    return is_known(*child) ? HasHoleBelow(*child) : any_known_below(*child);
  });
}

void ManagerModel::ReviveSubtree(ModelNode& node) {
  for (ModelObject& object : node.objects) {
    for (ModelSave& save : object.saves) {
      if (save.ended_at == tick_) save.ended_at = UINT64_MAX;
    }
  }
  for (ModelNode* child : node.children) ReviveSubtree(*child);
}

void ManagerModel::EndAll() {
  pins_.clear();
  for (ModelNode* root : root_nodes_) {
    for (ModelNode* child : root->children) EndSubtree(*child);
  }
}

}  // namespace terrace
