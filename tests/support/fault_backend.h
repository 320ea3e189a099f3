// FaultBackend: a backend that fails with given probabilities, drawn from a seed. For tests of what stands
// above a backend: whatever it does, the answer up there must be right bytes or a miss.
//
// Two runs with one seed and one order of calls inject the same faults.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "terrace/backend_wrapper.h"

namespace terrace {

// Probabilities per operation, 0..1. What does not apply to a kind of call is ignored.
struct FaultRates {
  double error = 0;        // fails with FaultOptions::error, the base never sees it
  double error_after = 0;  // the base did it, the caller is told that it failed (not Get)
  double not_found = 0;    // Get and Borrow: a miss for what is there
  double corrupt = 0;      // Get: one bit of what was read is flipped, before it is reported to on_bytes
  double late = 0;         // of the batch: completes `late_by` after the base did
};

struct FaultOptions {
  uint64_t seed = 1;
  FaultRates get;
  FaultRates put;
  FaultRates erase;
  FaultRates clear;
  FaultRates flush;
  FaultRates borrow;  // not_found only
  FaultRates scan;    // error only
  StatusCode error = StatusCode::kUnavailable;
  Duration late_by = std::chrono::milliseconds(5);
};

struct FaultCounts {
  uint64_t errors = 0;
  uint64_t errors_after = 0;
  uint64_t not_found = 0;
  uint64_t corrupt = 0;
  uint64_t late = 0;
};

class FaultBackend final : public BackendWrapper {
 public:
  FaultBackend(std::unique_ptr<Backend> base, FaultOptions options);
  ~FaultBackend() override;

  // For the calls that follow. Rates of `late` above 0 must be in the options of the constructor: they decide
  // whether completions run on a thread of this backend.
  void SetOptions(const FaultOptions& options);
  FaultCounts counts() const;

 protected:
  Capabilities DoCapabilities() const override;
  void DoGet(std::vector<GetOp> ops, GetDone done) override;
  void DoPut(std::vector<PutOp> ops, PutDone done) override;
  void DoErase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) override;
  void DoClear(StatusDone done) override;
  void DoFlush(StatusDone done) override;
  std::vector<BufferRef> DoBorrow(std::span<const ObjectId> ids) override;
  Result<ScanPage> DoScan(std::string_view cursor, size_t limit, ScanDetail detail) override;
  Status DoClose(TimePoint deadline) override;

 private:
  enum class Fault { kNone, kError, kErrorAfter, kNotFound, kCorrupt };
  using Work = std::function<void()>;

  FaultOptions options() const;
  bool Draw(double probability);
  Fault DrawFault(const FaultRates& rates);
  Status InjectedError(std::string_view call) const;
  void CorruptOnce(GetOp& op);
  void SingleCall(const FaultRates& rates, std::string_view name, std::function<void(StatusDone)> call,
                  StatusDone done);
  // Runs `work` on the delay thread where there is one, `late_by` from now where `late`.
  void Complete(bool late, Work work);
  void RunDelayed();
  void StopDelayed();

  const bool delays_;  // completions run on thread_
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  FaultOptions options_;
  std::mt19937_64 random_;
  FaultCounts counts_;
  std::multimap<TimePoint, Work> delayed_;  // by when they are due
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace terrace
