// ManagerCore: the state that StorageManager, its leases, loads and writable chunks share. Kept alive by each
// of them.
//
// What is true whenever mutex_ is free:
//   - an entry is in the index exactly while one of its objects lies in a tier, is being written to one or is
//     being stored, while a lease or pin holds it, or while something hangs below it;
//   - an object's bit for the host tier is set exactly while the host backend holds it (host calls complete
//     inline, under mutex_); its bit for another tier is set after that backend's Put succeeded and cleared
//     before its Erase is sent;
//   - each tier's policy knows exactly the objects that have the tier's bit;
//   - an object's bit is not cleared by an eviction while a pin for that tier protects it. Lookups pin
//     without mutex_, so an eviction checks and clears in one step under the entry's own lock.
//
// Lock order: mutex_, then one of: a shard of the index (and in it the RootTable's), the host backend's own,
// the pool's, the PinTable's (and in it a shard). The LeaseTable's mutex is never taken under mutex_, nor
// mutex_ under it. Backends that do not complete inline are never called under mutex_, and no callback of a
// caller is. LoadHandle::State has a mutex of its own, under which nothing here is called. Lookup and Peek
// take mutex_ not at all.
#pragma once

#include <atomic>
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
#include "absl/container/flat_hash_set.h"
#include "lib/core/chunk_index.h"
#include "lib/memory/buffer_pool.h"
#include "lib/storage/host_reclaimer.h"
#include "lib/storage/lease_table.h"
#include "lib/storage/pin_table.h"
#include "lib/storage/request_tracer.h"
#include "lib/storage/root_table.h"
#include "lib/storage/shared_state.h"
#include "lib/storage/strand.h"
#include "lib/storage/tier_state.h"
#include "lib/storage/touch_log.h"
#include "terrace/storage_manager.h"
#include "terrace/token_hasher.h"

namespace terrace {

class DeviceMeters;
class DeviceSet;
class DeviceUse;
class StoreQueue;
class StoreRun;
struct RemoteQuestion;

// What a put says of an object that its frame does not, and that tiers keep.
struct ObjectMarks {
  int32_t priority = 0;
  WallTime expiry{};
  friend bool operator==(const ObjectMarks&, const ObjectMarks&) = default;
};

class LoadRegistry;

class ManagerCore : public std::enable_shared_from_this<ManagerCore> {
 public:
  static Result<std::shared_ptr<ManagerCore>> Open(StorageOptions options, std::vector<Tier> tiers);
  ~ManagerCore();

  Result<ChunkKey> Root(const KvSpec& spec, std::span<const Adapter> adapters, std::string_view salt);
  Result<Lease> Lookup(const ChunkKey& root, const TokenView& prompt, const LookupOptions& options);
  Result<PrefixPresence> Peek(const ChunkKey& root, const TokenView& prompt, const LookupOptions& options);
  LoadHandle Load(const Lease& lease, TokenRange range, const LoadSink& sink, LoadOrder order);
  Result<uint64_t> Prefetch(const ChunkKey& root, const TokenView& prompt, uint64_t max_bytes,
                            const LookupOptions& options);
  Result<PrepareResult> Prepare(uint64_t request_id, const ChunkKey& root, const TokenView& prompt,
                                TokenRange range, const PayloadSizes& sizes,
                                std::span<const ObjectPart> parts);
  Result<StoreHandle> Store(const ChunkKey& root, const TokenView& prompt, TokenRange range,
                            std::span<const PagedKvView> views, const StoreOptions& options);
  Result<uint64_t> Pin(std::string_view name, const ChunkKey& root, const TokenView& prompt,
                       std::span<const ObjectPart> parts);
  bool Unpin(std::string_view name);
  void Commit(std::vector<WritableChunk> chunks);
  Result<uint64_t> Erase(std::span<const ChunkKey> keys);
  Result<uint64_t> ErasePrefix(const ChunkKey& root, const TokenView& prompt);
  // Every root that `is_meant` says yes to.
  Result<uint64_t> EraseRoots(const std::function<bool(const RootState&)>& is_meant);
  Status Clear();
  Status Flush(TimePoint deadline);
  Status Close(TimePoint deadline);
  ManagerStats Stats();
  MetricRegistry& metrics() { return *metrics_; }
  bool IsForkedChild() const;

