#include "lib/storage/manager_core.h"

#include <unistd.h>

#include <algorithm>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "lib/storage/request_state.h"

namespace terrace {

Status StorageOptions::Validate() const {
  const auto bad = [](std::string field, std::string value, std::string allowed) {
    return InvalidArgumentError("StorageOptions." + field + " is " + value + "; allowed: " + allowed);
  };
  if (pool_bytes > (uint64_t{1} << 46)) return bad("pool_bytes", std::to_string(pool_bytes), "0..64 TiB");
  if (lease_time <= Duration::zero()) return bad("lease_time", "not positive", "> 0");
  if (!(lease_budget >= 0.0 && lease_budget <= 1.0))
    return bad("lease_budget", std::to_string(lease_budget), "0..1");
  if (io_deadline <= Duration::zero()) return bad("io_deadline", "not positive", "> 0");
  if (!executor) return threads.Validate();
  return OkStatus();
}

std::vector<ObjectPart> RootState::DefaultParts() const {
  std::vector<ObjectPart> parts;
  for (uint16_t group = 0; group < spec.groups.size(); ++group) parts.push_back({group, 0});
  return parts;
}

Status RootState::CheckParts(std::span<const ObjectPart> parts) const {
  for (const ObjectPart& part : parts) {
    if (part.group >= spec.groups.size() || part.shard >= spec.num_shards()) {
      return InvalidArgumentError("part (group " + std::to_string(part.group) + ", shard " +
                                  std::to_string(part.shard) + "); allowed: groups below " +
                                  std::to_string(spec.groups.size()) + ", shards below " +
                                  std::to_string(spec.num_shards()));
    }
  }
  return OkStatus();
}

ManagerCore::ManagerCore(StorageOptions options) : options_(std::move(options)), owner_pid_(getpid()) {}

ManagerCore::~ManagerCore() = default;

Result<std::shared_ptr<ManagerCore>> ManagerCore::Open(StorageOptions options, std::vector<Tier> tiers) {
  TERRACE_RETURN_IF_ERROR(options.Validate());
  auto core = std::shared_ptr<ManagerCore>(new ManagerCore(std::move(options)));
  const StorageOptions& set = core->options_;
  core->clock_ = set.clock != nullptr ? set.clock : Clock::Real();
  core->log_ = set.log ? set.log : MakeStderrLogSink();
  core->metrics_ = set.metrics ? set.metrics : std::make_shared<MetricRegistry>();
  TERRACE_ASSIGN_OR_RETURN(core->pool_, BufferPool::Create({.size_bytes = set.pool_bytes,
                                                            .huge_pages = set.huge_pages,
                                                            .log = core->log_.get()}));
  MetricRegistry& metrics = *core->metrics_;
  core->lookups_ = metrics.GetCounter("terrace_manager_lookups_total", "Lookups");
  core->lookup_tokens_ = metrics.GetCounter("terrace_manager_lookup_tokens_total", "Tokens asked for");
  core->matched_tokens_ = metrics.GetCounter("terrace_manager_matched_tokens_total", "Tokens found");
  core->stored_ = metrics.GetCounter("terrace_manager_stored_objects_total", "Objects published by Commit");
  core->superseded_ =
      metrics.GetCounter("terrace_manager_superseded_objects_total", "Replaced by a longer chunk");
  core->unreachable_ =
      metrics.GetCounter("terrace_manager_unreachable_objects_total", "Dropped with their parent");
  core->budget_hints_ = metrics.GetCounter("terrace_manager_lease_hints_total", "Leases above the budget");
  core->orphaned_records_ =
      metrics.GetCounter("terrace_manager_orphaned_records_total", "Found at open without what they hang on");
  TERRACE_RETURN_IF_ERROR(core->AttachTiers(std::move(tiers)));
  TERRACE_RETURN_IF_ERROR(core->RebuildIndex());
  if (set.executor) {
    core->executor_ = set.executor;
  } else {
    TERRACE_ASSIGN_OR_RETURN(core->executor_, MakeThreadPool(set.threads));
  }
  core->strand_ = std::make_shared<Strand>(core->executor_);
  core->pool_->SetReclaimer([raw = core.get()](uint64_t) {
    std::vector<std::shared_ptr<Lease::State>> ended;
    std::lock_guard lock(raw->mutex_);
    raw->ReapLeases(ended);
    return raw->EvictOneFromHost();
  });
  return core;
}

Status ManagerCore::AttachTiers(std::vector<Tier> tiers) {
  if (tiers.size() > kMaxTiers) return InvalidArgumentError("more than 8 tiers");
  for (size_t i = 0; i < tiers.size(); ++i) {
    if (!tiers[i].backend) return InvalidArgumentError("tier " + std::to_string(i) + " has no backend");
    TierState tier;
    tier.backend = std::move(tiers[i].backend);
    tier.policy = tiers[i].policy ? std::move(tiers[i].policy) : MakeLruPolicy();
    tier.capabilities = tier.backend->capabilities();
    tier.name = std::string(tier.backend->name());
    if (tier.capabilities.supports_borrow && (i != 0 || !tier.capabilities.completes_inline)) {
      return InvalidArgumentError("tier '" + tier.name +
                                  "' hands out buffers; it must be the first tier and complete inline");
    }
    const MetricLabels labels = {{"tier", tier.name}};
    tier.hits = metrics_->GetCounter("terrace_tier_hits_total", "Objects loaded", labels);
    tier.evictions = metrics_->GetCounter("terrace_tier_evictions_total", "Objects evicted", labels);
    tier.corrupt =
        metrics_->GetCounter("terrace_tier_corrupt_objects_total", "Found wrong and dropped", labels);
    tier.load_failures =
        metrics_->GetCounter("terrace_tier_load_failures_total", "Reads that failed", labels);
    tier.write_failures =
        metrics_->GetCounter("terrace_tier_write_failures_total", "Writes that failed", labels);
    BackendContext context{.clock = clock_, .metrics = metrics_.get(), .log = log_.get(), .regions = {}};
    if (pool_->size_bytes() > 0) context.regions.push_back(pool_->region());
    if (Status status = tier.backend->Attach(context); !status.ok())
      return status.WithContext("tier '" + tier.name + "'");
    tiers_.push_back(std::move(tier));
  }
  return OkStatus();
}

Status ManagerCore::RebuildIndex() {
  std::lock_guard lock(mutex_);
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (!tiers_[t].capabilities.is_durable) continue;
    TERRACE_ASSIGN_OR_RETURN(const std::vector<RootRecord> records, tiers_[t].backend->ScanRoots());
    for (const RootRecord& record : records) {
      Result<KvSpec> spec = KvSpec::Parse(record.spec);
      if (!spec.ok()) {
        LogWarning("a root of tier '" + tiers_[t].name + "' was skipped: " + spec.status().ToString());
        continue;
      }
      roots_.try_emplace(record.root,
                         std::make_shared<RootState>(RootState{*std::move(spec), record.root, record}));
    }
    TERRACE_RETURN_IF_ERROR(ScanTier(t));
  }
  DropUnreachable();
  return OkStatus();
}

