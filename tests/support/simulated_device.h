// SimulatedDevice: a device for tests. Its memory is the process's, marked as the device's; its streams are
// ordered queues that one thread serves in an order drawn from a seed: streams run ahead of each other, the
// pieces of a batch come in any order with other streams' work between them, kernels run (block, thread) in
// random order. Errors are injected, and each edge of the order can be taken away, so that a suite can show
// that it would notice.
//
// Threads: as Device says. Everything is recorded under the seed; a run is replayed by it as far as the order
// of the calls is the same.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "terrace/device.h"

namespace terrace {

struct SimulatedDeviceOptions {
  uint64_t seed = 1;
  int ordinal = 0;
  bool has_kernels = true;
  bool has_batched_copy = true;
  bool refuses_registration = false;
  uint64_t memory_bytes = uint64_t{1} << 30;  // Allocate's bound
  // Of the steps in which a stream could go on, in how many (of 256) it stands still instead.
  uint32_t delay_of_256 = 64;

  // Edges that can be taken away.
  bool ignore_waits_to_host = false;    // WaitFor on streams that copy to the host does nothing
  bool ignore_waits_to_device = false;  // the same of those that copy to the device
  bool events_lie_to_host = false;      // events of such streams are done at once
  bool events_lie_to_device = false;
  bool streams_are_unordered = false;  // work of one stream in any order, up to the next event
};

class SimulatedDevice : public Device {
 public:
  static std::shared_ptr<SimulatedDevice> Make(const SimulatedDeviceOptions& options = {});

  // An engine's stream, of which `native_handle()` may be given to AdoptStream.
  virtual std::shared_ptr<Stream> EngineStream() = 0;
  // Enqueues work of the engine's on any stream of this device: computing, overwriting, reading.
  virtual void Enqueue(Stream& stream, std::function<void()> work) = 0;

  // The work of the n-th Copy, CopyBatch or Run from now on ends in an error, as do all events after it on
  // its stream; 0 = none.
  virtual void FailAfter(uint64_t operations) = 0;
  // Enqueueing itself fails from the n-th on.
  virtual void RefuseAfter(uint64_t operations) = 0;
  // Streams stand still until Resume.
  virtual void Pause() = 0;
  virtual void Resume() = 0;
  // Everything that was enqueued is done.
  virtual void Synchronize() = 0;

  struct Counters {
    uint64_t copies = 0, batches = 0, pieces = 0, kernels = 0, copied_bytes = 0, registered_bytes = 0,
             allocated_bytes = 0;
  };
  virtual Counters counters() const = 0;
};

}  // namespace terrace
