// DeviceCopier: copies between the pages of one device and payloads in the pool, by the strategy that is the
// fastest for the pieces at hand (CopyCalibration), all behind one call. Has one stream for stores and one
// for loads, and the staging memory; made at Open.
//
//   Copy(args, after) --plain, batched: pieces ----------------------------------> stream --> event
//                     --staged:  kernel <-> staging slot, one copy per slot -----> stream --> event
//                     --mapped:  kernel on the pool's memory as the device sees it
//
// Staging slots are used again in the order of the stream that uses them: each direction has its own half.
// Threads: every call from every thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/paged_copy_args.h"
#include "lib/device/copy_calibration.h"
#include "terrace/bytes.h"
#include "terrace/device.h"
#include "terrace/status.h"
#include "terrace/time.h"

namespace terrace {

struct CopierOptions {
  DeviceOptions device;
  std::vector<MutableBytes> pool;  // registered with the device until the copier's end
  // Of an earlier run on the same kind of device, read by Open alone; null = measured within this budget, of
  // which 0 measures nothing. Directions whose strategy is given are not measured.
  const CopyCalibration* calibration = nullptr;
  Duration calibration_budget = std::chrono::milliseconds(80);
};

// kInvalidArgument names the field, its value and what is allowed: a strategy that the device cannot do, or
// staging memory that is too small for any copy.
Status ValidateDeviceOptions(const DeviceOptions& options);

class DeviceCopier {
 public:
  // Before anything is stored: measuring overwrites the pool's first region. kInvalidArgument: a strategy
  // that the device cannot do (with these options). What the system refuses, registration and staging memory,
  // is said in warnings(), not an error; strategies that need it are not used, forced or not.
  static Result<std::unique_ptr<DeviceCopier>> Open(CopierOptions options);
  // Everything that was enqueued is done: the caller's to see to.
  ~DeviceCopier();
  DeviceCopier(const DeviceCopier&) = delete;
  DeviceCopier& operator=(const DeviceCopier&) = delete;

  // Enqueues the copy behind `after` (the engine's; null = at once) and answers the event of its end. An
  // error: what was enqueued before it may still run, up to the event that Fence gives; until that is done
  // (or itself an error) pages and payload stay. `args.payload` lies in the pool.
  Result<std::shared_ptr<Event>> Copy(const PagedCopyArgs& args, const Event* after);
  // Behind everything that was enqueued in this direction. An error: the device is lost, and runs nothing
  // more.
  Result<std::shared_ptr<Event>> Fence(CopyDirection direction);

  // One contiguous piece is always a plain copy. Staged copies are none where a token does not fit into a
  // slot (a quarter of the staging memory), or where a gather leaves blocks out, whose bytes would come from
  // the slot's last use.
  CopyStrategy StrategyOf(const PagedCopyArgs& args) const;
  Device& device() const { return *options_.device.device; }
  const CopyCalibration& calibration() const { return calibration_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Device memory that is held; 0 where it was refused.
  uint64_t staging_bytes() const { return staging_ == nullptr ? 0 : options_.device.staging_bytes; }

 private:
  // One direction.
  //
  //   staging_ | to host: slot 0 | slot 1 | to device: slot 0 | slot 1 |      slots of slot_bytes_
  struct Way {
    std::shared_ptr<Stream> stream;
    std::byte* staging = nullptr;
    uint64_t next_slot = 0;  // counts up; guarded by mutex
    std::mutex mutex;        // orders what is enqueued on the stream
  };

  explicit DeviceCopier(CopierOptions options) : options_(std::move(options)) {}
  Way& WayOf(CopyDirection direction) { return ways_[direction == CopyDirection::kToHost ? 0 : 1]; }
  bool IsAllowed(CopyStrategy strategy) const;

  // Parts of Open, in its order.
  void RegisterPool();
  Status MakeStreams();
  Status TakeStaging();
  void ApplyOverrides();
  Status Calibrate(Duration budget);

  // On the way's stream, under its mutex.
  Status Enqueue(Way& way, const PagedCopyArgs& args, CopyStrategy strategy);
  Status EnqueuePlain(Way& way, const PagedCopyArgs& args);
  Status EnqueueBatched(Way& way, const PagedCopyArgs& args);
  Status EnqueueStaged(Way& way, const PagedCopyArgs& args);
  Status EnqueueMapped(Way& way, PagedCopyArgs args);
  Result<std::shared_ptr<Event>> CopyBy(CopyStrategy strategy, const PagedCopyArgs& args, const Event* after);

  CopierOptions options_;
  CopyCalibration calibration_;
  std::vector<std::string> warnings_;
  std::vector<MutableBytes> registered_;
  std::shared_ptr<std::byte> staging_;
  uint64_t slot_bytes_ = 0;  // 0 = no staged copies
  uint32_t allowed_ = 0;     // strategies, 1 << strategy
  std::array<Way, 2> ways_;
};

}  // namespace terrace
