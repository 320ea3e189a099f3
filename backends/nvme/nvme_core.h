// NvmeCore: the state of an open NVMe backend and the one thread that owns it. Index, allocator, segments and
// I/O belong to that thread alone, so they have no locks; public calls post work to it. Records go through
// the CommitThread and come back to the owner's thread.
//
// Order of a Put: extents are taken; tier page and frame are written and have completed; the record is
// written; it is in the index; `done`. Of an Erase: out of the index; (kErase: tier page wiped and synced;)
// record deleted (kErase: and synced); extents free once nobody reads them; `done`.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "backends/nvme/active_op.h"
#include "backends/nvme/commit_thread.h"
#include "backends/nvme/device_health.h"
#include "backends/nvme/failed_places.h"
#include "backends/nvme/io_engine.h"
#include "backends/nvme/op_batch.h"
#include "backends/nvme/opened_store.h"
#include "backends/nvme/part_of_gauge.h"
#include "backends/nvme/sealed_read.h"
#include "backends/nvme/staging_pool.h"
#include "backends/nvme/transfer_queue.h"
#include "terrace/backend.h"

namespace terrace {

// kStepped (tests): no thread is made; whoever opened the core drives it by Step.
enum class CoreThreads : uint8_t { kOwn, kStepped };

// Each removes one edge of the order of writes, to show that the tests would see it go. For tests only.
struct OrderSwitches {
  bool skip_data_sync = false;      // kSync and Flush: records without a sync of their data
  bool record_before_data = false;  // the record is written first
  bool skip_erase_sync = false;     // an erase is not logged, its record's deletion not synced
  bool skip_wipe = false;           // an erased object's tier page stays
};

class NvmeCore {
 public:
  explicit NvmeCore(std::unique_ptr<OpenedStore> store);
  ~NvmeCore();

  // Starts the threads. kUnavailable where there is no engine.
  Status Start(const BackendContext& context, CoreThreads threads = CoreThreads::kOwn);
  // kStepped: one turn of what the threads would do. False: there was nothing to do.
  bool Step();
  void SetOrderSwitches(const OrderSwitches& switches) { switches_ = switches; }
  void Get(std::vector<GetOp> ops, GetDone done);
  void Put(std::vector<PutOp> ops, PutDone done);
  void Erase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done);
  void Clear(StatusDone done);
  void Flush(StatusDone done);
  Result<ScanPage> Scan(std::string_view cursor, size_t limit, ScanDetail detail);
  Status PutRoot(const RootRecord& record);
  Result<std::vector<RootRecord>> ScanRoots();
  Status Close(TimePoint deadline);

  // The capacity without the manifest's reserve and the quarantine: what live extents are counted against.
  uint64_t data_bytes() const { return usable_bytes_.load(std::memory_order_relaxed); }
  uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  // Ends the process where the accounting is broken. For tests.
  void CheckInvariants();

 private:
  struct Metrics {
    Counter* read_bytes = nullptr;
    Counter* written_bytes = nullptr;
    Counter* prepared_bytes = nullptr;
    Counter* corrupt_objects = nullptr;
    Counter* dropped_records = nullptr;
    Gauge* orphaned_buffers = nullptr;
    PartOfGauge live_objects;
    PartOfGauge used_bytes;
    PartOfGauge quarantined_bytes;
    PartOfGauge degraded;
    Counter* degraded_refusals = nullptr;
    Gauge* io_mode = nullptr;
  };

  // Registers what the engine takes, and says once how it works.
  void PrepareEngine();
  // The thread (nvme_core.cc).
  // Runs `work` on the owner's thread, as one open operation. False, and nothing done, before Start and after
  // Close.
  bool Post(std::function<void()> work);
  void Run();
  bool RunInbox();
  size_t RunCompletions(std::optional<Duration> timeout);
  // An open operation: Close waits for its End.
  void Begin();
  void End();
  void CheckTimes();
  std::optional<Duration> TimeToNextCheck() const;
  // How long the engine may be waited for; from here on, whoever posts wakes it.
  std::optional<Duration> TimeToWait();
  void Watch(const ActiveRef& op);
  void Unwatch(const ActiveRef& op);
  // Completes the caller's operation now; the device goes on with the buffer as long as it must.
  void Abandon(const ActiveRef& op, const Status& status);
  Status PassedTime(const ActiveOp& op) const;
  // Completes every caller's operation; names the objects whose buffers a device still has.
  std::string CancelAll();
  // Goes to the commit thread with the others of this turn.
  void Commit(CommitTask task);
  void SendCommits();
  // Of a Put's record and an eviction's.
  RecordWrite record_write() const;
  Status WaitUntilIdle(TimePoint deadline);
  Status Shutdown();
  void UpdateFigures();
  void Log(LogLevel level, const std::string& message) const;

  // The device's health and bad places, from how transfers end (nvme_health.cc).
  Status AdmitToDevice();
  void NoteOutcome(const ActiveOp& op, const PlacementRef& placement);
  void ReportHealth();
  void NoteFailedPlace(const Transfer& transfer, const PlacementRef& placement);
  void QuarantineBad(std::span<const Extent> extents, std::span<const Extent> bad);

  // Reading (nvme_get.cc).
  void StartGet(GetOp op, std::function<void(GetResult)> answer);
  Status PlanGet(const GetOp& op, const Placement& placement, Transfer& transfer) const;
  void FinishGet(const std::shared_ptr<GetState>& get, Status status,
                 const std::function<void(GetResult)>& answer);
  Status Verify(const GetState& get) const;
  void AddSpans(const Placement& placement, uint64_t run_offset, uint64_t length, std::byte* memory,
                std::vector<TransferSpan>* spans) const;
  void DropCorrupt(const PlacementRef& placement, const Status& reason);