 private:
  friend class DeviceUse;
  friend class FrameStore;
  friend class HostReclaimer;
  friend class Lease;
  friend struct Lease::State;
  friend class LoadHandle;
  friend class LeasedChunk;
  friend class StoreRun;
  friend struct LoadHandle::State;
  friend struct WritableChunk::State;

  static constexpr size_t kNoTier = SIZE_MAX;
  static constexpr uint64_t kWriteWindowBytes = uint64_t{32} << 20;  // in flight per lower tier
  static constexpr size_t kMaxViewStores = 1024;                     // that are not copied yet
  static constexpr uint64_t kCopyWindowBytes = uint64_t{256} << 20;  // in flight from devices
  static constexpr size_t kMaxFailedEvictions = 65536;
  static constexpr size_t kMaxSeenRemotely = 65536;
  static constexpr size_t kMaxPinName = 256;
  static constexpr int kMaxEvictionRounds = 8;  // per write that finds no room

  explicit ManagerCore(StorageOptions options);

  // manager_core.cc
  Status AttachTiers(std::vector<Tier> tiers);
  void SetBudgets();
  // Without a lock: a fork copies locks that other threads held, and nobody in the child gives them back.
  Status CheckNotForked() const;
  // By the injected clock; what is too far away to be said is never.
  TimePoint DeadlineIn(Duration time) const;
  Status CheckOpen() const;
  void KeepRoot(const RootRecord& record);
  // The same on the strand, with mutex_ free; ends the ticket.
  void PostKeepRoot(const RootRecord& record, uint64_t ticket);
  bool HasHostTier() const { return !tiers_.empty() && tiers_[0].capabilities.supports_borrow; }
  Counter* DropCounter(std::string_view reason);
  void LogWarning(std::string_view message) { log_->Log(LogLevel::kWarning, "manager", message); }

  // placement.cc: index and tiers; with mutex_ held where nothing else is said.
  bool NeedsParent(const IndexEntry& entry, ObjectPart part) const;
  // Lies in `tier` or a slower durable one, or (if `or_coming`) will, as far as is known.
  bool IsReachableFrom(const IndexEntry* entry, ObjectPart part, size_t tier, bool or_coming) const;
  bool ParentReachable(const IndexEntry& entry, ObjectPart part, size_t tier, bool or_coming) const;
  // Evicting the object from the tier would leave a child without its parent.
  bool WouldStrand(const IndexEntry& entry, ObjectPart part, size_t tier) const;
  bool MayEvict(const ObjectId& id, size_t tier);
  void SetPresent(IndexEntry& entry, ObjectPart part, size_t tier);
  enum class Unless { kNothing, kPinned, kHeld };
  // False: it was not there, or is protected in the way that `unless` names.
  bool ClearPresent(IndexEntry& entry, ObjectPart part, size_t tier, Unless unless);
  void SetWriting(IndexEntry& entry, ObjectPart part, TierMask set, TierMask clear);
  // What hangs on nothing but this goes with it, upwards; so may `entry` when a child of it is removed.
  void RemoveIfEmpty(IndexEntry& entry);
  void RemoveIfEmpty(const ChunkKey& key);
  void RemoveUnused(std::span<const ChunkKey> keys);
  void TouchUpwards(const IndexEntry& entry, ObjectPart part, size_t tier);
  // What must leave other backends after mutex_ was released.
  struct Evictions {
    std::vector<std::vector<ObjectId>> by_tier;
  };
  void QueueErase(const ObjectId& id, size_t tier, Evictions& out);
  bool EvictObject(IndexEntry& entry, ObjectPart part, size_t tier, Unless unless, Evictions& out);
  void CascadeUnreachable(const IndexEntry& parent, ObjectPart part, Evictions& out);
  void EvictSuperseded(IndexEntry& longer, size_t tier, Evictions& out);
  // The coldest object that may go; its bytes, 0 where none may.
  uint64_t EvictColdest(size_t tier, Evictions& out);
  // The key of the first chunk of the entry's run; all zero where the index does not know it.
  ChunkKey RunKeyOf(const IndexEntry& entry, ObjectPart part) const;
  void TellStored(const IndexEntry& entry, ObjectPart part);
  void TellRemoved(const IndexEntry& entry, ObjectPart part);
  ObjectMeta MetaOf(const IndexEntry& entry, const ObjectPresence& object, ChunkContentRef content) const;
  // With mutex_ free.
  void SendEvictions(Evictions evictions);

