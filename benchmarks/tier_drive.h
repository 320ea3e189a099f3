// TierDrive: keeps a bounded number of operations in flight on a disk tier's backend, with real frames in
// buffers of a pool, as the storage manager would. The tier is full: each put evicts the oldest.
//
// One caller's thread; completions reach it through a queue.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lib/codec/piece_codec.h"
#include "lib/memory/buffer_pool.h"
#include "lib/wire/frame.h"
#include "terrace/backend.h"
#include "terrace/nvme_backend.h"

namespace terrace::bench {

enum class DriveOp : uint8_t { kPut, kGet };

// What one run is made of.
struct DrivePlan {
  uint64_t num_ops = 0;  // counted ones
  uint32_t depth = 1;    // in flight
  // Of ten operations in turn, how many are gets.
  uint32_t gets_of_ten = 0;
  bool verify = false;           // the pieces of what is read are checked while it arrives
  bool scattered = false;        // gets in random order; else in the order in which they were put
  uint32_t background_puts = 0;  // kept in flight beside the others until those have ended, not counted
};

struct DriveFigures {
  double gbps = 0;  // payload bytes, of background puts too
  double cpu_s_per_gb = 0;
  std::vector<double> get_ms;  // from the call to its completion
  std::vector<double> put_ms;
};

class TierDrive {
 public:
  // Opens a tier in options.directory and fills it. `max_depth`: what a plan's depth and background puts
  // together have at most. kInvalidArgument where the capacity holds less than four times that.
  static Result<std::unique_ptr<TierDrive>> Open(const NvmeOptions& options, uint64_t payload_bytes,
                                                 uint32_t max_depth);
  ~TierDrive();

  // The first operation that failed, or bytes that were not the object's, end the run.
  Result<DriveFigures> Run(const DrivePlan& plan);
  uint64_t num_objects() const { return objects_.size(); }

 private:
  using SteadyClock = std::chrono::steady_clock;
  struct Object {
    ObjectId id;
    ObjectMeta meta;
  };
  // A buffer and the operation that has it. Those of puts keep their payload, which differs from slot to
  // slot.
  struct Slot {
    BufferRef buffer;
    DriveOp op = DriveOp::kPut;
    FrameHeader header;  // of a put's frames but for parent and key; the pieces are sealed
    bool counted = true;
    Object object;
    std::optional<PieceVerifier> verifier;
    SteadyClock::time_point begin;
  };
  struct Completion {
    Slot* slot = nullptr;  // null: an eviction
    uint64_t evicted = 0;
    Status status;
    SteadyClock::time_point end;
  };
  struct RunState;

  TierDrive(uint64_t payload_bytes, uint32_t max_depth);
  Status MakeSlots(uint32_t per_op);
  Status Fill();
  void MeasureIdle();
  void StartWhatFits(RunState& run);
  // False where there is no room yet: an eviction is in flight then.
  bool StartPut(bool counted);
  void StartGet(const DrivePlan& plan);
  ObjectId NextToGet(bool scattered);
  void EvictAhead();
  // Waits for one completion at least.
  std::vector<Completion> TakeCompletions();
  void Finish(RunState& run, const Completion& completion);
  Status CheckGet(Slot& slot) const;
  void Push(Completion completion);

  const uint64_t payload_bytes_;
  const uint32_t max_depth_;
  MetricRegistry metrics_;
  const std::shared_ptr<LogSink> log_ = MakeNullLogSink();
  std::unique_ptr<BufferPool> pool_;
  uint64_t frame_bytes_ = 0;
  ChunkContentRef content_;
  uint64_t next_object_ = 0;
  std::deque<Object> objects_;  // in the tier, the oldest first
  uint64_t next_get_ = 0;       // counts from the first object ever put
  uint64_t evicted_ = 0;        // objects that have left the front of objects_
  uint64_t room_ = 0;           // frames that fit without an eviction
  uint64_t evicting_ = 0;
  uint64_t random_ = 1;
  double framing_cpu_s_ = 0;  // spent on headers: not the tier's
  double idle_cpu_rate_ = 0;  // CPU seconds per second while nothing is asked
  std::vector<std::unique_ptr<Slot>> slots_;
  std::array<std::vector<Slot*>, 2> idle_;  // by DriveOp

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Completion> completions_;

  std::unique_ptr<Backend> backend_;  // the last member: its callbacks use the others
};

}  // namespace terrace::bench
