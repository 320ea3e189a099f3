// NvmeCore: the state of an open NVMe backend and the one thread that owns it. Index, allocator, segments and
// I/O belong to that thread alone, so they have no locks; public calls post work to it. Records go through
// the CommitThread and come back to the owner's thread.
//
// Order of a Put: extents are taken; tier page and frame are written and have completed; the record is
// written; it is in the index; `done`. Of an Erase: out of the index; (kErase: tier page wiped and synced;)
// record deleted (kErase: and synced); extents free once nobody reads them; `done`.
#pragma once

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

#include "backends/nvme/commit_thread.h"
#include "backends/nvme/io_engine.h"
#include "backends/nvme/opened_store.h"
#include "backends/nvme/transfer_queue.h"
#include "terrace/backend.h"

namespace terrace {

// The results of one call; `done` when the last is known.
template <typename Answer>
struct OpBatch {
  std::vector<Answer> answers;
  size_t open = 0;
  std::function<void(std::span<const Answer>)> done;

  void Set(size_t index, Answer answer) {
    answers[index] = std::move(answer);
    if (--open == 0) std::exchange(done, nullptr)(answers);
  }
};

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
// 4,096 zeros, 4,096-aligned.
using AlignedPage = std::unique_ptr<std::byte, FreeMemory>;
AlignedPage MakeAlignedPage();

class NvmeCore {
 public:
  NvmeCore(std::unique_ptr<OpenedStore> store, IoEngineFactory engine_factory);
  ~NvmeCore();

  // Starts the threads. kUnavailable where there is no engine.
  Status Start(const BackendContext& context);
  void Get(std::vector<GetOp> ops, GetDone done);
  void Put(std::vector<PutOp> ops, PutDone done);
  void Erase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done);
  void Clear(StatusDone done);
  void Flush(StatusDone done);
  Result<ScanPage> Scan(std::string_view cursor, size_t limit);
  Status PutRoot(const RootRecord& record);
  Result<std::vector<RootRecord>> ScanRoots();
  Status Close(TimePoint deadline);

  // The capacity without the manifest's reserve: what live extents are counted against.
  uint64_t data_bytes() const { return store_->data_bytes; }
  uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  // Ends the process where the accounting is broken. For tests.
  void CheckInvariants();

 private:
  using SecretRef = std::shared_ptr<const DirectorySecret>;

  // One Get or Put of an object between its start and the device's (and the manifest's) last word on it.
  struct ActiveOp {
    virtual ~ActiveOp() = default;
    ObjectId id;
    TimePoint deadline = kNoDeadline;
    CancelFlag cancel;
    TransferRef transfer;
    BufferRef buffer;
    std::function<void(const Status&)> answer;
    bool answered = false;
    bool orphaned = false;
  };
  struct GetState : ActiveOp {
    PlacementRef placement;
    SecretRef secret;
    bool whole = false;
    std::function<void(uint64_t, uint64_t)> on_bytes;
  };
  struct EraseWaiter {
    EraseMode mode;
    std::function<void(const Status&)> answer;
  };
  struct ClearState {
    std::vector<PlacementRef> placements;
  };
  struct PutState : ActiveOp {
    PlacementRef placement;
    ObjectMeta meta;
    AlignedPage page;
    uint64_t sequence = 0;
    RecordChange record;
    std::vector<EraseWaiter> waiters;
    std::shared_ptr<ClearState> cleared_by;  // a Clear came after it began
  };
  using ActiveRef = std::shared_ptr<ActiveOp>;
  using PutRef = std::shared_ptr<PutState>;
  struct Metrics {
    Counter* read_bytes = nullptr;
    Counter* written_bytes = nullptr;
    Counter* corrupt_objects = nullptr;
    Counter* dropped_records = nullptr;
    Gauge* orphaned_buffers = nullptr;
    Gauge* live_objects = nullptr;
    Gauge* used_bytes = nullptr;
  };

