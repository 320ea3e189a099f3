// The state of one load: shared by the handle, its LeasedChunks, the reads in flight and the work posted for
// it.
//
// A load is a list of units (LoadUnit). They are started in order while the window has room, become ready in
// any order and are taken in order: by Next, or on the executor, which copies them to the load's target.
//
//   kWaiting --Pump--> kReading --disk--> kReady --Next, Drain--> kCopying --copied--> kTaken
//      ^  no room, another tier  |          |
//      +-------------------------+----------+  shed for another load
//
// A copy into host memory is made by Drain itself; one into a device's is enqueued, keeps its buffer, and is
// done when its event is. Two cursors run over the units: those before next_take were handed to the target or
// are not given out, those before next_done are settled too, and counted in the report.
//
// Files: load.cc makes loads, load_pump.cc starts units and finds room for them, load_read.cc reads them,
// load_take.cc takes them and ends loads, load_device.cc ends copies into devices, load_handle.cc is the
// caller's side.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lib/codec/piece_codec.h"
#include "lib/storage/device_use.h"
#include "lib/storage/load_plan.h"
#include "lib/storage/load_target.h"
#include "lib/storage/load_trace.h"
#include "lib/storage/manager_core.h"

namespace terrace {

// What `bytes` behind a tier page occupy of the pool.
inline uint64_t PoolBytes(uint64_t bytes) { return RoundUp(kTierPageBytes + bytes, kPoolUnitBytes); }

struct LoadHandle::State : std::enable_shared_from_this<LoadHandle::State> {
  struct Slot {
    enum class Phase : uint8_t { kWaiting, kReading, kReady, kCopying, kTaken } phase = Phase::kWaiting;
    uint8_t from_tier = 0;        // faster ones failed
    bool is_copied = false;       // kTaken: handed out, or in the target
    size_t tier = 0;              // kReady: that the bytes came from
    uint64_t charge = 0;          // bytes of the window
    PayloadRange place;           // kReady: where the unit's bytes of the payload lie in buffer.frame()
    BufferRef buffer;             // kReady, kCopying
    std::shared_ptr<Event> copy;  // kCopying, into a device
    LoadTrace::Clock::time_point copy_begin{};
  };
  // Layer-major: of the units before a cursor.
  struct Layers {
    bool are_whole = true;  // no unit was skipped
    uint32_t end = 0;       // layers below are there for the whole range
  };
  // Layer-major, where the whole range fits the window: an object's frame that is filled by its units one
  // after another, and promoted with the last one.
  struct Assembly {
    enum class Phase : uint8_t { kNone, kFilling, kNever } phase = Phase::kNever;
    bool is_reading = false;
    size_t tier = 0;
    uint64_t erasures = 0;
    BufferRef buffer;
    std::shared_ptr<PieceVerifier> verifier;
  };
  // One read that was started, until it ends.
  struct Read {
    enum class Kind : uint8_t { kFrame, kWindow, kAssembly } kind = Kind::kFrame;
    size_t unit = 0;
    size_t tier = 0;
    uint64_t erasures = 0;
    BufferRef buffer;
    std::shared_ptr<PieceVerifier> verifier;
    std::vector<FrameRange> ranges;  // empty: the whole frame
    LoadTrace::Clock::time_point sent{};
    uint64_t BytesOf(const LeaseItem& item) const;
  };
  // Reads that go to a backend in one call: at most kBatchBytes, or one. Used by the pumping thread alone.
  struct Batch {
    size_t tier = 0;
    uint64_t bytes = 0;
    std::vector<Read> reads;
  };
  static constexpr uint64_t kBatchBytes = uint64_t{8} << 20;
  static constexpr size_t kMaxDeviceCopies = 64;  // enqueued and not done; their events are polled

  // Fixed once the load was made.
  std::shared_ptr<ManagerCore> core;
  RootStateRef root;  // null: nothing to load
  // Of what a remote tier announced, payload length and tokens are known when the frame is there: set before
  // the object's unit is kReady.
  std::vector<LeaseItem> items;
  std::vector<LoadUnit> units;
  LoadTarget target;
  LoadOrder order = LoadOrder::kChunkMajor;
  uint64_t begin_token = 0;
  uint64_t first_whole_token = 0;  // see FirstWholeToken
  uint64_t window_bytes = 0;
  CancelFlag cancel = std::make_shared<std::atomic<bool>>(false);
  std::unique_ptr<LoadTrace> trace;  // null: nobody listens

  // A leaf: nothing is called and no buffer dropped while it is held. Guards all below.
  mutable std::mutex mutex;
  std::shared_ptr<Lease::State> lease;  // protects the objects; until Cancel
  // Null without views of a device; until Cancel. Read without the lock while is_copying or device_copies
  // keep Cancel.
  std::shared_ptr<DeviceUse> devices;
  std::condition_variable changed;
  std::vector<Slot> slots;           // one per unit
  std::vector<Assembly> assemblies;  // one per item, or none
  std::vector<uint32_t> units_left;  // per item, not yet taken
  size_t whole_items = 0;            // items before this one are taken whole
  Layers taken_layers;               // before next_take
  Layers done_layers;                // before next_done
  bool is_pumping = false;
  bool pump_again = false;
  size_t next_start = 0;   // units before it are not kWaiting
  size_t started_end = 0;  // units from it on were never started
  size_t next_take = 0;
  size_t next_done = 0;
  size_t device_copies = 0;  // whose event, or the call that it makes, is not over
  uint64_t resident_bytes = 0;
  // Starving: the next unit to take found no room. Since when, by both clocks (the injected one may stand
  // still or run ahead).
  bool is_starving = false;
  TimePoint starving_since{};
  TimePoint starving_since_injected{};
  uint64_t room_notice = 0;  // of the pool, 0 = none asked for
  bool wants_pump = false;   // room came, or something to be shed
  int waiters = 0;           // callers in Next, Wait, WaitLayer or their like
  bool is_draining = false;  // posted to the executor, or running there
  bool is_copying = false;   // Drain is in the target's Copy
  // Units that are not given out: those of items >= first.item from step first.unit on. Each new one concerns
  // an earlier item, or earlier steps.
  struct Failure {
    size_t item = 0;
    size_t unit = 0;
  };
  std::vector<Failure> failures;
  LoadReport report;