  // restore.cc: what durable tiers hold, at Open, and what of it is of no use. First where objects lie, which
  // is all that a lookup of whole chunks needs; then tokens and items, page by page, the most of it in the
  // background: until they are there, a chunk is found as a whole or not at all.
  struct RestoredObject {
    IndexEntry* entry;
    uint64_t generation;
    ObjectPart part;
  };
  struct ContentScan {
    size_t tier = 0;
    std::string cursor;
  };
  Status RebuildIndex();
  Status ScanTiers(Evictions& out);
  Status ScanTier(size_t tier, Evictions& out);
  // False: the record cannot be of use.
  bool RestoreObject(const ScannedObject& object, size_t tier, std::vector<RestoredObject>& out);
  bool MayHang(const ScannedObject& object);
  void PlaceInOrder(std::vector<RestoredObject> objects, size_t tier);
  void DropUnreachable(Evictions& out);
  // With mutex_ free: the rest in the background; one page, false after the last. After a failure the scan
  // goes on with the next tier.
  void StartContents();
  struct TicketEnd;
  void PostContents(ContentScan scan, std::shared_ptr<TicketEnd> end);
  Result<bool> RestorePage(ContentScan& scan);
  void EndErases(size_t tier, std::span<const ObjectId> ids);
  // The same of evictions: those that failed are kept in mind.
  void EndEvictions(size_t tier, std::span<const ObjectId> ids, std::span<const Status> results);

  // lookup.cc; with mutex_ free.
  struct Asked;  // a request's root, keys and parts
  Result<Asked> Ask(uint64_t request_id, const ChunkKey& root, const TokenView& prompt,
                    std::span<const ObjectPart> parts);
  // Gives the request's state back, of a call that is no lookup: other tokens than the request's are none of
  // its lease's business.
  void KeepAsked(uint64_t request_id, Asked& asked);
  MatchRequest MatchRequestOf(const Asked& asked, const TokenView& prompt, uint64_t max_tokens) const;
  LeaseSegmentRef MakeSegment(const MatchPlan& plan, const RootState& root, std::span<const ObjectPart> parts,
                              size_t first, size_t last) const;
  // The match goes on where the earlier lease's full chunks end, if nothing of them was lost.
  bool ExtendEarlier(Asked& asked, const TokenView& prompt, uint64_t max_tokens,
                     const std::shared_ptr<Lease::State>& lease);
  void MatchAnew(Asked& asked, const TokenView& prompt, uint64_t max_tokens,
                 const std::shared_ptr<Lease::State>& lease);
  TimePoint LeaseDeadline() const { return DeadlineIn(options_.lease_time); }
  static Status CheckPinName(std::string_view name);
  Result<uint64_t> KeepPin(std::string_view name, MatchPlan& plan, const RootState& root,
                           std::span<const ObjectPart> parts);
  void DropPins();
  // With mutex_ held: pins end for what was erased.
  void ForgetPins(const absl::flat_hash_set<ChunkKey, DigestHash>& erased);
  void NoteTouched(const Lease::State& lease);
  std::vector<LeaseSegmentRef> AddMatch(const MatchPlan& plan, const Asked& asked, Lease::State& lease);
  // False: there is nothing to protect, or the earlier lease has ended.
  bool StartLease(const std::shared_ptr<Lease::State>& lease, std::span<const LeaseSegmentRef> added,
                  Lease::State* earlier, std::vector<ChunkKey>& unused);
  bool MayExtend(const Lease::State& earlier, const Asked& asked, uint64_t limit) const;
  void CountLookup(const Lease::State& lease, const TokenView& prompt, uint64_t limit);
  // Ends what is past its deadline.
  void ReapLeases();
  void EndLease(Lease::State& lease);
  // With mutex_ held: uses noted by lookups reach the policies, tail to head.
  void ApplyTouches();

