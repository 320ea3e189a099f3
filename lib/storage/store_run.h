// StoreRun: one Store of views while it is being copied. StoreQueue: all of a manager's, in the order in
// which they were called.
//
//   Store -> copy strand: Begin -> Enqueue ... Enqueue -> nothing more to enqueue
//                            |         ^
//              copies on a device      | room in the window
//                            v         |
//            poller -> copy strand: OnCopied -> Settle -> PublishReady
//
// Objects settle in the order of the store, and are published in the order of the stores, so that what hangs
// on a chunk comes after it. Everything after an object whose copy failed is abandoned. The run, and with it
// each buffer that a device may still write to, lives until the device is done with the last copy, whatever
// became of the executor: its end frees the source.
//
// Threads: both are used on the copy strand; the ends of a run and of a copy come from any thread, as does
// StoreQueue::DropAll.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "lib/codec/paged_copy.h"
#include "lib/storage/device_use.h"
#include "lib/storage/manager_core.h"
#include "lib/storage/request_tracer.h"
#include "lib/storage/shared_state.h"
#include "lib/storage/store_state.h"

namespace terrace {

class StoreRun : public std::enable_shared_from_this<StoreRun> {
 public:
  // `devices`: null where all views are of host memory. The store waits in ManagerCore::view_stores_, and its
  // ticket is there.
  StoreRun(std::shared_ptr<StoreHandle::State> store, std::shared_ptr<DeviceUse> devices);
  ~StoreRun();
  StoreRun(const StoreRun&) = delete;
  StoreRun& operator=(const StoreRun&) = delete;

  // Goes on until everything is enqueued or given up (true), or until devices have enough to do (false).
  bool Enqueue(StoreQueue& queue);
  // Hands over what may be published.
  void PublishReady();
  // Nothing is left to be copied or published.
  bool IsOver() const { return is_enqueued_ && objects_.empty() && ready_.empty(); }
  // Nothing more of it is enqueued; a run that has ended already stays as it is.
  void End(Status status);
  void Settle();

 private:
  struct Object;
  struct CopyEnd;
  using ViewChunk = ManagerCore::ViewChunk;

  ManagerCore& core() const { return *store_->core; }
  bool EnqueueNext(StoreQueue& queue);
  Status EnqueueObject(const SourceView& view, const ViewChunk& chunk);
  void EnqueueCopy(const SourceView& view, const KernelCopy& copy, const std::shared_ptr<Object>& object);
  // Whether the view holds what the group keeps of the chunk. False and OK: it need not.
  Result<bool> IsHeld(const SourceView& view, const ViewChunk& chunk) const;
  void OnCopied(Object& object, const Status& status);
  void AbandonFrom(const Object& first);
  void TellFree();
  void Trace();

  const std::shared_ptr<StoreHandle::State> store_;
  std::shared_ptr<DeviceUse> devices_;
  std::optional<ManagerCore::TicketEnd> ticket_end_;
  std::optional<RequestTracer> tracer_;
  size_t next_chunk_ = 0;
  size_t next_view_ = 0;
  bool is_enqueued_ = false;
  bool has_failed_ = false;  // a copy did: what comes after it is not wanted
  bool is_freed_ = false;
  uint64_t copied_bytes_ = 0;
  std::deque<std::shared_ptr<Object>> objects_;              // not yet settled
  std::deque<std::unique_ptr<WritableChunk::State>> ready_;  // settled, not yet published
  StoreReport report_;                                       // of what is settled
};

class StoreQueue {
 public:
  // `exceptions` counts those that a store ended with.
  // Bytes of the buffers of copies that devices were given and have not done; one copy may have more.
  StoreQueue(uint64_t window_bytes, Counter* exceptions)
      : window_bytes_(window_bytes), exceptions_(exceptions) {}

  void Begin(std::shared_ptr<StoreRun> run);
  // Enqueues and publishes what may be.
  void Pump();
  bool IsFirst(const StoreRun& run) const;
  // An executor dropped what would have gone on: nothing here goes on.
  void DropAll();

  bool HasRoom(uint64_t bytes) const;
  void Take(uint64_t bytes);
  void GiveBack(uint64_t bytes);

 private:
  static constexpr size_t kMaxCopies = 64;

  std::shared_ptr<StoreRun> NextToEnqueue() const;
  std::shared_ptr<StoreRun> First() const;
  void NoteEnqueued(const StoreRun& run);
  void PopFirst(const StoreRun& run);

  const uint64_t window_bytes_;
  Counter* const exceptions_;
  mutable std::mutex mutex_;  // a leaf, never held while anything is called; guards all below
  std::deque<std::shared_ptr<StoreRun>> runs_;
  size_t num_enqueued_ = 0;  // of the first runs
  uint64_t bytes_in_flight_ = 0;
  size_t copies_in_flight_ = 0;
};

}  // namespace terrace