Status ManagerCore::ScanTier(size_t t) {
  std::vector<ScannedObject> found;
  std::string cursor;
  do {
    TERRACE_ASSIGN_OR_RETURN(ScanPage page, tiers_[t].backend->Scan(cursor, 4096));
    std::move(page.objects.begin(), page.objects.end(), std::back_inserter(found));
    cursor = std::move(page.next_cursor);
  } while (!cursor.empty());
  std::sort(found.begin(), found.end(), [](const ScannedObject& a, const ScannedObject& b) {
    return a.meta.generation < b.meta.generation;
  });
  std::vector<ObjectId> useless;
  for (ScannedObject& object : found) {
    const ObjectMeta& meta = object.meta;
    // The record's own identity is checked here, its bytes when they are read.
    if (!meta.content || TokenHasher::KeyOf(meta.parent, *meta.content) != object.id.key) {
      useless.push_back(object.id);
      continue;
    }
    IndexEntry& entry = index_.Add(object.id.key, meta.parent, meta.root, meta.first_token, meta.content);
    ObjectPresence& presence = entry.FindOrAdd(object.id.part);
    presence.frame_bytes = meta.frame_bytes;
    presence.payload_bytes = meta.payload_bytes;
    presence.division = meta.division;
    SetPresent(entry, presence, t);
  }
  // Leaves colder than what they hang on, old requests colder than new ones.
  for (const ScannedObject& object : found) {
    const IndexEntry* entry = index_.Find(object.id.key);
    const bool is_leaf =
        entry != nullptr && !index_.AnyChild(entry->key, [](const IndexEntry&) { return true; });
    if (is_leaf) TouchUpwards(*entry, object.id.part, t);
  }
  if (!useless.empty()) {
    orphaned_records_->Add(useless.size());
    tiers_[t].backend->Erase(std::move(useless), EraseMode::kEvict, [](std::span<const Status>) {});
  }
  return OkStatus();
}