  // remote_lookup.cc; with mutex_ free. Asks the tier that answers for itself for what lies beyond the
  // lease's local match.
  void AskRemote(const std::shared_ptr<Lease::State>& lease, const Asked& asked, const TokenView& prompt,
                 const LookupOptions& options, RequestTracer& tracer);
  void ReleaseRemote(Lease::State& lease);
  void OnRemoteMatch(const std::shared_ptr<Lease::State>& lease, const RemoteQuestion& question,
                     const PrefixMatch& match);
  // What the tier that answers for itself said that it has: stores may hang on it though no other tier has
  // it.
  void NoteSeenRemotely(const RemoteQuestion& question, std::span<const LeaseItem> items);
  // With mutex_ held.
  bool IsSeenRemotely(const ObjectId& id, size_t tier) const;  // in `tier` or a slower one
  void ForgetSeenRemotely(const ObjectId& id);
  // The lookup's trace ends with the answer.
  void RecordRemote(const Lease::State& lease, const RemoteQuestion& question, const Status& status);

  // load.cc
  std::shared_ptr<LoadHandle::State> NewLoad(const Lease& lease, TokenRange range, TraceKind kind);
  // Checks what is asked for and fills items, target and order.
  Status PlanLoad(LoadHandle::State& load, TokenRange range, const LoadSink& sink, LoadOrder order);
  // With items, target and order set. `keep`: it lives until it is done, or Close.
  void StartLoad(const std::shared_ptr<LoadHandle::State>& load, bool keep);

  // read_path.cc; what a load calls, with no lock held.
  struct ReadSource {
    size_t tier = kNoTier;  // kNoTier: it is in none from `from_tier` on
    BufferRef borrowed;     // set: the published buffer itself; else it is to be read from the tier
    uint64_t erasures = 0;  // to be handed to FinishRead
  };
  ReadSource FindSource(const LeaseItem& item, size_t from_tier);
  // A read of the whole frame ended; `buffer` was verified where status is OK, and may be published in the
  // host tier. `erasures`: of the FindSource that began it.
  void FinishRead(const LeaseItem& item, size_t tier, const BufferRef& buffer, const Status& status,
                  uint64_t erasures);
  // The frame is whole and right; is it the one that was asked for?
  static Status CheckIdentity(const FrameHeader& header, const LeaseItem& item);

  // With mutex_ held.
  ReadSource FindSourceLocked(const LeaseItem& item, size_t from_tier);
  BufferRef BorrowFromHost(const ObjectId& id);
  // The object that the item was made from, or another save of it with the same lengths; null where neither
  // is known.
  const ObjectPresence* FindLeased(const LeaseItem& item) const;
  bool AnnounceRemote(const LeaseItem& item, const BufferRef& buffer);
  size_t NextTierWith(const LeaseItem& item, size_t from_tier);
  // With mutex_ free.
  void PromoteToHost(const LeaseItem& item, size_t tier, const BufferRef& buffer, uint64_t erasures);
  void DropCorrupt(const LeaseItem& item, size_t tier);

