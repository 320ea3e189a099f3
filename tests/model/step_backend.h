// StepBackend: a lower tier whose operations are steps in the test's hands. Each is held before the device
// has it, or after (the bytes have landed, the completion is late), and released one by one in any order.
// What is cancelled or past its deadline completes without its bytes while the "device" keeps the buffer, and
// scribbles over it before it lets go.
//
// The order that backend.h promises holds: an erase runs after the writes of the same object that are held.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "terrace/backend_wrapper.h"

namespace terrace {

// Everything that outlives one opening of the tier. One thread at a time.
struct StepControl {
  explicit StepControl(uint64_t seed) : random(seed) {}

  bool holding = false;    // operations are held from now on
  double drop = 0;         // of what is released: the completion is dropped, unrun
  double refuse_root = 0;  // PutRoot and ScanRoots fail
  Clock* clock = nullptr;  // whose deadlines count
  std::mt19937_64 random;
  uint64_t steps = 0;
  uint64_t scribbles = 0;  // buffers that were written to after their operation had completed
  uint64_t drops = 0;

  enum class Kind { kGet, kPut, kErase };
  struct Held {
    Kind kind;
    std::vector<ObjectId> ids;
    std::function<void()> run;
  };
  std::deque<Held> held;
  std::vector<BufferRef> orphans;    // of abandoned reads
  std::set<ObjectId> unsure_erases;  // that failed, or whose completion was dropped

  bool Chance(double probability);
  size_t num_held(Kind kind) const;
  bool HoldsWriteOf(const ObjectId& id) const;
  // Releases one operation, drawn from `random`; false where nothing is held.
  bool Step();
  // Oldest first, also what is started meanwhile; `gets` too or writes and erases only.
  void Drain(bool gets);
  // The device lets go of the buffers of abandoned reads, with wrong bytes in them.
  void ScribbleOrphans();

 private:
  void Run(std::deque<Held>::iterator at);
};

class StepBackend final : public BackendWrapper {
 public:
  StepBackend(std::unique_ptr<Backend> base, std::shared_ptr<StepControl> control)
      : BackendWrapper(std::move(base)), control_(std::move(control)) {}

 protected:
  Capabilities DoCapabilities() const override;
  void DoGet(std::vector<GetOp> ops, GetDone done) override;
  void DoPut(std::vector<PutOp> ops, PutDone done) override;
  void DoErase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) override;
  void DoClear(StatusDone done) override;
  void DoFlush(StatusDone done) override;
  Status DoPutRoot(const RootRecord& record) override;
  Result<std::vector<RootRecord>> DoScanRoots() override;
  Status DoClose(TimePoint deadline) override;

 private:
  void GetNow(std::vector<GetOp> ops, GetDone done);
  // Ends writes and erases of the ids that are held, so that what comes next takes effect after them.
  void EndHeld(const std::vector<ObjectId>& ids);

  const std::shared_ptr<StepControl> control_;
};

}  // namespace terrace
