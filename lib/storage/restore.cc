// A start: the index from what durable tiers hold.
//
// Where the objects lie comes first, and is all that Open waits for; a key is trusted as the record has it,
// since a frame that is read is held against key, parent, tokens and items before anyone sees a byte of it.
// Tokens and items come afterwards, and are held against their key before they come into the index: what is
// matched inside a chunk is as sure as the chunk.
#include <algorithm>
#include <future>

#include "lib/base/status_macros.h"
#include "lib/storage/manager_core.h"

namespace terrace {
namespace {

// The index is rebuilt from what lies there. Not of a tier that answers for itself: it need not be there when
// the manager opens, and may hold the objects of many.
bool IsRestored(const TierState& tier) { return tier.capabilities.is_durable && !tier.answers_itself; }

constexpr size_t kPlacesPage = 4096;
constexpr size_t kContentsPage = 256;
// Of a tier that is small, the contents are there when Open returns: about a tenth of a second.
constexpr size_t kPagesAtOpen = 64;
// Behind all that a Flush waits for.
constexpr uint64_t kContentsTicket = UINT64_MAX;

// The pages of a scan, the next of which is read while one is looked at.
class PlacePages {
 public:
  explicit PlacePages(Backend& backend) : backend_(backend) {}

  Result<ScanPage> Next() {
    Result<ScanPage> page = next_.valid() ? next_.get() : Read();
    cursor_ = page.ok() ? page->next_cursor : std::string();
    // Without a thread of its own where the system has none left.
    if (!cursor_.empty()) next_ = std::async([this] { return Read(); });
    return page;
  }
  bool AtEnd() const { return cursor_.empty(); }

 private:
  Result<ScanPage> Read() { return backend_.Scan(cursor_, kPlacesPage, ScanDetail::kPlaces); }