void ManagerCore::DropUnreachable() {
  std::vector<std::pair<ChunkKey, ObjectPart>> lost;
  index_.ForEach([&](IndexEntry& entry) {
    for (const ObjectPresence& object : entry.objects) {
      for (size_t t = 0; t < tiers_.size(); ++t) {
        if ((object.tiers & TierBit(t)) && !ParentReachable(entry, object.part, t, false)) {
          lost.emplace_back(entry.parent, object.part);
        }
      }
    }
  });
  Evictions evictions;
  const uint64_t before = unreachable_->value();
  for (const auto& [parent, part] : lost) CascadeUnreachable(parent, part, evictions);
  orphaned_records_->Add(unreachable_->value() - before);
  for (size_t t = 0; t < evictions.by_tier.size(); ++t) {
    std::vector<ObjectId>& ids = evictions.by_tier[t];
    tiers_[t].erasing.clear();  // nothing is written before Open returns
    if (!ids.empty())
      tiers_[t].backend->Erase(std::move(ids), EraseMode::kEvict, [](std::span<const Status>) {});
  }
}

bool ManagerCore::IsForkedChild() const { return getpid() != owner_pid_; }

Status ManagerCore::CheckNotForked() const {
  if (!IsForkedChild()) return OkStatus();
  return FailedPreconditionError("the process was forked after Open; open a manager of its own");
}

Status ManagerCore::CheckOpen() const {
  if (closing_) return FailedPreconditionError("the manager is closed");
  return OkStatus();
}

RootStateRef ManagerCore::FindRoot(const ChunkKey& root) {
  const auto it = roots_.find(root);
  return it == roots_.end() ? nullptr : it->second;
}

Counter* ManagerCore::DropCounter(std::string_view reason) {
  return metrics_->GetCounter("terrace_manager_dropped_objects_total",
                              "Objects that were to be kept and are not", {{"reason", std::string(reason)}});
}

void ManagerCore::KeepRoot(const RootRecord& record) {
  for (TierState& tier : tiers_) {
    if (!tier.capabilities.is_durable) continue;
    if (Status status = tier.backend->PutRoot(record); !status.ok()) {
      LogWarning("a root was not kept in tier '" + tier.name + "': " + status.ToString());
    }
  }
}

Result<ChunkKey> ManagerCore::Root(const KvSpec& spec, std::span<const Adapter> adapters,
                                   std::string_view salt) {
  TERRACE_RETURN_IF_ERROR(CheckNotForked());
  TERRACE_ASSIGN_OR_RETURN(const RootRecord record, ComputeRoot(spec, adapters, salt));
  uint64_t ticket = 0;
  {
    std::lock_guard lock(mutex_);
    TERRACE_RETURN_IF_ERROR(CheckOpen());
    RootStateRef& known = roots_[record.root];
    // The root says nothing of shards: the caller's own division counts.
    if (known && known->spec == spec) return record.root;
    known = std::make_shared<RootState>(RootState{spec, record.root, record});
    ticket = next_id_++;
    tickets_.insert(ticket);
  }
  strand_->Post([core = shared_from_this(), record,
                 end = std::make_shared<TicketEnd>(shared_from_this(), ticket)] { core->KeepRoot(record); });
  return record.root;
}

// --- index and tiers

bool ManagerCore::NeedsParent(const IndexEntry& entry, ObjectPart part) const {
  if (entry.first_token == 0) return false;
  const auto it = roots_.find(entry.root);
  if (it == roots_.end() || part.group >= it->second->spec.groups.size()) return true;
  return it->second->RuleOf(part.group) != Retention::kState;
}

