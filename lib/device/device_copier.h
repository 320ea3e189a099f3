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
  // Of an earlier run on the same kind of device; null = measured, within this budget.
  const CopyCalibration* calibration = nullptr;
  Duration calibration_budget = std::chrono::milliseconds(80);
};

class DeviceCopier {
 public:
  // kInvalidArgument: a strategy that the device cannot do. Registration that is refused is said in
  // warnings(), not an error.
  static Result<std::unique_ptr<DeviceCopier>> Open(CopierOptions options);
  // Everything that was enqueued is done: the caller's to see to.
  ~DeviceCopier();
  DeviceCopier(const DeviceCopier&) = delete;
  DeviceCopier& operator=(const DeviceCopier&) = delete;

  // Enqueues the copy behind `after` (the engine's; null = at once) and answers the event of its end. An
  // error: what was enqueued before it may still run, up to the event that Fence gives. `args.payload` lies
  // in the pool.
  Result<std::shared_ptr<Event>> Copy(const PagedCopyArgs& args, const Event* after);
  // Behind everything that was enqueued in this direction.
  Result<std::shared_ptr<Event>> Fence(CopyDirection direction);

  CopyStrategy StrategyOf(const PagedCopyArgs& args) const;
  Device& device() const { return *options_.device.device; }
  const CopyCalibration& calibration() const { return calibration_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  uint64_t staging_bytes() const { return options_.device.staging_bytes; }

 private:
  struct Way {  // one direction
    std::shared_ptr<Stream> stream;
    std::byte* staging = nullptr;
    uint64_t staging_bytes = 0;
    uint64_t next_slot = 0;
    std::mutex mutex;  // orders what is enqueued on the stream
  };

  explicit DeviceCopier(CopierOptions options) : options_(std::move(options)) {}
  Way& WayOf(CopyDirection direction) { return ways_[direction == CopyDirection::kToHost ? 0 : 1]; }

  CopierOptions options_;
  CopyCalibration calibration_;
  std::vector<std::string> warnings_;
  std::vector<MutableBytes> registered_;
  std::shared_ptr<std::byte> staging_;
  uint32_t allowed_ = 0;  // strategies, 1 << strategy
  std::array<Way, 2> ways_;
};

}  // namespace terrace
