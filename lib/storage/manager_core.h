// ManagerCore: the state that StorageManager, its leases, loads and writable chunks share. Kept alive by each
// of them.
//
// What is true whenever mutex_ is free:
//   - an entry is in the index exactly while one of its objects lies in a tier, is being written to one or is
//   being
//     stored, or while a lease names it;
//   - an object's bit for the host tier is set exactly while the host backend holds it (host calls complete
//   inline,
//     under mutex_); its bit for another tier is set after that backend's Put succeeded and cleared before
//     its Erase is sent;
//   - each tier's policy knows exactly the objects that have the tier's bit.
//
// Lock order: mutex_, then the host backend's own. Backends that do not complete inline are never called
// under mutex_, and no callback of a caller is. LoadHandle::State has a mutex of its own, taken before
// mutex_, never after.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lib/core/chunk_index.h"
#include "lib/memory/buffer_pool.h"
#include "lib/storage/shared_state.h"
#include "lib/storage/strand.h"
#include "terrace/storage_manager.h"
#include "terrace/token_hasher.h"

namespace terrace {

class ManagerCore : public std::enable_shared_from_this<ManagerCore> {
 public:
  struct TierState {
    std::unique_ptr<Backend> backend;
    std::unique_ptr<EvictionPolicy> policy;
    Capabilities capabilities;
    std::string name;
    uint64_t objects = 0;
    std::deque<std::shared_ptr<WriteJob>> writes;  // parents first; front is published first
    uint64_t inflight_bytes = 0;
    // Erases that were decided and are not done: a write of the same object waits for them, or it would be
    // sent first and erased behind its back.
    absl::flat_hash_map<ObjectId, uint32_t, ObjectIdHash> erasing;
    uint32_t clearing = 0;    // the same of everything
    bool is_pumping = false;  // one thread sends writes; others leave it word
    bool pump_again = false;
    Counter* hits = nullptr;
    Counter* evictions = nullptr;
    Counter* corrupt = nullptr;
    Counter* load_failures = nullptr;
    Counter* write_failures = nullptr;
  };

  static Result<std::shared_ptr<ManagerCore>> Open(StorageOptions options, std::vector<Tier> tiers);
  ~ManagerCore();

  Result<ChunkKey> Root(const KvSpec& spec, std::span<const Adapter> adapters, std::string_view salt);
  Result<Lease> Lookup(const ChunkKey& root, const TokenView& prompt, const LookupOptions& options);
  LoadHandle Load(const Lease& lease, TokenRange range, const LoadSink& sink, LoadOrder order);
  Result<PrepareResult> Prepare(const ChunkKey& root, const TokenView& prompt, TokenRange range,
                                const PayloadSizes& sizes, std::span<const ObjectPart> parts);
  void Commit(std::vector<WritableChunk> chunks);
  Result<uint64_t> Erase(std::span<const ChunkKey> keys);
  Status Clear();
  Status Flush(TimePoint deadline);
  Status Close(TimePoint deadline);
  ManagerStats Stats();
  MetricRegistry& metrics() { return *metrics_; }
  bool IsForkedChild() const;

  struct RequestState;

 private:
  friend class Lease;
  friend struct Lease::State;
  friend class LoadHandle;
  friend class LeasedChunk;
  friend struct LoadHandle::State;
  friend struct WritableChunk::State;

  static constexpr size_t kNoTier = SIZE_MAX;
  static constexpr uint64_t kWriteWindowBytes = uint64_t{32} << 20;  // in flight per lower tier
  static constexpr int kMaxEvictionRounds = 8;                       // per write that finds no room

  explicit ManagerCore(StorageOptions options);

  // manager_core.cc
  Status AttachTiers(std::vector<Tier> tiers);
  Status RebuildIndex();
  Status ScanTier(size_t tier);
  void DropUnreachable();
  // Without a lock: a fork copies locks that other threads held, and nobody in the child gives them back.
  Status CheckNotForked() const;
  Status CheckOpen() const;
  RootStateRef FindRoot(const ChunkKey& root);
  void KeepRoot(const RootRecord& record);
  bool HasHostTier() const { return !tiers_.empty() && tiers_[0].capabilities.supports_borrow; }
  Counter* DropCounter(std::string_view reason);
  void LogWarning(std::string_view message) { log_->Log(LogLevel::kWarning, "manager", message); }

