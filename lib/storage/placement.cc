// Placement: what lies where, what may leave, and what must leave with it.
#include <algorithm>

#include "lib/base/check.h"
#include "lib/storage/manager_core.h"

namespace terrace {

bool ManagerCore::NeedsParent(const IndexEntry& entry, ObjectPart part) const {
  return roots_.NeedsParent(entry.root_number, part.group, entry.first_token);
}

bool ManagerCore::IsReachableFrom(const IndexEntry* entry, ObjectPart part, size_t tier,
                                  bool or_coming) const {
  const ObjectPresence* object = entry != nullptr ? entry->Find(part) : nullptr;
  if (object == nullptr) return false;
  if (or_coming && object->is_storing) return true;
  const TierMask there = or_coming ? (object->tiers | object->writing) : object->tiers;
  for (size_t t = tier; t < tiers_.size(); ++t) {
    if ((there & TierBit(t)) && (t == tier || tiers_[t].capabilities.is_durable)) return true;
  }
  return false;
}

bool ManagerCore::ParentReachable(const IndexEntry& entry, ObjectPart part, size_t tier,
                                  bool or_coming) const {
  // A store that answers for itself looks after its own.
  const bool answers_itself = tier < tiers_.size() && tiers_[tier].answers_itself;
  return answers_itself || !NeedsParent(entry, part) ||
         IsReachableFrom(entry.parent, part, tier, or_coming) ||
         IsSeenRemotely({entry.parent->key, part}, tier);
}

bool ManagerCore::WouldStrand(const IndexEntry& entry, ObjectPart part, size_t tier) const {
  const TierMask remaining = entry.Find(part)->tiers & static_cast<TierMask>(~TierBit(tier));
  const auto still_reachable_from = [&](size_t child_tier) {
    for (size_t t = child_tier; t < tiers_.size(); ++t) {
      if ((remaining & TierBit(t)) && (t == child_tier || tiers_[t].capabilities.is_durable)) return true;
    }
    return false;
  };
  return index_->AnyChild(entry, [&](const IndexEntry& child) {
    const ObjectPresence* object = child.Find(part);
    if (object == nullptr || !NeedsParent(child, part)) return false;
    // A child that is being stored will want to lie in every tier.
    const TierMask wanted =
        object->is_storing ? TierMask{0xff} : static_cast<TierMask>(object->tiers | object->writing);
    for (size_t t = 0; t <= tier; ++t) {
      if ((wanted & TierBit(t)) && !still_reachable_from(t)) return true;
    }
    return false;
  });
}

bool ManagerCore::MayEvict(const ObjectId& id, size_t tier) {
  IndexEntry* entry = index_->Find(id.key);
  const ObjectPresence* object = entry != nullptr ? entry->Find(id.part) : nullptr;
  if (object == nullptr) return false;
  const bool is_host = tier == 0 && HasHostTier();
  // A buffer that write-behind holds would stay charged.
  if (is_host && object->writing != 0) return false;
  const bool is_pinned =
      index_->Change(*entry, [&](const IndexEntry& e) { return (is_host ? e.host_pins : e.lower_pins) > 0; });
  return !is_pinned && !WouldStrand(*entry, id.part, tier);
}

void ManagerCore::SetPresent(IndexEntry& entry, ObjectPart part, size_t tier) {
  bool is_first = false;
  const uint64_t frame_bytes = index_->Change(entry, [&](IndexEntry& e) -> uint64_t {
    ObjectPresence* object = e.Find(part);
    if (object->tiers & TierBit(tier)) return 0;
    is_first = object->tiers == 0;
    object->tiers |= TierBit(tier);
    if (tier == 0 && e.holds > 0) promotions_.fetch_add(1, std::memory_order_release);
    return object->frame_bytes();
  });
  if (frame_bytes == 0) return;
  ++tiers_[tier].objects;
  tiers_[tier].policy->Insert({entry.key, part}, frame_bytes + kTierPageBytes);
  if (is_first) TellStored(entry, part);
}

bool ManagerCore::ClearPresent(IndexEntry& entry, ObjectPart part, size_t tier, Unless unless) {
  const bool is_host = tier == 0 && HasHostTier();
  bool is_last = false;
  const bool cleared = index_->Change(entry, [&](IndexEntry& e) {
    ObjectPresence* object = e.Find(part);
    if (object == nullptr || !(object->tiers & TierBit(tier))) return false;
    if (unless == Unless::kPinned && (is_host ? e.host_pins : e.lower_pins) > 0) return false;
    if (unless == Unless::kHeld && e.holds > 0) return false;
    object->tiers &= static_cast<TierMask>(~TierBit(tier));
    is_last = object->tiers == 0;
    if (e.holds > 0) losses_.fetch_add(1, std::memory_order_release);
    return true;
  });
  if (!cleared) return false;
  --tiers_[tier].objects;
  tiers_[tier].policy->Remove({entry.key, part});
  if (is_last) TellRemoved(entry, part);
  return true;
}

void ManagerCore::TellStored(const IndexEntry& entry, ObjectPart part) {
  if (!events_) return;
  KvEvent event{.kind = KvEventKind::kStored,
                .id = {entry.key, part},
                .root = roots_.KeyAt(entry.root_number),
                .parent = entry.parent->key,
                .first_token = entry.first_token,
                .content = nullptr};
  if (entry.content) event.content = std::make_shared<const ChunkContent>(entry.content->Unpack());
  events_->Record(std::move(event));
}

void ManagerCore::TellRemoved(const IndexEntry& entry, ObjectPart part) {
  if (!events_ || is_clearing_) return;
  events_->Record({.kind = KvEventKind::kRemoved,
                   .id = {entry.key, part},
                   .root = roots_.KeyAt(entry.root_number),
                   .parent = entry.parent->key,
                   .first_token = entry.first_token,
                   .content = nullptr});
}

void ManagerCore::SetWriting(IndexEntry& entry, ObjectPart part, TierMask set, TierMask clear) {
  index_->Change(entry, [&](IndexEntry& e) {
    ObjectPresence* object = e.Find(part);
    object->writing = static_cast<TierMask>((object->writing | set) & ~clear);
  });
}

void ManagerCore::RemoveIfEmpty(IndexEntry& entry) {
  if (entry.is_placeholder()) return;
  for (const ObjectPresence& object : entry.objects) {
    if (!marks_.empty() && object.is_gone()) marks_.erase({entry.key, object.part});
  }
  index_->Change(entry, [](IndexEntry& e) {
    e.objects.erase(std::remove_if(e.objects.begin(), e.objects.end(),
                                   [](const ObjectPresence& object) { return object.is_gone(); }),
                    e.objects.end());
  });
  if (entry.objects.empty()) index_->RemoveIfUnused(entry);  // a hold keeps it
}

void ManagerCore::RemoveIfEmpty(const ChunkKey& key) {
  if (IndexEntry* entry = index_->Find(key)) RemoveIfEmpty(*entry);
}

void ManagerCore::RemoveUnused(std::span<const ChunkKey> keys) {
  if (keys.empty()) return;
  std::lock_guard lock(mutex_);
  for (const ChunkKey& key : keys) RemoveIfEmpty(key);
}

void ManagerCore::TouchUpwards(const IndexEntry& entry, ObjectPart part, size_t tier) {
  EvictionPolicy& policy = *tiers_[tier].policy;
  for (const IndexEntry* at = &entry; at != nullptr && !at->is_placeholder(); at = at->parent) {
    policy.Touch({at->key, part});
  }
}

bool ManagerCore::EvictObject(IndexEntry& entry, ObjectPart part, size_t tier, Unless unless,
                              Evictions& out) {
  const ObjectId id{entry.key, part};
  if (!ClearPresent(entry, part, tier, unless)) return false;
  tiers_[tier].evictions->Add();
  if (tier == 0 && HasHostTier()) {
    tiers_[0].backend->Erase({id}, EraseMode::kEvict, [](std::span<const Status>) {});
  } else {
    QueueErase(id, tier, out);
  }
  return true;
}

void ManagerCore::QueueErase(const ObjectId& id, size_t tier, Evictions& out) {
  out.by_tier.resize(tiers_.size());
  out.by_tier[tier].push_back(id);
  ++tiers_[tier].erasing[id];
}

void ManagerCore::CascadeUnreachable(const IndexEntry& parent, ObjectPart part, Evictions& out) {
  // By key: an entry of which nothing else is left goes with its last child.
  std::vector<ChunkKey> parents = {parent.key};
  while (!parents.empty()) {
    const IndexEntry* at = index_->Find(parents.back());
    parents.pop_back();
    if (at == nullptr) continue;
    for (IndexEntry* child : index_->Children(*at)) {
      const ObjectPresence* object = child->Find(part);
      if (object == nullptr || !NeedsParent(*child, part)) continue;
      bool changed = false;
      for (size_t t = 0; t < tiers_.size(); ++t) {
        if (!(object->tiers & TierBit(t)) || IsReachableFrom(at, part, t, true) ||
            IsSeenRemotely({at->key, part}, t)) {
          continue;
        }
        EvictObject(*child, part, t, Unless::kNothing, out);
        unreachable_->Add();
        changed = true;
      }
      if (changed) parents.push_back(child->key);
    }
    for (IndexEntry* child : index_->Children(*at)) RemoveIfEmpty(*child);  // the last may take `at` along
  }
}

void ManagerCore::EvictSuperseded(IndexEntry& longer, size_t tier, Evictions& out) {
  const RootStateRef root = roots_.At(longer.root_number);
  if (!root || root->spec.cut == Cut::kNone) return;
  for (IndexEntry* shorter : index_->StrictPrefixes(longer)) {
    const bool is_held = index_->Change(*shorter, [](const IndexEntry& e) { return e.holds > 0; });
    const bool covered =
        std::all_of(shorter->objects.begin(), shorter->objects.end(), [&](const ObjectPresence& o) {
          const ObjectPresence* mine = longer.Find(o.part);
          return !(o.tiers & TierBit(tier)) || (mine != nullptr && (mine->tiers & TierBit(tier)));
        });
    if (is_held || !covered) continue;
    std::vector<ObjectPart> parts;
    for (const ObjectPresence& o : shorter->objects) parts.push_back(o.part);
    for (const ObjectPart part : parts) {
      if (EvictObject(*shorter, part, tier, Unless::kHeld, out)) superseded_->Add();
    }
    RemoveIfEmpty(*shorter);
  }
}

uint64_t ManagerCore::EvictColdest(size_t tier, Evictions& out) {
  ApplyTouches();
  while (true) {
    std::optional<ObjectId> allowed;
    const std::optional<ObjectId> victim = tiers_[tier].policy->Victim([&](const ObjectId& id) {
      if (!MayEvict(id, tier)) return false;
      allowed = id;
      return true;
    });
    // A policy that names what it did not ask for, or was told not to, has nothing to say.
    if (!victim || victim != allowed) return 0;
    IndexEntry* entry = index_->Find(victim->key);
    const uint64_t bytes = entry->Find(victim->part)->frame_bytes() + kTierPageBytes;
    // A lookup may have pinned it since it was found; then it is asked for no more.
    if (!EvictObject(*entry, victim->part, tier, Unless::kPinned, out)) continue;
    RemoveIfEmpty(*entry);
    return bytes;
  }
}

ChunkKey ManagerCore::RunKeyOf(const IndexEntry& entry, ObjectPart part) const {
  const RootStateRef root = roots_.At(entry.root_number);
  if (!root) return {};
  const IndexEntry* at = &entry;
  const uint64_t chunk = entry.first_token / root->spec.tokens_per_chunk;
  for (uint64_t n = chunk - RunBegin(chunk); n > 0; --n) {
    at = at->parent;
    if (!at->is_placeholder()) continue;
    const auto seen = seen_remotely_.find({at->key, part});
    if (n > 1 && seen == seen_remotely_.end()) return {};
    return n == 1 ? at->key : seen->second;
  }
  return at->key;
}

ObjectMeta ManagerCore::MetaOf(const IndexEntry& entry, const ObjectPresence& object,
                               ChunkContentRef content) const {
  ObjectMeta meta;
  meta.root = roots_.KeyAt(entry.root_number);
  meta.parent = entry.parent->key;
  meta.first_token = entry.first_token;
  meta.content = std::move(content);
  meta.frame_bytes = object.frame_bytes();
  meta.payload_bytes = object.payload_bytes;
  meta.division = object.division;
  if (const auto marks = marks_.find({entry.key, object.part}); marks != marks_.end()) {
    meta.priority = marks->second.priority;
    meta.expiry = marks->second.expiry;
  }
  return meta;
}

void ManagerCore::SendEvictions(Evictions evictions) {
  for (size_t t = 0; t < evictions.by_tier.size(); ++t) {
    std::vector<ObjectId>& ids = evictions.by_tier[t];
    if (ids.empty()) continue;
    tiers_[t].backend->Erase(ids, EraseMode::kEvict,
                             [core = shared_from_this(), t, ids](std::span<const Status> results) {
                               core->EndEvictions(t, ids, results);
                             });
  }
}

void ManagerCore::EndEvictions(size_t t, std::span<const ObjectId> ids, std::span<const Status> results) {
  {
    std::lock_guard lock(mutex_);
    std::deque<ObjectId>& failed = tiers_[t].failed_evictions;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (results[i].ok() || results[i].code() == StatusCode::kNotFound) continue;
      failed.push_back(ids[i]);
      if (failed.size() > kMaxFailedEvictions) failed.pop_front();
    }
  }
  EndErases(t, ids);
}

void ManagerCore::EndErases(size_t t, std::span<const ObjectId> ids) {
  bool has_writes;
  {
    std::lock_guard lock(mutex_);
    for (const ObjectId& id : ids) {
      const auto it = tiers_[t].erasing.find(id);
      TERRACE_CHECK(it != tiers_[t].erasing.end()) << "an erase ended that had not begun";
      if (--it->second == 0) tiers_[t].erasing.erase(it);
    }
    has_writes = !tiers_[t].writes.empty();
  }
  if (has_writes) PumpWrites(t);
}

}  // namespace terrace