bool ManagerCore::IsReachableFrom(const ChunkKey& key, ObjectPart part, size_t tier, bool or_coming) const {
  const IndexEntry* entry = index_.Find(key);
  const ObjectPresence* object = entry != nullptr ? entry->Find(part) : nullptr;
  if (object == nullptr) return false;
  if (or_coming && object->store_id != 0) return true;
  const TierMask there = or_coming ? (object->tiers | object->writing) : object->tiers;
  for (size_t t = tier; t < tiers_.size(); ++t) {
    if ((there & TierBit(t)) && (t == tier || tiers_[t].capabilities.is_durable)) return true;
  }
  return false;
}

bool ManagerCore::ParentReachable(const IndexEntry& entry, ObjectPart part, size_t tier,
                                  bool or_coming) const {
  return !NeedsParent(entry, part) || IsReachableFrom(entry.parent, part, tier, or_coming);
}

bool ManagerCore::WouldStrand(const IndexEntry& entry, ObjectPart part, size_t tier) const {
  const TierMask remaining = entry.Find(part)->tiers & static_cast<TierMask>(~TierBit(tier));
  const auto still_reachable_from = [&](size_t child_tier) {
    for (size_t t = child_tier; t < tiers_.size(); ++t) {
      if ((remaining & TierBit(t)) && (t == child_tier || tiers_[t].capabilities.is_durable)) return true;
    }
    return false;
  };
  return index_.AnyChild(entry.key, [&](const IndexEntry& child) {
    const ObjectPresence* object = child.Find(part);
    if (object == nullptr || !NeedsParent(child, part)) return false;
    // A child that is being stored will want to lie in every tier.
    const TierMask wanted =
        object->store_id != 0 ? TierMask{0xff} : static_cast<TierMask>(object->tiers | object->writing);
    for (size_t t = 0; t <= tier; ++t) {
      if ((wanted & TierBit(t)) && !still_reachable_from(t)) return true;
    }
    return false;
  });
}

bool ManagerCore::MayEvict(const ObjectId& id, size_t tier) const {
  const IndexEntry* entry = index_.Find(id.key);
  const ObjectPresence* object = entry != nullptr ? entry->Find(id.part) : nullptr;
  if (object == nullptr) return false;
  if (tier == 0 && HasHostTier()) {
    // A buffer that write-behind holds would stay charged.
    if (entry->host_leases > 0 || object->writing != 0) return false;
  } else if (entry->lower_leases > 0) {
    return false;
  }
  return !WouldStrand(*entry, id.part, tier);
}

void ManagerCore::SetPresent(IndexEntry& entry, ObjectPresence& object, size_t tier) {
  if (object.tiers & TierBit(tier)) return;
  object.tiers |= TierBit(tier);
  ++tiers_[tier].objects;
  tiers_[tier].policy->Insert({entry.key, object.part}, object.frame_bytes + kTierPageBytes);
}

void ManagerCore::ClearPresent(IndexEntry& entry, ObjectPresence& object, size_t tier) {
  if (!(object.tiers & TierBit(tier))) return;
  object.tiers &= static_cast<TierMask>(~TierBit(tier));
  --tiers_[tier].objects;
  tiers_[tier].policy->Remove({entry.key, object.part});
}

void ManagerCore::RemoveIfEmpty(IndexEntry* entry) {
  const auto is_gone = [](const ObjectPresence& o) {
    return o.tiers == 0 && o.writing == 0 && o.store_id == 0;
  };
  entry->objects.erase(std::remove_if(entry->objects.begin(), entry->objects.end(), is_gone),
                       entry->objects.end());
  // A lease counts in its entry, so the entry stays for it.
  if (entry->objects.empty() && entry->leases == 0) index_.Remove(entry->key);
}

void ManagerCore::TouchUpwards(const IndexEntry& entry, ObjectPart part, size_t tier) {
  EvictionPolicy& policy = *tiers_[tier].policy;
  for (const IndexEntry* at = &entry; at != nullptr; at = index_.Find(at->parent)) {
    policy.Touch({at->key, part});
    if (at->first_token == 0) break;
  }
}

void ManagerCore::EvictObject(IndexEntry& entry, ObjectPart part, size_t tier, Evictions& out) {
  ObjectPresence* object = entry.Find(part);
  const ObjectId id{entry.key, part};
  ClearPresent(entry, *object, tier);
  tiers_[tier].evictions->Add();
  if (tier == 0 && HasHostTier()) {
    tiers_[0].backend->Erase({id}, EraseMode::kEvict, [](std::span<const Status>) {});
  } else {
    QueueErase(id, tier, out);
  }
}