  // Encryption (nvme_sealed.cc). A directory's objects are all sealed, or none.
  bool is_sealed() const { return !store_->keys.empty(); }
  RunIdentity RunIdentityOf(const Placement& placement) const;
  void PlanSealedGet(GetState& get, std::span<const FrameRange> ranges);
  void PlanSealedPut(PutState& put);
  uint64_t StoredContentBytes(size_t content_bytes) const;

  // Writing (nvme_put.cc).
  void StartPut(PutOp op, std::function<void(const Status&)> answer);
  // With its place: fills record and page, and goes to the device.
  void WritePut(const PutRef& put, std::span<const Extent> extents);
  void FillPage(PutState& put);
  void FinishWrite(const PutRef& put, Status status);
  void CommitPut(const PutRef& put, std::function<void(const Status&)> done);
  void FinishPut(const PutRef& put, const Status& status);

  // Room (nvme_room.cc).
  void PlacePut(const PutRef& put, const Status& room = OkStatus());
  void EndUnplaced(const PutRef& put, const Status& status);
  bool WillHaveRoom(uint64_t bytes);
  void MakeSegment();
  void Adopt(MadeSegment made);
  void RoomCame(const Status& status);
  void PrepareRoom();
  uint64_t UnwrittenBytes();
  void WriteZeros(const Extent& extent);

  // Erasing (nvme_erase.cc).
  void StartErase(const ObjectId& id, EraseMode mode, std::function<void(const Status&)> answer);
  // On the commit thread: once it is OK, no rebuild brings them back.
  Status LogErased(std::span<const ErasedEntry> entries);
  ErasedEntry ErasedNow(const ObjectId& id) const { return {id, store_->next_generation}; }
  void EraseForEver(const PlacementRef& placement, std::function<void(const Status&)> answer);
  void WipePage(const PlacementRef& placement, const Status& deleted,
                const std::function<void(const Status&)>& answer);
  // Deletes the record of what is no longer in the index, then retires its place.
  void DeleteRecord(const PlacementRef& placement, std::function<void(const Status&)> answer);
  void Retire(const PlacementRef& placement);
  void FreeExtents(const Placement& placement);
  void FreeIfUnused(const PlacementRef& placement);
  void StartClear(StatusDone done);
  // Queues the superblock with the present secret, where the Clear that made it failed to write it.
  void RestoreSuperblock();
  void StartFlush(StatusDone done);
  void RunFlushes();

  const std::unique_ptr<OpenedStore> store_;
  BackendContext context_;
  Metrics metrics_;
  CoreThreads threads_ = CoreThreads::kOwn;
  OrderSwitches switches_;

  // Of the owner's thread.
  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<TransferQueue> transfers_;
  SecretRef secret_;
  // A Clear failed: the superblock on disk may have another secret than secret_.
  bool superblock_unsure_ = false;
  // After each, nothing is known of what was written before it, whatever a later sync says.
  uint64_t failed_syncs_ = 0;
  absl::flat_hash_map<ObjectId, PutRef, ObjectIdHash> pending_puts_;
  std::set<uint64_t> put_sequences_;  // of the Puts that have begun and not ended
  uint64_t next_sequence_ = 1;
  std::multimap<uint64_t, StatusDone> flushes_;  // by the last sequence that they wait for
  absl::flat_hash_set<ActiveRef> watched_;
  TimePoint next_check_ = kNoDeadline;
  std::vector<IoCompletion> completions_;  // of one wait
  std::vector<CommitTask> new_commits_;    // of this turn
  std::optional<DeviceHealth> health_;
  bool reported_degraded_ = false;
  FailedPlaces failed_places_;
  absl::flat_hash_map<const Placement*, std::vector<Extent>> bad_extents_;  // never to be freed
  AlignedPage zero_page_;
  std::optional<StagingPool> staging_;
  RoomState room_;
  uint64_t reported_read_ = 0;
  uint64_t reported_written_ = 0;
  bool stopped_ = false;

  std::atomic<bool> closing_{false};  // nothing is prepared any more

  std::atomic<uint64_t> used_bytes_{0};
  std::atomic<uint64_t> usable_bytes_{0};

  // Lock order: close_mutex_, then one of the others; those are never held together.
  std::mutex close_mutex_;
  std::mutex mutex_;  // inbox_, accepting_, and open_operations_ where it becomes 0
  std::condition_variable idle_;
  std::vector<std::function<void()>> inbox_;
  std::atomic<size_t> open_operations_{0};
  std::atomic<bool> waiting_{false};  // the owner's thread will not look at the inbox before it is woken
  std::atomic<uint32_t> waking_{0};   // threads that still have the engine to wake
  bool accepting_ = false;
  bool closed_ = false;               // under close_mutex_
  std::shared_mutex manifest_mutex_;  // shared by readers of the manifest, exclusive for its end

  std::unique_ptr<CommitThread> commits_;
  std::thread thread_;
};

// MakeNvmeBackend on another disk than the system's; `options.directory` and `options.io_engine` say nothing.
Result<std::unique_ptr<Backend>> MakeNvmeBackendOnDisk(const NvmeOptions& options,
                                                       std::unique_ptr<Disk> disk);
// MakeNvmeBackend with another engine in io_uring's place.
Result<std::unique_ptr<Backend>> MakeNvmeBackendWithEngine(const NvmeOptions& options,
                                                           IoEngineFactory engine_factory);

}  // namespace terrace