  // store.cc
  // One object of a Prepare or Store: what is asked for, and what is known of it.
  struct StoreRequest {
    const RootState& root;
    ObjectId id;
    ChunkKey parent;
    TokenRange tokens;
    const PromptSlice& content;
    uint32_t division = 0;
  };
  static Status CheckRange(const RootState& root, const TokenView& prompt, TokenRange range);
  ChunkKey KeyOfTail(const Asked& asked, const TokenView& prompt, TokenRange tokens) const;
  Status PrepareOne(const StoreRequest& request, const PayloadSizes& sizes, PrepareResult& out);
  Result<uint64_t> AskSize(const PayloadSizes& sizes, TokenRange tokens, ObjectPart part);
  enum class Claim { kPresent, kClaimed, kNoParent };
  Claim ClaimStore(const StoreRequest& request, uint64_t store_id, Evictions& evictions);
  // Of every object that is being stored, the store that does it.
  bool IsStoredBy(const ObjectId& id, uint64_t store_id) const;
  void CompleteTiers(IndexEntry& entry, const ObjectPresence& object);
  Result<BufferRef> AllocateFrame(FrameHeader& header);
  void Abandon(const ObjectId& id, uint64_t store_id);
  // Lies in a tier, or is on its way, as far as is known.
  bool IsStoredOrComing(const ObjectId& id) const;
  void EndStoring(IndexEntry& entry, ObjectPart part);
  // `ticket`: of the Store that it is a part of; 0: one of its own.
  void PostPublish(std::shared_ptr<WritableChunk::State> chunk, uint64_t ticket);
  void SealAndPublish(WritableChunk::State& chunk);
  void Publish(WritableChunk::State& chunk, Evictions& evictions);
  struct FinalFrame {
    ObjectId id;
    BufferRef buffer;
    FrameHeader& header;  // its content is taken
    uint64_t ticket = 0;
    ObjectMarks marks;
  };
  bool PlaceFrame(const FinalFrame& frame, Evictions& evictions);
  bool PutInHost(const ObjectId& id, const BufferRef& buffer, const ObjectMeta& meta);

  // store_view.cc
  friend struct StoreHandle::State;
  struct ViewChunk;  // one chunk of a Store of views
  Status TakeDown(const Asked& asked, const TokenView& prompt, std::span<const PagedKvView> views,
                  StoreHandle::State& store) const;
  Result<std::shared_ptr<DeviceUse>> TakeDownDevices(std::span<const PagedKvView> views,
                                                     StoreHandle::State& store);

  // device_use.cc
  Status OpenDevices();
  // Keeps the devices, and pointers to copiers, until the last reference is gone. kInvalidArgument: the
  // manager has no devices; kFailedPrecondition: it is closed.
  Result<std::shared_ptr<DeviceUse>> UseDevices();
  Status AwaitDevices(TimePoint deadline);  // until nobody uses them
  void CloseDevices();

  // write_behind.cc
  // Of `meta` all but the run's key, which only these writes need.
  void EnqueueWrites(IndexEntry& entry, ObjectPart part, const BufferRef& buffer, ObjectMeta meta,
                     uint64_t ticket);
  void PumpWrites(size_t tier);
  std::vector<std::shared_ptr<WriteJob>> TakeWrites(size_t tier);
  void SettleWrite(size_t tier, const WriteJob& job, Evictions& evictions);
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
  using ObjectsByTier = std::vector<std::vector<ObjectId>>;
  using EraseSelection = std::function<void(std::vector<IndexEntry*>& entries, ObjectsByTier& by_tier)>;
  Result<uint64_t> EraseSelected(const EraseSelection& select);
  uint64_t ForgetObjects(IndexEntry& entry, ObjectsByTier& by_tier, DoomedJobs& doomed);
  bool ForgetObject(IndexEntry& entry, ObjectPart part, ObjectsByTier& by_tier, DoomedJobs& doomed);
  void AwaitDoomed(const DoomedJobs& doomed, std::unique_lock<std::mutex>& lock);
  void CollectSubtree(IndexEntry& entry, std::vector<IndexEntry*>& out);
  // What may hang below a chunk at `first_token` of the root (none: of any) though nothing says so: chunks
  // whose parent is known by name alone, as those of windows and states may be, and what hangs on them.
  void CollectUnlinked(std::optional<uint32_t> root_number, uint64_t first_token,
                       std::vector<IndexEntry*>& out);
  Result<uint64_t> EraseOf(std::optional<uint32_t> root_number, std::span<const ChunkKey> keys);
  void EraseUnknown(const ChunkKey& key, ObjectsByTier& by_tier) const;
  void AddFailedEvictions(size_t tier, std::vector<ObjectId>& ids);
  Status EraseFromTier(size_t tier, std::vector<ObjectId> ids);

