// What the model is told by the policies of the tiers, and by which rules it judges that.
#include <algorithm>

#include "tests/model/manager_model.h"

namespace terrace {
namespace {

constexpr uint64_t kUnit = 64 * 1024;  // of the pool

uint64_t RoundUpTo(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

// Tier page, header of one page (the chunks are short), payload.
uint64_t ChargedBytes(const ModelSave& save) {
  return 2 * kTierPageBytes + RoundUpTo(save.payload_bytes, kFrameAlignment);
}

bool IsStrictPrefix(const ChunkContent& shorter, const ChunkContent& longer) {
  return shorter.tokens.size() < longer.tokens.size() &&
         CommonPrefixTokens(shorter, longer) == shorter.tokens.size();
}

}  // namespace

void ManagerModel::OnInsert(size_t tier, const ObjectId& id, uint64_t bytes) {
  ModelNode* node = Find(id.key);
  if (!Expect(node != nullptr, "an object became visible that was never stored")) return;
  ModelObject& object = ObjectOf(*node, id.part);
  Expect(!object.present[tier], "an object became visible twice", *node, id.part);
  const bool is_stored = std::any_of(object.saves.begin(), object.saves.end(), [&](const ModelSave& save) {
    return save.ended_at == UINT64_MAX && ChargedBytes(save) == bytes;
  });
  // An eviction that failed leaves bytes of which the manager knows no longer. An erase of what they hung
  // below does not reach them, and the next opening finds them.
  const bool was_left = !is_stored && tier == 1 && moment_.is_erasing && moment_.may_have_stayed(id);
  if (was_left) {
    for (ModelSave& save : object.saves) save.ended_at = UINT64_MAX;
  }
  Expect(is_stored || was_left, "an object became visible that was erased, or of another length", *node,
         id.part);
  if (!moment_.is_erasing && NeedsParent(*node, id.part) && !moment_.may_be_writing) {
    Expect(IsReachable(*node->parent, id.part, tier, true), "an object became visible without its parent",
           *node, id.part);
  }
  object.present[tier] = true;
  object.frame_bytes = bytes - kTierPageBytes;
  ++num_present_[tier];
  if (tier == 0) host_unit_bytes_ += RoundUpTo(bytes, kUnit);
}

void ManagerModel::OnRemove(size_t tier, const ObjectId& id) {
  ModelNode* node = Find(id.key);
  if (!Expect(node != nullptr, "an object left a tier that was never stored")) return;
  ModelObject& object = ObjectOf(*node, id.part);
  if (!Expect(object.present[tier], "an object left a tier that it was not in", *node, id.part)) return;
  if (!MayLeave(tier, *node, id.part)) {
    Expect(!MustNotLeave(tier, *node, id.part), "a protected object left its tier", *node, id.part);
  }
  object.present[tier] = false;
  object.left_at[tier] = tick_;
  --num_present_[tier];
  if (tier == 0) host_unit_bytes_ -= RoundUpTo(object.frame_bytes + kTierPageBytes, kUnit);
}

void ManagerModel::OnVictim(size_t tier, const std::list<ObjectId>& skipped, const ObjectId* victim) {
  ++num_victims_;
  for (const ObjectId& id : skipped) {
    const ModelNode* node = Find(id.key);
    if (node == nullptr) continue;
    Expect(MayBeKept(tier, *node, id.part), "a colder object that may go was passed over", *node, id.part);
  }
  if (victim == nullptr) return;
  const ModelNode* node = Find(victim->key);
  if (node == nullptr) return;
  Expect(!MustNotLeave(tier, *node, victim->part), "a protected object was taken for a victim", *node,
         victim->part);
}

// Where others than an eviction take the object out.
bool ManagerModel::MayLeave(size_t tier, const ModelNode& node, ObjectPart part) const {
  if (moment_.is_erasing || moment_.is_faulty) return true;
  if (NeedsParent(node, part) && !IsReachable(*node.parent, part, tier, false)) return true;
  return IsSuperseded(tier, node);
}

bool ManagerModel::IsSuperseded(size_t tier, const ModelNode& node) const {
  if (roots_[node.root].spec.cut == Cut::kNone) return false;
  const auto& siblings = node.parent->children;
  return std::any_of(siblings.begin(), siblings.end(), [&](const ModelNode* longer) {
    if (!IsStrictPrefix(node.content, longer->content)) return false;
    for (size_t i = 0; i < node.objects.size(); ++i) {
      if (node.objects[i].present[tier] && !longer->objects[i].present[tier]) return false;
    }
    return true;
  });
}

// The object's end in the tier would leave a child of it without a parent.
bool ManagerModel::Strands(size_t tier, const ModelNode& node, ObjectPart part) const {
  bool remaining[kModelTiers];
  for (size_t t = 0; t < kModelTiers; ++t) remaining[t] = t != tier && ObjectOf(node, part).present[t];
  return std::any_of(node.children.begin(), node.children.end(), [&](const ModelNode* child) {
    if (!NeedsParent(*child, part)) return false;
    const ModelObject& object = ObjectOf(*child, part);
    const bool on_disk = remaining[1];
    return (object.present[0] && !on_disk && !remaining[0]) || (object.present[1] && !on_disk);
  });
}

bool ManagerModel::MustNotLeave(size_t tier, const ModelNode& node, ObjectPart part) const {
  const auto protects = [&](const std::vector<ModelItem>& items) {
    return std::any_of(items.begin(), items.end(), [&](const ModelItem& item) {
      return item.node == &node && item.part == part && !item.is_unsure && item.in_host == (tier == 0);
    });
  };
  for (const auto& lease : leases_) {
    if (lease->has_ended || !lease->is_held || lease->is_ambiguous) continue;
    if ((tier == 0 ? lease->protects_host : lease->protects_lower) && protects(lease->match.items))
      return true;
  }
  for (const auto& [name, pin] : pins_) {
    if (!pin.is_ambiguous && protects(pin.items)) return true;
  }
  if (tier == 0 && moment_.is_writing && moment_.is_writing({node.key, part})) return true;
  return Strands(tier, node, part);
}

bool ManagerModel::MayBeKept(size_t tier, const ModelNode& node, ObjectPart part) const {
  if (IsLeased(node) || Strands(tier, node, part)) return true;
  const bool may_be_writing = moment_.may_be_writing;
  if (tier == 0 && may_be_writing && !ObjectOf(node, part).present[1]) return true;
  return std::any_of(node.children.begin(), node.children.end(), [&](const ModelNode* child) {
    if (!NeedsParent(*child, part)) return false;
    const ModelObject& object = ObjectOf(*child, part);
    return object.claim != 0 || (may_be_writing && !object.saves.empty());
  });
}

void ManagerModel::ForgetPresence() {
  pins_.clear();
  ForEachObject([&](ModelNode&, ObjectPart, ModelObject& object) {
    for (size_t t = 0; t < kModelTiers; ++t) {
      if (object.present[t]) object.left_at[t] = tick_;
      object.present[t] = false;
    }
    object.claim = 0;
  });
  num_present_[0] = num_present_[1] = 0;
  host_unit_bytes_ = 0;
}

void ManagerModel::CheckPresence(bool at_rest) {
  ForEachObject([&](ModelNode& node, ObjectPart part, ModelObject& object) {
    for (size_t t = 0; t < kModelTiers; ++t) {
      if (!object.present[t]) continue;
      const bool is_stored = std::any_of(object.saves.begin(), object.saves.end(),
                                         [](const ModelSave& save) { return save.ended_at == UINT64_MAX; });
      Expect(is_stored, "an object that was erased is in a tier", node, part);
      if (!NeedsParent(node, part)) continue;
      if (!at_rest && moment_.may_be_writing) continue;
      Expect(IsReachable(*node.parent, part, t, !at_rest), "an object is in a tier without its parent", node,
             part);
    }
    if (at_rest) Expect(object.claim == 0, "a claim outlived its store", node, part);
  });
}

}  // namespace terrace
