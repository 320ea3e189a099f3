// Objects by id: erased one by one, and listed.
#include <algorithm>
#include <cstring>
#include <future>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "lib/base/status_macros.h"
#include "lib/storage/frame_store_state.h"

namespace terrace {
namespace {

constexpr size_t kMaxScanPage = 65536;

// Waits: an erase is durable before it is answered.
std::vector<Status> EraseAndWait(Backend& backend, const std::vector<ObjectId>& ids, EraseMode mode) {
  std::promise<std::vector<Status>> promise;
  std::future<std::vector<Status>> future = promise.get_future();
  backend.Erase(ids, mode, [&](std::span<const Status> results) {
    promise.set_value(std::vector<Status>(results.begin(), results.end()));
  });
  return future.get();
}

// Where a scan goes on: the entry's place in the index, and the part of it that was given last.
//
//   | u32 shard | u32 slot | u32 number of its parts that were given |
struct ScanCursor {
  ChunkIndex::Place place;
  uint32_t parts_given = 0;

  std::string Write() const {
    const uint32_t words[] = {place.shard, place.slot, parts_given};
    return {reinterpret_cast<const char*>(words), sizeof(words)};
  }
  bool Read(std::string_view text) {
    uint32_t words[3];
    if (text.empty()) return true;
    if (text.size() != sizeof(words)) return false;
    std::memcpy(words, text.data(), sizeof(words));
    place = {words[0], words[1]};
    parts_given = words[2];
    return place.shard < ChunkIndex::kNumShards && place.slot > 0;
  }
};

}  // namespace

std::vector<Status> FrameStore::State::Erase(std::span<const ObjectId> ids, EraseMode mode) {
  std::vector<Status> results(ids.size(), NotFoundError("the object is not stored"));
  if (Status status = CheckUsable(); !status.ok()) return std::vector<Status>(ids.size(), status);
  absl::flat_hash_map<ObjectId, size_t, ObjectIdHash> places;  // the first of equal ids
  for (size_t i = 0; i < ids.size(); ++i) places.try_emplace(ids[i], i);
  ManagerCore::ObjectsByTier by_tier(core->tiers_.size());
  ManagerCore::Evictions evictions;
  {
    ManagerCore::DoomedJobs doomed;
    std::unique_lock lock(core->mutex_);
    if (Status open = core->CheckOpen(); !open.ok()) return std::vector<Status>(ids.size(), open);
    ++core->erasures_;
    for (const auto& [id, i] : places) {
      if (ForgetOne(id, mode, by_tier, doomed, evictions)) results[i] = OkStatus();
    }
    for (size_t t = 0; t < by_tier.size(); ++t) {
      if (t == 0 && core->HasHostTier()) {
        core->tiers_[0].backend->Erase(std::exchange(by_tier[0], {}), mode, [](std::span<const Status>) {});
        continue;
      }
      if (mode == EraseMode::kErase && !by_tier[t].empty()) core->AddFailedEvictions(t, by_tier[t]);
      for (const ObjectId& id : by_tier[t]) ++core->tiers_[t].erasing[id];
    }
    core->AwaitDoomed(doomed, lock);
  }
  core->SendEvictions(std::move(evictions));
  for (size_t t = 0; t < by_tier.size(); ++t) {
    if (by_tier[t].empty()) continue;
    const std::vector<Status> erased = EraseAndWait(*core->tiers_[t].backend, by_tier[t], mode);
    core->EndErases(t, by_tier[t]);
    for (size_t k = 0; k < erased.size(); ++k) {
      const auto asked = places.find(by_tier[t][k]);
      if (asked == places.end() || erased[k].code() == StatusCode::kNotFound) continue;
      Status& result = results[asked->second];
      if (!erased[k].ok() || result.code() == StatusCode::kNotFound) result = erased[k];
    }
  }
  return results;
}

// With the manager's lock held. Whether the object was known.
bool FrameStore::State::ForgetOne(const ObjectId& id, EraseMode mode, ManagerCore::ObjectsByTier& by_tier,
                                  ManagerCore::DoomedJobs& doomed, ManagerCore::Evictions& evictions) {
  IndexEntry* entry = core->index_->Find(id.key);
  if (entry != nullptr && entry->Find(id.part) != nullptr) {
    const bool was_there = core->ForgetObject(*entry, id.part, by_tier, doomed);
    core->CascadeUnreachable(*entry, id.part, evictions);
    core->RemoveIfEmpty(id.key);
    entry = core->index_->Find(id.key);
    if (entry != nullptr && entry->objects.empty()) core->ForgetPins({id.key});
    return was_there;
  }
  // A durable tier may hold what a crash would bring back.
  for (size_t t = 0; t < by_tier.size() && mode == EraseMode::kErase; ++t) {
    if (core->tiers_[t].capabilities.is_durable || core->tiers_[t].answers_itself) by_tier[t].push_back(id);
  }
  return false;
}

Result<ScanPage> FrameStore::State::Scan(std::string_view text, size_t limit, ScanDetail detail) const {
  TERRACE_RETURN_IF_ERROR(CheckUsable());
  ScanCursor cursor;
  if (limit == 0) return InvalidArgumentError("a page of 0 objects; allowed: 1 and more");
  if (!cursor.Read(text)) return InvalidArgumentError("a cursor that no scan gave");
  limit = std::min(limit, kMaxScanPage);
  ScanPage page;
  std::lock_guard lock(core->mutex_);
  const bool has_more = core->index_->ForEachFrom(cursor.place, [&](IndexEntry& entry) {
    ChunkContentRef content;
    for (size_t p = cursor.parts_given; p < entry.objects.size(); ++p) {
      const ObjectPresence& object = entry.objects[p];
      if (object.tiers == 0) continue;
      if (page.objects.size() == limit) {
        cursor.parts_given = static_cast<uint32_t>(p);
        return false;
      }
      if (!content && detail == ScanDetail::kContents) content = ContentOf(entry, object);
      page.objects.push_back({{entry.key, object.part}, core->MetaOf(entry, object, content)});
    }
    cursor.parts_given = 0;
    return true;
  });
  if (has_more) page.next_cursor = cursor.Write();
  return page;
}

// Null where the index has dropped it and the host tier does not have the object.
ChunkContentRef FrameStore::State::ContentOf(const IndexEntry& entry, const ObjectPresence& object) const {
  if (entry.content) return std::make_shared<const ChunkContent>(entry.content->Unpack());
  if (!core->HasHostTier() || !(object.tiers & TierBit(0))) return nullptr;
  const BufferRef frame = core->BorrowFromHost({entry.key, object.part});
  if (!frame) return nullptr;
  Result<FrameHeader> header = ParseFrameHeader(frame.frame());
  return header.ok() ? std::make_shared<const ChunkContent>(std::move(header->content)) : nullptr;
}

}  // namespace terrace