  // The thread (nvme_core.cc).
  // Runs `work` on the owner's thread, as one open operation. False, and nothing done, before Start and after
  // Close.
  bool Post(std::function<void()> work);
  void Run();
  void RunInbox();
  // An open operation: Close waits for its End.
  void Begin();
  void End();
  void CheckTimes();
  std::optional<Duration> TimeToNextCheck() const;
  void Watch(const ActiveRef& op);
  void Unwatch(const ActiveRef& op);
  // Completes the caller's operation now; the device goes on with the buffer as long as it must.
  void Abandon(const ActiveRef& op, const Status& status);
  Status PassedTime(const ActiveOp& op) const;
  // Completes every caller's operation; names the objects whose buffers a device still has.
  std::string CancelAll();
  void Commit(CommitTask task);
  Status WaitUntilIdle(TimePoint deadline);
  Status Shutdown();
  void UpdateFigures();
  void Log(LogLevel level, const std::string& message) const;

  // Reading (nvme_get.cc).
  void StartGet(GetOp op, std::function<void(GetResult)> answer);
  Status PlanGet(const GetOp& op, const Placement& placement, Transfer& transfer) const;
  void FinishGet(const std::shared_ptr<GetState>& get, Status status,
                 const std::function<void(GetResult)>& answer);
  Status Verify(const GetState& get) const;
  void AddSpans(const Placement& placement, uint64_t run_offset, uint64_t length, std::byte* memory,
                std::vector<TransferSpan>* spans) const;
  void DropCorrupt(const PlacementRef& placement, const Status& reason);

  // Writing (nvme_put.cc).
  void StartPut(PutOp op, std::function<void(const Status&)> answer);
  Result<std::vector<Extent>> AllocateExtents(uint64_t bytes);
  void FillPage(PutState& put) const;
  void FinishWrite(const PutRef& put, Status status);
  void FinishPut(const PutRef& put, const Status& status);

  // Erasing (nvme_erase.cc).
  void StartErase(const ObjectId& id, EraseMode mode, std::function<void(const Status&)> answer);
  void EraseForEver(const PlacementRef& placement, std::function<void(const Status&)> answer);
  void WipePage(const PlacementRef& placement, const Status& deleted,
                const std::function<void(const Status&)>& answer);
  // Deletes the record of what is no longer in the index, then retires its place.
  void DeleteRecord(const PlacementRef& placement, std::function<void(const Status&)> answer);
  void Retire(const PlacementRef& placement);
  void FreeExtents(const Placement& placement);
  void FreeIfUnused(const PlacementRef& placement);
  void StartClear(StatusDone done);
  void StartFlush(StatusDone done);
  void RunFlushes();

  const std::unique_ptr<OpenedStore> store_;
  const IoEngineFactory engine_factory_;
  BackendContext context_;
  Metrics metrics_;

  // Of the owner's thread.
  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<TransferQueue> transfers_;
  SecretRef secret_;
  absl::flat_hash_map<ObjectId, PutRef, ObjectIdHash> pending_puts_;
  std::set<uint64_t> put_sequences_;  // of the Puts that have begun and not ended
  uint64_t next_sequence_ = 1;
  std::multimap<uint64_t, StatusDone> flushes_;  // by the last sequence that they wait for
  absl::flat_hash_set<ActiveRef> watched_;
  TimePoint next_check_ = kNoDeadline;
  AlignedPage zero_page_;
  uint64_t reported_read_ = 0;
  uint64_t reported_written_ = 0;
  bool stopped_ = false;

  std::atomic<uint64_t> used_bytes_{0};

  // Lock order: close_mutex_, then one of the others; those are never held together.
  std::mutex close_mutex_;
  std::mutex mutex_;  // inbox_, open_operations_, accepting_
  std::condition_variable idle_;
  std::vector<std::function<void()>> inbox_;
  size_t open_operations_ = 0;
  bool accepting_ = false;
  bool closed_ = false;               // under close_mutex_
  std::shared_mutex manifest_mutex_;  // shared by readers of the manifest, exclusive for its end

  std::unique_ptr<CommitThread> commits_;
  std::thread thread_;
};

// MakeNvmeBackend with another engine than io_uring.
Result<std::unique_ptr<Backend>> MakeNvmeBackendWithEngine(const NvmeOptions& options,
                                                           IoEngineFactory engine_factory);

}  // namespace terrace
