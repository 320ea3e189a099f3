// FrameStore: what hands calls on, and the calls that are short.
#include "terrace/frame_store.h"

#include "lib/base/status_macros.h"
#include "lib/storage/arriving_frame.h"
#include "lib/storage/frame_store_state.h"

namespace terrace {
namespace {

uint64_t RecordBytes(const RootRecord& record) { return record.spec.size() + record.adapters.size(); }

}  // namespace

Status FrameStore::State::CheckUsable() const {
  TERRACE_RETURN_IF_ERROR(core->CheckNotForked());
  return core->CheckOpen();
}

Status FrameStore::State::PutRoot(const RootRecord& record) {
  TERRACE_RETURN_IF_ERROR(core->CheckNotForked());
  const Result<KvSpec> spec = KvSpec::Parse(record.spec);
  if (!spec.ok()) return InvalidArgumentError("the root's spec: " + spec.status().ToString());
  uint64_t ticket = 0;
  {
    std::lock_guard lock(core->mutex_);
    TERRACE_RETURN_IF_ERROR(core->CheckOpen());
    if (const RootStateRef known = core->roots_.Find(record.root)) {
      if (known->record == record) return OkStatus();
      return InvalidArgumentError("another record stands under the root " + record.root.ToHex());
    }
    const std::vector<RootStateRef> all = core->roots_.All();
    uint64_t bytes = RecordBytes(record);
    for (const RootStateRef& root : all) bytes += RecordBytes(root->record);
    if (all.size() >= kMaxRoots || bytes > kMaxRootBytes)
      return ResourceExhaustedError(std::to_string(all.size()) + " roots are known already");
    core->roots_.Put(*spec, record);
    ticket = core->next_id_++;
    core->tickets_.insert(ticket);
  }
  core->PostKeepRoot(record, ticket);
  return OkStatus();
}

std::vector<bool> FrameStore::State::Has(std::span<const ObjectId> ids) const {
  std::vector<bool> has(ids.size(), false);
  if (!CheckUsable().ok()) return has;
  for (size_t i = 0; i < ids.size(); ++i) {
    core->index_->Visit(ids[i].key, [&](const IndexEntry& entry) {
      const ObjectPresence* object = entry.Find(ids[i].part);
      has[i] = object != nullptr && (object->tiers | object->writing) != 0;
    });
  }
  return has;
}

FrameStore::FrameStore(const StorageManager& manager) : state_(std::make_shared<State>(manager.core_)) {}

FrameStore::~FrameStore() = default;

Status FrameStore::PutRoot(const RootRecord& record) { return state_->PutRoot(record); }

Result<std::vector<RootRecord>> FrameStore::Roots() const {
  TERRACE_RETURN_IF_ERROR(state_->CheckUsable());
  std::vector<RootRecord> records;
  for (const RootStateRef& root : state_->core->roots_.All()) records.push_back(root->record);
  return records;
}

PrefixMatch FrameStore::Match(const PrefixQuery& query) { return state_->Match(query); }

bool FrameStore::Release(std::string_view lease_token) { return state_->Release(lease_token); }

std::vector<bool> FrameStore::Has(std::span<const ObjectId> ids) const { return state_->Has(ids); }

void FrameStore::Fetch(std::vector<FetchOp> ops, FetchDone done) {
  state_->Fetch(std::move(ops), std::move(done));
}

Result<std::shared_ptr<ArrivingFrame>> FrameStore::Allocate(uint64_t frame_bytes) {
  return state_->Allocate(frame_bytes);
}

Status FrameStore::Publish(const ObjectId& id, const ObjectMeta& meta,
                           const std::shared_ptr<ArrivingFrame>& frame) {
  auto* own = dynamic_cast<PoolFrame*>(frame.get());
  if (own == nullptr || own->core() != state_->core.get())
    return InvalidArgumentError("a frame that was not allocated here");
  return state_->Publish(id, meta, *own);
}

std::vector<Status> FrameStore::Erase(std::span<const ObjectId> ids, EraseMode mode) {
  return state_->Erase(ids, mode);
}

Status FrameStore::Clear() { return state_->core->Clear(); }

Status FrameStore::Flush(TimePoint deadline) { return state_->core->Flush(deadline); }

Result<ScanPage> FrameStore::Scan(std::string_view cursor, size_t limit, ScanDetail detail) {
  return state_->Scan(cursor, limit, detail);
}

Result<uint64_t> FrameStore::Pin(std::string_view name, const PrefixQuery& query) {
  return state_->Pin(name, query);
}

bool FrameStore::Unpin(std::string_view name) { return state_->core->Unpin(name); }

std::vector<TierUsage> FrameStore::Usage() const {
  std::vector<TierUsage> usage;
  if (!state_->CheckUsable().ok()) return usage;
  std::lock_guard lock(state_->core->mutex_);
  for (const TierState& tier : state_->core->tiers_) {
    usage.push_back({.name = tier.name,
                     .capacity_bytes = tier.backend->capacity_bytes(),
                     .used_bytes = tier.backend->used_bytes(),
                     .objects = tier.objects});
  }
  return usage;
}

uint64_t FrameStore::largest_frame_bytes() const {
  const uint64_t largest = state_->core->pool_->largest_buffer_bytes();
  return largest > kTierPageBytes ? largest - kTierPageBytes : 0;
}

std::optional<SharedPool> FrameStore::shared_pool() const { return state_->core->pool_->shared(); }

std::optional<SharedPlace> FrameStore::Locate(const BufferRef& frame) const {
  return state_->core->pool_->Locate(frame);
}

}  // namespace terrace
