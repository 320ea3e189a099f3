// StreamService: the queues of a SimulatedDevice and the one thread that serves them. Run takes one step
// after the other: it draws a stream that can go on, takes its next operation, or one piece of it, and
// performs that. Deterministic as far as the calls come in the same order between the same steps.
//
// Threads: every call from every thread; Pause and Synchronize not from work that runs on a stream.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "terrace/device.h"
#include "terrace/status.h"
#include "tests/support/simulated_device.h"
#include "tests/support/simulated_queue.h"

namespace terrace::simulated {

class StreamService : public std::enable_shared_from_this<StreamService> {
 public:
  explicit StreamService(const SimulatedDeviceOptions& options) : options_(options), draw_(options.seed) {}

  std::shared_ptr<Queue> AddQueue(bool is_terraces);
  std::shared_ptr<Queue> FindQueue(const void* native);
  void* HandOut(const std::shared_ptr<Mark>& mark);
  std::shared_ptr<Mark> FindMark(const void* native);

  void Enqueue(Queue& queue, Operation operation);
  // Of Copy, CopyBatch and Run: counted for the two below.
  Status EnqueueCopy(Queue& queue, Operation operation);
  void FailAfter(uint64_t operations);
  void RefuseAfter(uint64_t operations);
  Status EnqueueRecord(Queue& queue, std::shared_ptr<Mark> mark);
  void RefuseRecords(uint64_t records);

  void Pause();
  void Resume();
  void Synchronize();
  void Wake();
  void End();  // the thread drains the queues and ends
  void Run();

  KnownMemory& registered() { return registered_; }
  KnownMemory& allocated() { return allocated_; }
  const SimulatedDeviceOptions& options() const { return options_; }
  SimulatedDevice::Counters counters() const;

 private:
  // What one step did; `operation` is the taken one, or a batch of one of its pieces.
  struct Step {
    Operation operation;
    bool is_last = true;
    bool fails = false;
    uint64_t num_pieces = 0, bytes = 0, unregistered = 0;
  };

  std::shared_ptr<Queue> PickLocked();
  Step TakeLocked(Queue& queue);
  void CountLocked(const Step& step);
  void WakeLocked();
  void Classify(Queue& queue, CopyDirection direction) const;
  void Perform(Step& step);
  void PerformKernel(Step& step);
  void CopyPieceOf(Step& step, const CopyPiece& piece);
  void WriteGarbage(const CopyPiece& piece);
  void CopyBytes(std::byte* dst, const std::byte* src, uint64_t bytes) const;
  void Break(Queue& queue, std::unique_lock<std::mutex>& lock);
  bool IsKnown(const std::byte* memory, uint64_t bytes) const;
  bool EventsLie() const { return options_.events_lie_to_host || options_.events_lie_to_device; }

  const SimulatedDeviceOptions options_;
  KnownMemory registered_;
  KnownMemory allocated_;
  Draw draw_;  // the service thread's

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::condition_variable settled_;
  std::vector<std::shared_ptr<Queue>> queues_;
  std::unordered_map<const void*, std::weak_ptr<Mark>> handed_out_;
  SimulatedDevice::Counters counters_;
  uint64_t num_operations_ = 0;
  uint64_t failing_ = 0, refused_from_ = 0;  // numbers of operations; 0 = none
  uint64_t refused_records_ = 0;
  bool is_paused_ = false, is_ending_ = false, is_running_ = false, is_asleep_ = false;
};

}  // namespace terrace::simulated