void ManagerCore::QueueErase(const ObjectId& id, size_t tier, Evictions& out) {
  out.by_tier.resize(tiers_.size());
  out.by_tier[tier].push_back(id);
  ++tiers_[tier].erasing[id];
}

void ManagerCore::CascadeUnreachable(const ChunkKey& parent, ObjectPart part, Evictions& out) {
  std::vector<ChunkKey> parents = {parent};
  while (!parents.empty()) {
    const ChunkKey key = parents.back();
    parents.pop_back();
    for (IndexEntry* child : index_.Children(key)) {
      const ObjectPresence* object = child->Find(part);
      if (object == nullptr || !NeedsParent(*child, part)) continue;
      bool changed = false;
      for (size_t t = 0; t < tiers_.size(); ++t) {
        if (!(object->tiers & TierBit(t)) || IsReachableFrom(key, part, t, true)) continue;
        EvictObject(*child, part, t, out);
        unreachable_->Add();
        changed = true;
      }
      if (!changed) continue;
      parents.push_back(child->key);
      RemoveIfEmpty(child);
    }
  }
}

void ManagerCore::EvictSuperseded(IndexEntry& longer, size_t tier, Evictions& out) {
  const RootStateRef root = FindRoot(longer.root);
  if (!root || root->spec.cut == Cut::kNone) return;
  for (IndexEntry* shorter : index_.StrictPrefixes(longer.parent, *longer.content)) {
    if (shorter->leases > 0) continue;
    const bool covered =
        std::all_of(shorter->objects.begin(), shorter->objects.end(), [&](const ObjectPresence& o) {
          const ObjectPresence* mine = longer.Find(o.part);
          return !(o.tiers & TierBit(tier)) || (mine != nullptr && (mine->tiers & TierBit(tier)));
        });
    if (!covered) continue;
    std::vector<ObjectPart> parts;
    for (const ObjectPresence& o : shorter->objects) {
      if (o.tiers & TierBit(tier)) parts.push_back(o.part);
    }
    for (const ObjectPart part : parts) {
      EvictObject(*shorter, part, tier, out);
      superseded_->Add();
    }
    RemoveIfEmpty(shorter);
  }
}

bool ManagerCore::EvictOneFromHost() {
  if (!HasHostTier()) return false;
  const std::optional<ObjectId> victim =
      tiers_[0].policy->Victim([&](const ObjectId& id) { return MayEvict(id, 0); });
  if (!victim) return false;
  IndexEntry* entry = index_.Find(victim->key);
  Evictions none;
  EvictObject(*entry, victim->part, 0, none);
  RemoveIfEmpty(entry);
  return true;
}

void ManagerCore::SendEvictions(Evictions evictions) {
  for (size_t t = 0; t < evictions.by_tier.size(); ++t) {
    std::vector<ObjectId>& ids = evictions.by_tier[t];
    if (ids.empty()) continue;
    tiers_[t].backend->Erase(
        ids, EraseMode::kEvict,
        [core = shared_from_this(), t, ids](std::span<const Status>) { core->EndErases(t, ids); });
  }
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

ManagerStats ManagerCore::Stats() {
  ManagerStats stats;
  if (IsForkedChild()) return stats;
  std::vector<std::shared_ptr<Lease::State>> ended;
  std::lock_guard lock(mutex_);
  ReapLeases(ended);
  for (TierState& tier : tiers_) {
    stats.tiers.push_back({.name = tier.name,
                           .objects = tier.objects,
                           .used_bytes = tier.backend->used_bytes(),
                           .capacity_bytes = tier.backend->capacity_bytes(),
                           .hits = tier.hits->value(),
                           .evictions = tier.evictions->value()});
    stats.corrupt_objects += tier.corrupt->value();
    stats.pending_writes += tier.writes.size();
  }
  stats.pool_bytes = pool_->size_bytes();
  stats.pool_used_bytes = pool_->used_bytes();
  stats.index_entries = index_.size();
  stats.lookups = lookups_->value();
  stats.stored_objects = stored_->value();
  for (const char* reason : {"pool_full", "abandoned", "erased", "parent_lost", "no_tier", "write_failed"}) {
    stats.dropped_objects += DropCounter(reason)->value();
  }
  stats.active_leases = active_leases_;
  return stats;
}

}  // namespace terrace