  // Index and tiers; all with mutex_ held.
  bool NeedsParent(const IndexEntry& entry, ObjectPart part) const;
  // Lies in `tier` or a slower durable one, or (if `or_coming`) will, as far as is known.
  bool IsReachableFrom(const ChunkKey& key, ObjectPart part, size_t tier, bool or_coming) const;
  bool ParentReachable(const IndexEntry& entry, ObjectPart part, size_t tier, bool or_coming) const;
  // Evicting the object from the tier would leave a child without its parent.
  bool WouldStrand(const IndexEntry& entry, ObjectPart part, size_t tier) const;
  bool MayEvict(const ObjectId& id, size_t tier) const;
  void SetPresent(IndexEntry& entry, ObjectPresence& object, size_t tier);
  void ClearPresent(IndexEntry& entry, ObjectPresence& object, size_t tier);
  void RemoveIfEmpty(IndexEntry* entry);
  void TouchUpwards(const IndexEntry& entry, ObjectPart part, size_t tier);
  // What must leave other backends after mutex_ was released.
  struct Evictions {
    std::vector<std::vector<ObjectId>> by_tier;
  };
  void QueueErase(const ObjectId& id, size_t tier, Evictions& out);
  void EvictObject(IndexEntry& entry, ObjectPart part, size_t tier, Evictions& out);
  void CascadeUnreachable(const ChunkKey& parent, ObjectPart part, Evictions& out);
  void EvictSuperseded(IndexEntry& longer, size_t tier, Evictions& out);
  bool EvictOneFromHost();
  // With mutex_ free.
  void SendEvictions(Evictions evictions);
  void EndErases(size_t tier, std::span<const ObjectId> ids);

  // lookup.cc
  bool IsUsable(const RootState& root, const IndexEntry& entry, ObjectPart part) const;
  struct MatchPlan;
  MatchPlan PlanMatch(const RootState& root, std::span<const ChunkKey> keys, const TokenView& prompt,
                      uint64_t limit, std::span<const ObjectPart> parts) const;
  void AddLeaseItem(const IndexEntry& entry, ObjectPart part, uint64_t matched_end,
                    Lease::State& lease) const;
  void FillLease(const MatchPlan& plan, std::span<const ObjectPart> parts, Lease::State& lease);
  void Protect(const std::shared_ptr<Lease::State>& lease);
  void Unprotect(Lease::State& lease);
  // Ends what is past its deadline. `ended` is destroyed by the caller after the lock: it may hold last
  // references.
  void ReapLeases(std::vector<std::shared_ptr<Lease::State>>& ended);
  void ReleaseLease(Lease::State& lease);

  // load.cc
  BufferRef BorrowFromHost(const ObjectId& id);
  // The object that the item was made from, or another save of it with the same lengths; null where neither
  // is known.
  ObjectPresence* FindLeased(const LeaseItem& item);
  size_t NextTierWith(const LeaseItem& item, size_t from_tier);
  // `erasures`: erasures_ when the read began.
  void FinishRead(const LeaseItem& item, size_t tier, const BufferRef& buffer, const Status& status,
                  uint64_t erasures);
  void DropCorrupt(const LeaseItem& item, size_t tier);

  // store.cc
  // One object of a Prepare: what is asked for, and what is known of it.
  struct StoreRequest {
    const RootState& root;
    const TokenView& prompt;
    ObjectId id;
    ChunkKey parent;
    TokenRange tokens;
  };
  Status PrepareOne(const StoreRequest& request, const PayloadSizes& sizes, PrepareResult& out);
  enum class Claim { kPresent, kClaimed, kNoParent };
  Claim ClaimStore(const StoreRequest& request, uint64_t store_id, ChunkContentRef& content,
                   Evictions& evictions);
  void CompleteTiers(IndexEntry& entry, ObjectPresence& object);
  Result<BufferRef> AllocateFrame(FrameHeader& header);
  void Abandon(const ObjectId& id, uint64_t store_id);
  void SealAndPublish(WritableChunk::State& chunk);
  void Publish(WritableChunk::State& chunk, Evictions& evictions);
  bool PutInHost(const ObjectId& id, const BufferRef& buffer, const ObjectMeta& meta);