  Backend& backend_;
  std::string cursor_;                  // not written while a read is under way
  std::future<Result<ScanPage>> next_;  // waits for the read where it is dropped
};

}  // namespace

Status ManagerCore::RebuildIndex() {
  Evictions evictions;
  TERRACE_RETURN_IF_ERROR(ScanTiers(evictions));
  SendEvictions(std::move(evictions));
  ContentScan scan;
  bool has_more = true;
  for (size_t i = 0; i < kPagesAtOpen && has_more; ++i) {
    TERRACE_ASSIGN_OR_RETURN(has_more, RestorePage(scan));
  }
  if (has_more) rest_of_contents_ = std::move(scan);
  return OkStatus();
}

Status ManagerCore::ScanTiers(Evictions& evictions) {
  std::lock_guard lock(mutex_);
  for (size_t t = 0; t < tiers_.size(); ++t) {
    if (!IsRestored(tiers_[t])) continue;
    TERRACE_ASSIGN_OR_RETURN(const std::vector<RootRecord> records, tiers_[t].backend->ScanRoots());
    for (const RootRecord& record : records) {
      Result<KvSpec> spec = KvSpec::Parse(record.spec);
      if (!spec.ok()) {
        LogWarning("a root of tier '" + tiers_[t].name + "' was skipped: " + spec.status().ToString());
        continue;
      }
      if (!roots_.Find(record.root)) roots_.Put(*spec, record);
    }
    TERRACE_RETURN_IF_ERROR(ScanTier(t, evictions));
  }
  DropUnreachable(evictions);
  return OkStatus();
}

Status ManagerCore::ScanTier(size_t t, Evictions& evictions) {
  std::vector<RestoredObject> objects;
  PlacePages pages(*tiers_[t].backend);
  do {
    TERRACE_ASSIGN_OR_RETURN(const ScanPage page, pages.Next());
    for (const ScannedObject& object : page.objects) {
      if (RestoreObject(object, t, objects)) continue;
      orphaned_records_->Add();
      QueueErase(object.id, t, evictions);
    }
  } while (!pages.AtEnd());
  PlaceInOrder(std::move(objects), t);
  return OkStatus();
}

// Whether the entry can stand where the record says. A parent begins before its children: so nothing hangs
// below itself, whatever the records say, and in whatever order they come.
bool ManagerCore::MayHang(const ScannedObject& object) {
  const ObjectMeta& meta = object.meta;
  const IndexEntry* parent = index_->Find(meta.parent);
  if (parent != nullptr && !parent->is_placeholder() && parent->first_token >= meta.first_token) return false;
  const IndexEntry* known = index_->Find(object.id.key);
  if (known == nullptr) return object.id.key != meta.parent;
  if (!known->is_placeholder()) return known->parent == parent && known->first_token == meta.first_token;
  return object.id.key != meta.parent && !index_->AnyChild(*known, [&](const IndexEntry& child) {
    return child.first_token <= meta.first_token;
  });
}

bool ManagerCore::RestoreObject(const ScannedObject& object, size_t t, std::vector<RestoredObject>& out) {
  const ObjectMeta& meta = object.meta;
  if (meta.first_token > UINT32_MAX || meta.frame_bytes / kFrameAlignment > UINT32_MAX) return false;
  if (!MayHang(object)) return false;
  IndexEntry& entry = index_->Add({.key = object.id.key,
                                   .parent = meta.parent,
                                   .root_number = roots_.NumberOf(meta.root),
                                   .first_token = static_cast<uint32_t>(meta.first_token)},
                                  {});
  index_->Change(entry, [&](IndexEntry& e) {
    ObjectPresence& presence = e.FindOrAdd(object.id.part);
    presence.writing |= TierBit(t);  // until it has its place in the tier's order
    presence.frame_pages = static_cast<uint32_t>(meta.frame_bytes / kFrameAlignment);
    presence.payload_bytes = meta.payload_bytes;
    presence.division = meta.division;
  });
  if (const ObjectMarks marks{meta.priority, meta.expiry}; marks != ObjectMarks{}) marks_[object.id] = marks;
  out.push_back({&entry, meta.generation, object.id.part});
  return true;
}

// Leaves colder than what they hang on, old requests colder than new ones: as if the request of each leaf had
// been touched, tail to head, the oldest first. The order is found from its hot end: of a leaf's ancestors
// those have their place already that hang above a newer leaf.
void ManagerCore::PlaceInOrder(std::vector<RestoredObject> objects, size_t t) {
  std::sort(objects.begin(), objects.end(),
            [](const RestoredObject& a, const RestoredObject& b) { return a.generation > b.generation; });
  const TierMask bit = TierBit(t);
  struct Placed {
    ObjectId id;
    uint32_t frame_pages;
  };
  std::vector<Placed> hottest_first;
  hottest_first.reserve(objects.size());
  std::vector<Placed> path;
  // Whether it lies in the tier and had its place before.
  const auto take = [&](IndexEntry& entry, ObjectPart part) {
    return index_->Change(entry, [&](IndexEntry& e) {
      ObjectPresence* object = e.Find(part);
      if (object == nullptr || !((object->tiers | object->writing) & bit)) return false;
      if (object->tiers & bit) return true;
      object->writing &= static_cast<TierMask>(~bit);
      object->tiers |= bit;
      path.push_back({{e.key, part}, object->frame_pages});
      return false;
    });
  };
  for (const bool of_leaves : {true, false}) {
    if (hottest_first.size() == objects.size()) break;  // nearly always after the leaves
    for (const RestoredObject& object : objects) {
      if (of_leaves && object.entry->has_children()) continue;
      path.clear();
      for (IndexEntry* at = object.entry; at != nullptr && !at->is_placeholder(); at = at->parent) {
        if (take(*at, object.part) || !of_leaves) break;
      }
      hottest_first.insert(hottest_first.end(), path.rbegin(), path.rend());
    }
  }
  objects = {};
  tiers_[t].objects += hottest_first.size();
  for (size_t i = hottest_first.size(); i-- > 0;) {
    const Placed& placed = hottest_first[i];
    tiers_[t].policy->Insert(placed.id, placed.frame_pages * kFrameAlignment + kTierPageBytes);
  }
}

void ManagerCore::DropUnreachable(Evictions& evictions) {
  std::vector<std::pair<ChunkKey, ObjectPart>> lost;
  index_->ForEach([&](IndexEntry& entry) {
    for (const ObjectPresence& object : entry.objects) {
      for (size_t t = 0; t < tiers_.size(); ++t) {
        if ((object.tiers & TierBit(t)) && !ParentReachable(entry, object.part, t, false)) {
          lost.emplace_back(entry.parent->key, object.part);
        }
      }
    }
  });
  const uint64_t before = unreachable_->value();
  for (const auto& [parent, part] : lost) {
    if (const IndexEntry* entry = index_->Find(parent)) CascadeUnreachable(*entry, part, evictions);
  }
  orphaned_records_->Add(unreachable_->value() - before);
}

// What is no longer there was erased meanwhile: an entry is never made here.
Result<bool> ManagerCore::RestorePage(ContentScan& scan) {
  if (!CheckOpen().ok()) return false;
  while (scan.tier < tiers_.size() && !IsRestored(tiers_[scan.tier])) ++scan.tier;
  if (scan.tier == tiers_.size()) return false;
  const size_t t = scan.tier;
  const Result<ScanPage> page = tiers_[t].backend->Scan(scan.cursor, kContentsPage, ScanDetail::kContents);
  scan.cursor = page.ok() ? page->next_cursor : std::string();
  if (scan.cursor.empty()) ++scan.tier;
  if (!page.ok()) return page.status().WithContext("contents of tier '" + tiers_[t].name + "'");
  std::vector<PackedContentRef> contents;
  contents.reserve(page->objects.size());
  for (const ScannedObject& object : page->objects) {
    const ObjectMeta& meta = object.meta;
    const bool is_right = meta.content && TokenHasher::KeyOf(meta.parent, *meta.content) == object.id.key;
    contents.push_back(is_right ? PackedContent::Make(*meta.content) : PackedContentRef());
  }
  Evictions evictions;
  {
    std::lock_guard lock(mutex_);
    if (closing_) return false;
    for (size_t i = 0; i < contents.size(); ++i) {
      const ScannedObject& object = page->objects[i];
      if (!object.meta.content) continue;
      IndexEntry* entry = index_->Find(object.id.key);
      const ObjectPresence* presence = entry != nullptr ? entry->Find(object.id.part) : nullptr;
      if (presence == nullptr || !(presence->tiers & TierBit(t)) || entry->content) continue;
      if (contents[i]) {
        index_->Add({.key = entry->key,
                     .parent = entry->parent->key,
                     .root_number = entry->root_number,
                     .first_token = entry->first_token},
                    contents[i]);
        continue;
      }
      orphaned_records_->Add();
      EvictObject(*entry, object.id.part, t, Unless::kNothing, evictions);
      CascadeUnreachable(*entry, object.id.part, evictions);
      RemoveIfEmpty(object.id.key);
    }
  }
  SendEvictions(std::move(evictions));
  return true;
}

void ManagerCore::StartContents() {
  if (!rest_of_contents_) return;
  {
    std::lock_guard lock(mutex_);
    tickets_.insert(kContentsTicket);
  }
  PostContents(*std::move(rest_of_contents_),
               std::make_shared<TicketEnd>(shared_from_this(), kContentsTicket));
  rest_of_contents_.reset();
}

// Page after page, with what else the executor has to do in between. Close waits for the ticket, and the next
// page sees it.
void ManagerCore::PostContents(ContentScan scan, std::shared_ptr<TicketEnd> end) {
  std::shared_ptr<Executor> executor;
  {
    std::lock_guard lock(mutex_);
    executor = executor_;
  }
  if (!executor) return;
  try {
    executor->Post([core = shared_from_this(), scan = std::move(scan), end = std::move(end)]() mutable {
      const Result<bool> has_more = core->RestorePage(scan);
      if (!has_more.ok()) core->LogWarning("not read: " + has_more.status().ToString());
      if (!has_more.ok() || *has_more) core->PostContents(std::move(scan), std::move(end));
    });
  } catch (...) {
    callback_exceptions_->Add();  // what was posted ends unrun, and its ticket with it
  }
}

}  // namespace terrace