  const StorageOptions options_;
  const int owner_pid_;
  Clock* clock_ = nullptr;
  std::shared_ptr<LogSink> log_;
  std::shared_ptr<MetricRegistry> metrics_;
  std::shared_ptr<Executor> executor_;
  std::shared_ptr<Strand> strand_;            // seals, publishes, writes the roots table: in order of Commit
  std::shared_ptr<Strand> copy_strand_;       // copies out of views, in order of Store
  std::shared_ptr<StoreQueue> stores_;        // those that copy_strand_ has begun to copy
  std::unique_ptr<HostReclaimer> reclaimer_;  // outlives what pool_ calls
  std::unique_ptr<BufferPool> pool_;
  std::unique_ptr<DeviceMeters> device_meters_;  // null without devices
  std::unique_ptr<DeviceSet> device_set_;        // null without devices, and once closed; see UseDevices
  std::shared_ptr<LoadRegistry> loads_;          // shared with the pool's notices
  std::vector<TierState> tiers_;                 // fixed after Open, but for what their comments say

  std::mutex close_mutex_;  // one Close at a time; taken before mutex_
  mutable std::mutex mutex_;
  std::condition_variable drained_;              // a ticket or a write ended
  std::optional<ContentScan> rest_of_contents_;  // between RebuildIndex and the end of Open
  std::shared_ptr<KvEventSink> events_;          // from the end of Open on; null: none
  bool is_clearing_ = false;                     // everything: told as one event
  bool closing_ = false;
  bool closed_ = false;
  bool tiers_closed_ = false;
  uint64_t erasures_ = 0;                                          // calls of Erase and Clear
  uint64_t next_id_ = 1;                                           // of stores and tickets
  size_t device_uses_ = 0;                                         // DeviceUse objects
  size_t view_stores_ = 0;                                         // stores of views that are not copied yet
  absl::flat_hash_map<ObjectId, uint64_t, ObjectIdHash> storing_;  // what is_storing marks, by whom

  // Threads of their own kind, see their headers.
  std::unique_ptr<ChunkIndex> index_;
  RootTable roots_;
  std::unique_ptr<LeaseTable> leases_;
  std::atomic<bool> refuses_{false};     // closing_, for who has no lock
  std::atomic<uint64_t> promotions_{0};  // objects that came into the host tier while their entry was held
  std::atomic<uint64_t> losses_{0};      // objects that left a tier while their entry was held
  TouchLog touches_;
  PinTable pins_;

  // With the key of each one's run, the oldest first in the order; bounded.
  absl::flat_hash_map<ObjectId, ChunkKey, ObjectIdHash> seen_remotely_;
  std::deque<ObjectId> seen_order_;
  absl::flat_hash_map<ObjectId, ObjectMarks, ObjectIdHash> marks_;  // of objects in a tier that have any

  std::multiset<uint64_t> tickets_;  // commits that are not yet published and written behind

  TraceRecorder traces_;
  Counter* prefetched_bytes_ = nullptr;
  Counter* lookups_ = nullptr;
  Counter* lookup_tokens_ = nullptr;
  Counter* hashed_tokens_ = nullptr;
  Counter* matched_tokens_ = nullptr;
  Counter* stored_ = nullptr;
  Counter* superseded_ = nullptr;
  Counter* unreachable_ = nullptr;
  Counter* budget_hints_ = nullptr;
  Counter* lookup_hits_ = nullptr;
  Counter* lookup_partial_hits_ = nullptr;
  Counter* lookup_misses_ = nullptr;
  Counter* callback_exceptions_ = nullptr;
  Counter* orphaned_records_ = nullptr;
};

}  // namespace terrace