  // write_behind.cc
  void EnqueueWrites(IndexEntry& entry, ObjectPresence& object, const BufferRef& buffer,
                     const ObjectMeta& meta, uint64_t ticket);
  void PumpWrites(size_t tier);
  void OnWriteDone(size_t tier, const std::shared_ptr<WriteJob>& job, const Status& status);
  bool MakeRoom(size_t tier, const std::shared_ptr<WriteJob>& job);
  // What became of published writes and has to be done with mutex_ free; then their tickets end.
  struct WriteEffects {
    Evictions evictions;
    std::vector<uint64_t> tickets;
  };
  void PublishWrites(size_t tier, WriteEffects& effects);
  void ApplyEffects(WriteEffects effects);
  void FinishTicket(uint64_t ticket);
  // Ends a ticket when the work that it stands for has run, thrown or been dropped unrun.
  struct TicketEnd {
    std::shared_ptr<ManagerCore> core;
    uint64_t ticket;

    TicketEnd(std::shared_ptr<ManagerCore> c, uint64_t t) : core(std::move(c)), ticket(t) {}
    TicketEnd(const TicketEnd&) = delete;
    TicketEnd& operator=(const TicketEnd&) = delete;
    ~TicketEnd() {
      std::lock_guard lock(core->mutex_);
      core->FinishTicket(ticket);
    }
  };
  bool DrainedBefore(uint64_t ticket) const;

  // erase.cc
  using DoomedJobs = std::vector<std::shared_ptr<WriteJob>>;
  uint64_t ForgetObjects(IndexEntry& entry, std::vector<std::vector<ObjectId>>& by_tier, DoomedJobs& doomed);
  void AwaitDoomed(const DoomedJobs& doomed, std::unique_lock<std::mutex>& lock);
  void CollectSubtree(IndexEntry& entry, std::vector<IndexEntry*>& out);
  void EraseUnknown(const ChunkKey& key, std::vector<std::vector<ObjectId>>& by_tier) const;
  Status EraseFromTier(size_t tier, std::vector<ObjectId> ids);

  const StorageOptions options_;
  const int owner_pid_;
  Clock* clock_ = nullptr;
  std::shared_ptr<LogSink> log_;
  std::shared_ptr<MetricRegistry> metrics_;
  std::shared_ptr<Executor> executor_;
  std::shared_ptr<Strand> strand_;  // seals, publishes, writes the roots table: in order of Commit
  std::unique_ptr<BufferPool> pool_;
  std::vector<TierState> tiers_;  // fixed after Open, but for what their comments say

  std::mutex close_mutex_;  // one Close at a time; taken before mutex_
  mutable std::mutex mutex_;
  std::condition_variable drained_;  // a ticket or a write ended
  bool closing_ = false;
  bool closed_ = false;
  bool tiers_closed_ = false;
  uint64_t erasures_ = 0;  // calls of Erase and Clear
  ChunkIndex index_;
  absl::flat_hash_map<ChunkKey, RootStateRef, DigestHash> roots_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<RequestState>> requests_;
  std::multimap<TimePoint, std::weak_ptr<Lease::State>> lease_deadlines_;
  std::multimap<TimePoint, uint64_t> request_deadlines_;
  uint64_t leased_bytes_ = 0;        // in the host tier
  uint64_t lower_leased_bytes_ = 0;  // in the tiers below
  uint64_t active_leases_ = 0;
  uint64_t next_id_ = 1;             // of leases, stores and tickets
  std::multiset<uint64_t> tickets_;  // commits that are not yet published and written behind

  Counter* lookups_ = nullptr;
  Counter* lookup_tokens_ = nullptr;
  Counter* matched_tokens_ = nullptr;
  Counter* stored_ = nullptr;
  Counter* superseded_ = nullptr;
  Counter* unreachable_ = nullptr;
  Counter* budget_hints_ = nullptr;
  Counter* orphaned_records_ = nullptr;
};

}  // namespace terrace
