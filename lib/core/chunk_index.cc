#include "lib/core/chunk_index.h"

#include <algorithm>
#include <random>
#include <thread>

#include "lib/base/check.h"

namespace terrace {
namespace {

uint64_t RandomSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

bool IsUnused(const IndexEntry& entry) {
  return entry.holds == 0 && std::all_of(entry.objects.begin(), entry.objects.end(),
                                         [](const ObjectPresence& object) { return object.is_gone(); });
}

}  // namespace

ObjectPresence* IndexEntry::Find(ObjectPart part) {
  for (ObjectPresence& object : objects) {
    if (object.part == part) return &object;
  }
  return nullptr;
}

ObjectPresence& IndexEntry::FindOrAdd(ObjectPart part) {
  if (ObjectPresence* found = Find(part)) return *found;
  const auto at = std::find_if(objects.begin(), objects.end(),
                               [&](const ObjectPresence& object) { return part < object.part; });
  return *objects.insert(at, ObjectPresence{.part = part});
}

ChunkIndex::ChunkIndex(const ChunkIndexOptions& options)
    : options_(options), entries_(std::make_unique<EntrySlabs>()), treap_(*entries_, RandomSeed()) {
  for (size_t i = 0; i < kNumShards; ++i) {
    shards_[i] = std::make_unique<Shard>(entries_->slab(i), table_memory_, RandomSeed() | 1);
  }
}

ChunkIndex::~ChunkIndex() = default;

IndexEntry* ChunkIndex::Find(const ChunkKey& key) {
  const Shard& shard = ShardOf(key);
  shard.handles.Prefetch(key);
  std::lock_guard lock(shard.mutex);
  return shard.handles.Find(key);
}

IndexEntry& ChunkIndex::FindOrMake(Shard& shard, const ChunkKey& key) {
  if (IndexEntry* known = shard.handles.Find(key)) return *known;
  IndexEntry& made = entries_->New(ShardIndex(key));
  made.key = key;
  shard.handles.Insert(made);
  return made;
}

void ChunkIndex::GiveContent(IndexEntry& entry, const PackedContentRef& content) {
  entry.content = content;
  entry.was_visited = true;
  entries_->slab(ShardIndex(entry.key)).SetMark(EntrySlabs::SlotOf(entry.handle), true);
  content_bytes_.fetch_add(content->size_bytes(), std::memory_order_relaxed);
}

PackedContentRef ChunkIndex::TakeContent(IndexEntry& entry) {
  PackedContentRef content = std::move(entry.content);
  if (!content) return content;
  entries_->slab(ShardIndex(entry.key)).SetMark(EntrySlabs::SlotOf(entry.handle), false);
  content_bytes_.fetch_sub(content->size_bytes(), std::memory_order_relaxed);
  return content;
}

bool ChunkIndex::FreeIfNeedless(Shard& shard, IndexEntry& entry) {
  if (!entry.is_placeholder() || entry.has_children() || entry.stays > 0 || entry.holds > 0) return false;
  shard.handles.Erase(entry);
  entries_->slab(ShardIndex(entry.key)).Free(EntrySlabs::SlotOf(entry.handle));
  return true;
}

void ChunkIndex::AwaitSweep(std::unique_lock<std::mutex>& lock, const IndexEntry& entry) {
  while (entry.is_moving) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
}

IndexEntry& ChunkIndex::ReserveParent(const ChunkKey& key) {
  Shard& shard = ShardOf(key);
  std::lock_guard lock(shard.mutex);
  IndexEntry& parent = FindOrMake(shard, key);
  ++parent.stays;
  TERRACE_CHECK(parent.stays != 0) << "too many operations under one parent";
  return parent;
}

IndexEntry& ChunkIndex::Add(const Facts& facts, const PackedContentRef& content) {
  TERRACE_CHECK(!content || (content->num_tokens() > 0 && content->num_tokens() < IndexEntry::kUnknownTokens))
      << "a chunk without tokens, or with too many";
  ShardOf(facts.key).handles.Prefetch(facts.key);
  IndexEntry& parent = ReserveParent(facts.parent);
  IndexEntry* entry;
  bool is_new;
  bool gains_content;
  {
    Shard& shard = ShardOf(facts.key);
    std::unique_lock lock(shard.mutex);
    entry = &FindOrMake(shard, facts.key);
    AwaitSweep(lock, *entry);
    is_new = entry->is_placeholder();
    gains_content = content && !entry->content;
    if (is_new) {
      entry->parent = &parent;
      entry->root_number = facts.root_number;
      entry->first_token = facts.first_token;
      entry->num_tokens = IndexEntry::kUnknownTokens;
      ++shard.num_chunks;
    }
    if (gains_content) {
      entry->num_tokens = static_cast<uint16_t>(content->num_tokens());
      GiveContent(*entry, content);
    }
  }
  {
    std::lock_guard lock(ShardOf(parent.key).mutex);
    --parent.stays;
    if (gains_content || is_new) {
      if (!is_new) treap_.Erase(parent, *entry);
      ChildTreap::SetPlace(*entry, content.get());
      treap_.Insert(parent, *entry);
    }
  }
  if (gains_content && content_bytes() > options_.content_budget_bytes) SweepContent(*entry);
  return *entry;
}

bool ChunkIndex::RemoveIfUnused(IndexEntry& entry) {
  IndexEntry* parent = nullptr;
  if (!RemoveOne(entry, parent)) return false;
  while (parent != nullptr) {
    IndexEntry& bare = *std::exchange(parent, nullptr);
    if (!RemoveOne(bare, parent)) break;
  }
  return true;
}

// `bare_parent`: set where the parent was kept by this child alone.
bool ChunkIndex::RemoveOne(IndexEntry& entry, IndexEntry*& bare_parent) {
  Shard& shard = ShardOf(entry.key);
  IndexEntry* parent;
  {
    std::unique_lock lock(shard.mutex);
    AwaitSweep(lock, entry);
    if (!IsUnused(entry)) return false;
    __builtin_prefetch(entry.parent, 1);  // both are needed below, and most likely in no cache
    __builtin_prefetch(entry.content.get(), 1);
    if (entry.is_placeholder()) {
      FreeIfNeedless(shard, entry);
      return true;
    }
    entry.objects.clear();
    if (entry.has_children() || entry.stays > 0) return false;
    // From here on no reader finds it by its key.
    parent = std::exchange(entry.parent, nullptr);
    entry.num_tokens = 0;
    --shard.num_chunks;
    shard.handles.Erase(entry);
  }
  {
    Shard& parents = ShardOf(parent->key);
    std::lock_guard lock(parents.mutex);
    treap_.Erase(*parent, entry);
    ChildTreap::SetPlace(entry, nullptr);
    if (parent->is_placeholder()) {
      FreeIfNeedless(parents, *parent);
    } else if (!parent->has_children() && parent->stays == 0 && IsUnused(*parent)) {
      bare_parent = parent;
    }
  }
  PackedContentRef content;  // goes after the lock
  std::lock_guard lock(shard.mutex);
  content = TakeContent(entry);
  entries_->slab(ShardIndex(entry.key)).Free(EntrySlabs::SlotOf(entry.handle));
  return true;
}

std::vector<IndexEntry*> ChunkIndex::Children(const IndexEntry& parent) const {
  std::vector<IndexEntry*> children;
  std::lock_guard lock(ShardOf(parent.key).mutex);
  treap_.VisitAll(parent, [&](IndexEntry& child) {
    children.push_back(&child);
    return true;
  });
  return children;
}

void ChunkIndex::ForEach(const std::function<void(IndexEntry&)>& visit) {
  Place place;
  ForEachFrom(place, [&](IndexEntry& entry) {
    visit(entry);
    return true;
  });
}

bool ChunkIndex::ForEachFrom(Place& place, const std::function<bool(IndexEntry&)>& visit) {
  for (; place.shard < kNumShards; ++place.shard, place.slot = 1) {
    const EntrySlab& slab = entries_->slab(place.shard);
    for (;; ++place.slot) {
      IndexEntry* entry = nullptr;
      {
        std::lock_guard lock(shards_[place.shard]->mutex);
        if (place.slot >= slab.num_slots()) break;
        if (!slab.At(place.slot).is_placeholder()) entry = &slab.At(place.slot);
      }
      if (entry != nullptr && !visit(*entry)) return true;
    }
  }
  return false;
}

bool ChunkIndex::Unhold(IndexEntry& entry, uint32_t host_pins, uint32_t lower_pins) {
  std::lock_guard lock(ShardOf(entry.key).mutex);
  TERRACE_CHECK(entry.holds > 0 && entry.host_pins >= host_pins && entry.lower_pins >= lower_pins)
      << "pins given back twice: " << entry.holds << ", " << entry.host_pins << ", " << entry.lower_pins;
  --entry.holds;
  entry.host_pins -= host_pins;
  entry.lower_pins -= lower_pins;
  return IsUnused(entry);
}

std::vector<ChunkIndex::Neighbour> ChunkIndex::Neighbours(const ChunkKey& parent, const PromptSlice& query,
                                                          size_t limit) const {
  std::vector<Neighbour> found;
  if (query.tokens().empty()) return found;
  size_t num_before = 0;
  {
    const Shard& shard = ShardOf(parent);
    std::lock_guard lock(shard.mutex);
    const IndexEntry* entry = shard.handles.Find(parent);
    if (entry == nullptr) return found;
    // With the distance from the query the common prefix never grows.
    treap_.VisitNearest(*entry, ChildTreap::Query(query), limit,
                        [&](const IndexEntry& child, bool is_before) {
                          const uint32_t tokens = child.content->CommonPrefix(query);
                          if (tokens == 0) return false;
                          found.push_back({child.key, tokens});
                          num_before += is_before;
                          return true;
                        });
  }
  std::inplace_merge(found.begin(), found.begin() + static_cast<ptrdiff_t>(num_before), found.end(),
                     [](const Neighbour& a, const Neighbour& b) { return a.tokens > b.tokens; });
  return found;
}

template <typename F>
void ChunkIndex::VisitPrefixes(const IndexEntry& parent, const PromptSlice& query, F&& visit) const {
  // A prefix of the query stands at or before it. The last child at or before the query either is a prefix,
  // or shares m tokens with it: then any prefix is at most m long, and the search goes on below the query's
  // first m tokens.
  PromptSlice bound = query;
  while (!bound.tokens().empty()) {
    const IndexEntry* child = treap_.LastUpTo(parent, ChildTreap::Query(bound));
    if (child == nullptr) return;
    const uint32_t common = child->content->CommonPrefix(bound);
    const bool is_prefix = common == child->content->num_tokens();
    if (is_prefix && !visit(*child, common)) return;
    if (common == 0) return;
    bound = bound.Head(is_prefix ? common - 1 : common);
  }
}

std::vector<ChunkIndex::Neighbour> ChunkIndex::WholePrefixes(const ChunkKey& parent, const PromptSlice& query,
                                                             size_t limit) const {
  std::vector<Neighbour> found;
  if (limit == 0) return found;
  const Shard& shard = ShardOf(parent);
  std::lock_guard lock(shard.mutex);
  const IndexEntry* entry = shard.handles.Find(parent);
  if (entry == nullptr) return found;
  VisitPrefixes(*entry, query, [&](const IndexEntry& child, uint32_t tokens) {
    found.push_back({child.key, tokens});
    return found.size() < limit;
  });
  return found;
}

std::vector<IndexEntry*> ChunkIndex::StrictPrefixes(const IndexEntry& entry) const {
  std::vector<IndexEntry*> found;
  PackedContentRef held;
  {
    std::lock_guard lock(ShardOf(entry.key).mutex);
    if (entry.is_placeholder() || !entry.content) return found;
    held = entry.content;
  }
  const ChunkContent content = held->Unpack();
  const PromptSlice own({content.tokens, content.items}, {0, content.tokens.size()});
  std::lock_guard lock(ShardOf(entry.parent->key).mutex);
  VisitPrefixes(*entry.parent, own.Head(content.tokens.size() - 1), [&](const IndexEntry& child, uint32_t) {
    found.push_back(&entries_->At(child.handle));
    return true;
  });
  return found;
}

void ChunkIndex::SweepContent(const IndexEntry& added) {
  std::unique_lock lock(sweep_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  for (int step = 0; step < kMaxSweepSteps && content_bytes() > options_.content_budget_bytes; ++step) {
    if (IndexEntry* entry = NextToSweep(added)) DropContent(*entry);
  }
}

IndexEntry* ChunkIndex::NextToSweep(const IndexEntry& added) {
  const EntrySlab& slab = entries_->slab(sweep_shard_);
  std::lock_guard lock(shards_[sweep_shard_]->mutex);
  const uint32_t slot = slab.NextMarked(sweep_slot_);
  if (slot == 0) {
    if (sweep_slot_ < slab.num_slots()) return nullptr;
    sweep_shard_ = (sweep_shard_ + 1) % kNumShards;
    sweep_slot_ = 0;
    return nullptr;
  }
  sweep_slot_ = slot + 1;
  IndexEntry& entry = slab.At(slot);
  if (&entry == &added || entry.is_placeholder()) return nullptr;
  if (std::exchange(entry.was_visited, false)) return nullptr;
  entry.is_moving = true;
  return &entry;
}

void ChunkIndex::DropContent(IndexEntry& entry) {
  // While it is moving nobody removes it, so that its parent stays too.
  bool is_linked;
  {
    std::lock_guard lock(ShardOf(entry.parent->key).mutex);
    is_linked = entry.order != ChildOrder::kNoContent;  // else it is being added just now
    if (is_linked) {
      treap_.Erase(*entry.parent, entry);
      ChildTreap::SetPlace(entry, nullptr);
      treap_.Insert(*entry.parent, entry);
    }
  }
  PackedContentRef content;  // goes after the lock
  std::lock_guard lock(ShardOf(entry.key).mutex);
  entry.is_moving = false;
  if (!is_linked) return;
  content = TakeContent(entry);
  if (options_.content_drops != nullptr) options_.content_drops->Add();
}

uint64_t ChunkIndex::size() const {
  uint64_t chunks = 0;
  for (const std::unique_ptr<Shard>& shard : shards_) {
    std::lock_guard lock(shard->mutex);
    chunks += shard->num_chunks;
  }
  return chunks;
}

uint64_t ChunkIndex::content_bytes() const { return content_bytes_.load(std::memory_order_relaxed); }

uint64_t ChunkIndex::structure_bytes() const {
  uint64_t bytes = sizeof(ChunkIndex) + sizeof(EntrySlabs) + kNumShards * sizeof(Shard);
  for (size_t i = 0; i < kNumShards; ++i) {
    std::lock_guard lock(shards_[i]->mutex);
    bytes += entries_->slab(i).size_bytes() + shards_[i]->handles.size_bytes();
  }
  return bytes;
}

}  // namespace terrace
