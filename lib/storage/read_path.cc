// The manager's side of a read: where an object lies now, what a finished read means for the tiers, and
// whether a frame is the one that was asked for.
#include "lib/storage/manager_core.h"

namespace terrace {

// The frame's own key was checked against its parent and content when it was parsed.
Status ManagerCore::CheckIdentity(const FrameHeader& header, const LeaseItem& item) {
  if (header.key != item.id.key || header.part != item.id.part)
    return DataLossError("frame of another object");
  if (header.root != item.root->root || header.first_token != item.payload_tokens.begin)
    return DataLossError("frame of another prefix");
  if (header.division != item.meta.division) return DataLossError("frame of another division into shards");
  if (header.codec != Codec::kRaw || header.cipher != 0 || header.stored_bytes != header.payload_bytes)
    return DataLossError("frame in a codec that this build does not read");
  if (item.remote_identity) {
    const LeaseItem::RemoteIdentity& identity = *item.remote_identity;
    const size_t begins_with = identity.begins_with.tokens.size();
    if (header.parent != identity.parent) return DataLossError("frame of another prefix");
    if (CommonPrefixTokens(header.content, identity.begins_with) != begins_with)
      return DataLossError("frame of other tokens or items");
    return OkStatus();
  }
  if (header.payload_bytes != item.meta.payload_bytes) return DataLossError("payload of another length");
  return OkStatus();
}

BufferRef ManagerCore::BorrowFromHost(const ObjectId& id) {
  std::vector<BufferRef> found = tiers_[0].backend->Borrow({&id, 1});
  return found.empty() ? BufferRef() : std::move(found[0]);
}

const ObjectPresence* ManagerCore::FindLeased(const LeaseItem& item) const {
  const IndexEntry* entry = index_->Find(item.id.key);
  const ObjectPresence* object = entry != nullptr ? entry->Find(item.id.part) : nullptr;
  if (object == nullptr || object->division != item.meta.division) return nullptr;
  if (item.remote_tier != LeaseItem::kLocal) return object;
  const bool is_same =
      object->frame_bytes() == item.meta.frame_bytes && object->payload_bytes == item.meta.payload_bytes;
  return is_same ? object : nullptr;
}

size_t ManagerCore::NextTierWith(const LeaseItem& item, size_t from_tier) {
  if (const ObjectPresence* object = FindLeased(item)) {
    for (size_t t = from_tier; t < tiers_.size(); ++t) {
      // Of what a remote tier announced the index may know another save, with another length; the host tier
      // hands out buffers of any.
      const bool any_length = t == 0 && HasHostTier();
      if ((object->tiers & TierBit(t)) && (any_length || item.remote_tier == LeaseItem::kLocal)) return t;
    }
  }
  return item.remote_tier != LeaseItem::kLocal && item.remote_tier >= from_tier ? item.remote_tier : kNoTier;
}

ManagerCore::ReadSource ManagerCore::FindSource(const LeaseItem& item, size_t from_tier) {
  std::lock_guard lock(mutex_);
  return FindSourceLocked(item, from_tier);
}

ManagerCore::ReadSource ManagerCore::FindSourceLocked(const LeaseItem& item, size_t from_tier) {
  ReadSource source{.tier = NextTierWith(item, from_tier), .borrowed = {}, .erasures = erasures_};
  if (source.tier != 0 || !HasHostTier()) return source;
  source.borrowed = BorrowFromHost(item.id);
  if (source.borrowed) {
    tiers_[0].hits->Add();
  } else {
    source.tier = NextTierWith(item, 1);
  }
  return source;
}

void ManagerCore::FinishRead(const LeaseItem& item, size_t tier, const BufferRef& buffer,
                             const Status& status, uint64_t erasures) {
  if (status.ok()) {
    tiers_[tier].hits->Add();
    PromoteToHost(item, tier, buffer, erasures);
    return;
  }
  if (status.code() == StatusCode::kCancelled) return;  // the caller's doing
  tiers_[tier].load_failures->Add();
  if (status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kNotFound) {
    if (status.code() == StatusCode::kDataLoss) {
      tiers_[tier].corrupt->Add();
      log_->Log(LogLevel::kWarning, tiers_[tier].name,
                "an object was found wrong and dropped: " + status.ToString());
    }
    DropCorrupt(item, tier);
  }
}

void ManagerCore::PromoteToHost(const LeaseItem& item, size_t tier, const BufferRef& buffer,
                                uint64_t erasures) {
  if (!HasHostTier()) return;
  std::lock_guard lock(mutex_);
  // Erased meanwhile (and perhaps stored anew): the caller's bytes are right, but nothing comes back into a
  // tier.
  if (closing_ || erasures != erasures_) return;
  const ObjectPart part = item.id.part;
  const ObjectPresence* object = FindLeased(item);
  if (item.remote_tier != LeaseItem::kLocal) {
    // Another save that is here, or on its way here, is as good.
    if (object != nullptr && !object->is_gone()) return;
    if (!AnnounceRemote(item, buffer)) return;
  } else if (object == nullptr || !(object->tiers & TierBit(tier)) || (object->tiers & TierBit(0))) {
    return;
  }
  IndexEntry& entry = *index_->Find(item.id.key);
  // Making room for it must not take it out of the index.
  SetWriting(entry, part, TierBit(0), 0);
  const bool kept = PutInHost(item.id, buffer, MetaOf(entry, *entry.Find(part), nullptr));
  SetWriting(entry, part, 0, TierBit(0));
  if (kept) {
    pool_->Settle(buffer);
    SetPresent(entry, part, 0);
    TouchUpwards(entry, part, 0);
  }
  RemoveIfEmpty(entry);
}

// An entry for what a remote tier had, whose bytes have been verified. False: it may not lie in the host
// tier, where what it hangs on is missing.
bool ManagerCore::AnnounceRemote(const LeaseItem& item, const BufferRef& buffer) {
  Result<FrameHeader> header = ParseFrameHeader(buffer.frame());
  if (!header.ok()) return false;
  const bool needs_parent =
      roots_.NeedsParent(item.root->number, item.id.part.group, item.payload_tokens.begin);
  if (needs_parent && !IsReachableFrom(index_->Find(header->parent), item.id.part, 0, false)) return false;
  IndexEntry& entry = index_->Add({.key = item.id.key,
                                   .parent = header->parent,
                                   .root_number = item.root->number,
                                   .first_token = static_cast<uint32_t>(item.payload_tokens.begin)},
                                  PackedContent::Make(header->content));
  index_->Change(entry, [&](IndexEntry& e) {
    ObjectPresence& object = e.FindOrAdd(item.id.part);
    object.frame_pages = static_cast<uint32_t>(header->frame_bytes / kFrameAlignment);
    object.payload_bytes = header->payload_bytes;
    object.division = header->division;
  });
  return true;
}

void ManagerCore::DropCorrupt(const LeaseItem& item, size_t tier) {
  const ObjectId& id = item.id;
  if (tiers_[tier].answers_itself) {  // it has heard of it, or will; here little is known of it
    std::lock_guard lock(mutex_);
    return ForgetSeenRemotely(id);
  }
  Evictions evictions;
  {
    std::lock_guard lock(mutex_);
    IndexEntry* entry = index_->Find(id.key);
    if (FindLeased(item) == nullptr || !EvictObject(*entry, id.part, tier, Unless::kNothing, evictions))
      return;
    CascadeUnreachable(*entry, id.part, evictions);
    RemoveIfEmpty(id.key);
  }
  SendEvictions(std::move(evictions));
}

}  // namespace terrace