  ~State();

  // load_pump.cc
  void Pump();
  // Pumps in the waiting caller, or on the executor.
  void WakeToPump();
  std::optional<size_t> NextToStart(bool* is_barred);  // with the lock
  bool Begin(size_t unit, std::vector<Batch>& batches);
  bool ContinueAssembly(size_t unit, std::vector<Batch>& batches);
  bool BeginAssembly(size_t unit, const ManagerCore::ReadSource& source, std::vector<Batch>& batches);
  void TakeBorrowed(size_t unit, BufferRef frame);
  BufferRef AllocateFor(size_t unit, uint64_t bytes);
  bool IsHead(size_t unit) const;  // takes the lock
  // Back to kWaiting: no room, or (`from_tier`) the faster tiers failed.
  void Unstart(size_t unit, std::optional<size_t> from_tier);
  // With a registry: for want of room that other loads may have; else for the window's sake, or not at all.
  void SetStarving(bool starving, LoadRegistry* for_room_in);
  uint64_t ChargeOf(size_t unit) const;  // with the lock
  // How far ahead of next_take the farthest unit is that could be shed, from 1; 0: none.
  size_t SheddableDistance() const;
  bool ShedFarthest(bool for_itself);
  std::optional<size_t> FindSheddable(bool for_itself) const;  // with the lock
  bool DropIdleAssembly(std::vector<BufferRef>* dropped);      // with the lock

  // load_read.cc
  void AddRead(Read read, std::vector<Batch>& batches);
  void Send(std::vector<Batch>& batches);
  Read WindowRead(size_t unit, const ManagerCore::ReadSource& source, BufferRef buffer) const;
  Read AssemblyRead(size_t unit, const Assembly& assembly) const;
  BufferRef BorrowAgain(const LeaseItem& item) const;
  void FinishUnit(const Read& read, const GetResult& result);
  Status FinishFrame(const Read& read, const GetResult& result);
  Status FinishWindow(const Read& read, const GetResult& result);
  Status FinishAssembly(const Read& read, const GetResult& result);
  // Of an object of the index; what a remote tier announced says it in its header.
  uint32_t HeaderBytesOf(const LeaseItem& item) const;
  // What the frame says of an object that a remote tier announced. kInvalidArgument: the sink's memory is of
  // another size.
  Status LearnFrom(const FrameHeader& header, LeaseItem& item) const;

  // load_take.cc
  void Ready(size_t unit, size_t tier, BufferRef buffer, PayloadRange place);
  void Fail(size_t unit, Status status);
  void PostDrain();
  void Drain();
  void DrainWasDropped();
  void CopyUnit(size_t unit);
  // With the lock, all of them.
  bool CanDrain() const;
  void SettleCopy(size_t unit, bool is_copied);
  void CountTaken(size_t unit);
  void CountDone();                                      // moves next_done on
  void SkipVoid();                                       // moves next_take on, and next_done
  void EndGroup(Layers& layers, size_t end_unit) const;  // steps before `end_unit` are behind the cursor
  bool IsVoid(size_t unit) const;
  bool IsOver() const;
  // With the lock: nothing of `failure` is given out. What was ready goes to `dropped`, to be released after
  // the lock.
  void EndAt(Failure failure, Status why, std::vector<BufferRef>* dropped);
  void ReleaseBytes(uint64_t bytes);
  // The caller's part ends: when it returns, nothing touches the caller's memory. Not so where `deadline`
  // passes before a device has done what was enqueued: the load uses the device on.
  void Cancel(Status why, TimePoint deadline = kNoDeadline);
  void ReleaseIfKept();

  // load_device.cc
  void AwaitCopy(size_t unit, LoadTarget::Copied copied);
  // The unit's event is done, or was the device's error; the poller's thread.
  void FinishCopy(size_t unit, const Status& status);
  // Of copies of units before `end_unit` that are not done: the last one's event of each device. With the
  // lock.
  std::vector<std::shared_ptr<Event>> LastCopies(size_t end_unit) const;
  size_t EndUnitOf(uint32_t layer) const;  // units before it hold the layers [0, layer]

  // load_handle.cc
  // Waits until `arrived` or the deadline, pumping when there is word; gives up where no progress is
  // possible. The answer of `arrived`.
  bool WaitUntil(std::unique_lock<std::mutex>& lock, TimePoint deadline,
                 const std::function<bool()>& arrived);
  bool IsStarvedOut() const;  // with the lock
  void GiveUp(std::unique_lock<std::mutex>& lock);
};

struct LeasedChunk::State {
  std::shared_ptr<LoadHandle::State> load;
  LeaseItem item;
  BufferRef buffer;
  PayloadRange place;
  size_t tier = 0;
  uint64_t charge = 0;

  ~State() {
    if (load && load->core->IsForkedChild()) {
      // The parent's; giving it back takes locks that a fork may have left held.
      new BufferRef(std::move(buffer));
      return;
    }
    buffer.Reset();
    if (load) load->ReleaseBytes(charge);
  }
};

}  // namespace terrace
