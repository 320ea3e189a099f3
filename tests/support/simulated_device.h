// SimulatedDevice: a device for tests. Its memory is the process's; its streams are ordered queues that one
// thread serves in an order drawn from a seed: streams run ahead of each other, the pieces of a batch come in
// any order with other streams' work between them, kernels run (block, thread) in random order. Errors are
// injected, and each edge of the order can be taken away, so that a suite can show that it would notice.
//
// Host memory is registered by whole pages of 4 KiB; MappedAddress is the address itself. Events of other
// simulated devices may be waited for. AdoptStream(nullptr) is a stream that is always there, and that the
// others do not wait for. When the last reference goes, what was enqueued is done first.
//
// Threads: as Device says; Pause, Synchronize and waiting for events not from work that runs on a stream. A
// seed is a schedule as far as the calls come in the same order between the same steps: what is enqueued
// between Pause and Resume.
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
  // Of the steps in which a stream could go on, in how many (of 256) it stands still instead. A step that is
  // drawn again, not time.
  uint32_t delay_of_256 = 64;

  // Edges that can be taken away, of streams of MakeStream; which way a stream copies is told by the first
  // Copy, CopyBatch or Run on it. With events that lie, what the device copies is kept from the thread
  // sanitizer, which would end the suite before it notices.
  bool ignore_waits_to_host = false;    // WaitFor on streams that copy to the host does nothing
  bool ignore_waits_to_device = false;  // the same of those that copy to the device
  bool events_lie_to_host = false;      // events of such streams are done at once
  bool events_lie_to_device = false;
  // Copies and kernels of one stream come in any order, up to its next event, wait or work of the engine's.
  bool streams_are_unordered = false;
};

class SimulatedDevice : public Device {
 public:
  static std::shared_ptr<SimulatedDevice> Make(const SimulatedDeviceOptions& options = {});

  // An engine's stream, of which `native_handle()` may be given to AdoptStream.
  virtual std::shared_ptr<Stream> EngineStream() = 0;
  // Enqueues work of the engine's on any stream of this device: computing, overwriting, reading. It runs on
  // the device's thread; it may enqueue, and hold streams.
  virtual void Enqueue(Stream& stream, std::function<void()> work) = 0;

  // The work of the n-th Copy, CopyBatch or Run from now on (1 = the next one) ends in an error: a part of it
  // is copied, a part is garbage within its destination. All events after it on its stream end in kInternal,
  // and nothing after it is run. Other streams go on, those too that wait for such an event. 0 = none.
  virtual void FailAfter(uint64_t operations) = 0;
  // Copy, CopyBatch and Run answer kUnavailable and enqueue nothing, from the n-th on; 0 = none.
  virtual void RefuseAfter(uint64_t operations) = 0;
  // The next `records` calls of Record answer kUnavailable; 0 = none.
  virtual void RefuseRecords(uint64_t records) = 0;
  // Streams stand still until Resume; nothing is running when it returns.
  virtual void Pause() = 0;
  virtual void Resume() = 0;
  // Everything that was enqueued is done when it returns. Not while paused.
  virtual void Synchronize() = 0;

  struct Counters {
    // What was performed: pieces of copies and batches, bytes of kernels too.
    uint64_t copies = 0, batches = 0, pieces = 0, kernels = 0, copied_bytes = 0;
    uint64_t registered_bytes = 0, allocated_bytes = 0;  // now
    // Pieces and kernels whose host side was neither registered nor Allocate's when they were performed: 0 in
    // a correct program. Not counted where registration is refused.
    uint64_t unregistered = 0;
  };
  virtual Counters counters() const = 0;
};

}  // namespace terrace
