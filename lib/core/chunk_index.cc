#include "lib/core/chunk_index.h"

#include <algorithm>

#include "lib/base/check.h"

namespace terrace {
namespace {

// The first `n` tokens and the items before them.
ChunkContent Head(const ChunkContent& content, uint32_t n) {
  ChunkContent head;
  head.tokens.assign(content.tokens.begin(), content.tokens.begin() + n);
  for (const Item& item : content.items) {
    if (item.position < n) head.items.push_back(item);
  }
  return head;
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

ChunkIndex::ChunkIndex() = default;
ChunkIndex::~ChunkIndex() = default;

IndexEntry* ChunkIndex::Find(const ChunkKey& key) {
  const auto it = entries_.find(key);
  return it == entries_.end() ? nullptr : it->second.get();
}

const IndexEntry* ChunkIndex::Find(const ChunkKey& key) const {
  return const_cast<ChunkIndex*>(this)->Find(key);
}

IndexEntry& ChunkIndex::Add(const ChunkKey& key, const ChunkKey& parent, const ChunkKey& root,
                            uint64_t first_token, ChunkContentRef content) {
  std::unique_ptr<IndexEntry>& slot = entries_[key];
  if (slot) return *slot;
  TERRACE_CHECK(content != nullptr);
  slot = std::make_unique<IndexEntry>();
  slot->key = key;
  slot->parent = parent;
  slot->root = root;
  slot->first_token = first_token;
  slot->content = std::move(content);
  IndexEntry* entry = slot.get();
  const bool inserted = children_[parent].insert(entry).second;
  TERRACE_CHECK(inserted) << "two keys for one content under one parent";
  return *entry;
}

void ChunkIndex::Remove(const ChunkKey& key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  const auto siblings = children_.find(it->second->parent);
  siblings->second.erase(it->second.get());
  if (siblings->second.empty()) children_.erase(siblings);
  entries_.erase(it);
}

void ChunkIndex::Clear() {
  children_.clear();
  entries_.clear();
}

void ChunkIndex::ForEach(const std::function<void(IndexEntry&)>& visit) {
  for (auto& [key, entry] : entries_) visit(*entry);
}

const ChunkIndex::ChildSet* ChunkIndex::ChildrenOf(const ChunkKey& parent) const {
  const auto it = children_.find(parent);
  return it == children_.end() ? nullptr : &it->second;
}

std::vector<IndexEntry*> ChunkIndex::Children(const ChunkKey& parent) const {
  const ChildSet* set = ChildrenOf(parent);
  if (set == nullptr) return {};
  return {set->begin(), set->end()};
}

bool ChunkIndex::AnyChild(const ChunkKey& parent, const Usable& usable) const {
  const ChildSet* set = ChildrenOf(parent);
  return set != nullptr &&
         std::any_of(set->begin(), set->end(), [&](const IndexEntry* e) { return usable(*e); });
}

ChunkIndex::Match ChunkIndex::LongestCommonPrefix(const ChunkKey& parent, const ChunkContent& query,
                                                  const Usable& usable) const {
  Match best;
  const ChildSet* set = ChildrenOf(parent);
  if (set == nullptr) return best;
  const auto consider = [&](IndexEntry* entry) {
    if (!usable(*entry)) return false;
    const uint32_t tokens = CommonPrefixTokens(*entry->content, query);
    if (tokens > best.tokens) best = {entry, tokens};
    return true;
  };
  const auto from = set->lower_bound(query);
  int skips = 0;
  for (auto it = from; it != set->end() && skips < kMaxSkips && !consider(*it); ++it) ++skips;
  skips = 0;
  for (auto it = from; it != set->begin() && skips < kMaxSkips && !consider(*std::prev(it)); --it) ++skips;
  return best;
}

void ChunkIndex::VisitPrefixes(const ChunkKey& parent, const ChunkContent& query,
                               const std::function<bool(IndexEntry*)>& visit) const {
  const ChildSet* set = ChildrenOf(parent);
  if (set == nullptr) return;
  // A prefix of the query sorts at or before it. The largest member at or before the query either is a
  // prefix, or shares m tokens with it: then any prefix is at most m long, and the search goes on below the
  // query's first m tokens.
  ChunkContent bound = query;
  while (true) {
    auto it = set->upper_bound(bound);
    if (it == set->begin()) return;
    IndexEntry* entry = *std::prev(it);
    const uint32_t common = CommonPrefixTokens(*entry->content, bound);
    const bool is_prefix = common == entry->content->tokens.size();
    if (is_prefix && !visit(entry)) return;
    const uint32_t next = is_prefix ? common - 1 : common;
    if (common == 0 || next == 0) return;
    bound = Head(bound, next);
  }
}

ChunkIndex::Match ChunkIndex::LongestWholePrefix(const ChunkKey& parent, const ChunkContent& query,
                                                 const Usable& usable) const {
  Match best;
  VisitPrefixes(parent, query, [&](IndexEntry* entry) {
    if (!usable(*entry)) return true;
    best = {entry, static_cast<uint32_t>(entry->content->tokens.size())};
    return false;
  });
  return best;
}

std::vector<IndexEntry*> ChunkIndex::StrictPrefixes(const ChunkKey& parent,
                                                    const ChunkContent& content) const {
  std::vector<IndexEntry*> out;
  VisitPrefixes(parent, content, [&](IndexEntry* entry) {
    if (entry->content->tokens.size() < content.tokens.size()) out.push_back(entry);
    return true;
  });
  return out;
}

}  // namespace terrace
