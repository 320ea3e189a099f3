// SimulationRun: one seeded life history of a tier on a simulated disk - random operations with several in
// flight, faults, crashes, power losses also in the middle of opening and closing - held against a
// SimulationModel. Everything follows from the seed but for when RocksDB's own threads run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/nvme/nvme_core.h"
#include "backends/nvme/tests/simulated_disk.h"
#include "backends/nvme/tests/simulation_model.h"

namespace terrace {

// How many runs went through what: a simulation that never gets somewhere proves nothing about it.
struct SimulationCounts {
  uint64_t lives = 0;
  uint64_t power_losses = 0;
  uint64_t crashes = 0;
  uint64_t closes = 0;
  uint64_t losses_while_opening = 0;
  uint64_t losses_while_closing = 0;
  uint64_t manifests_removed = 0;
  uint64_t puts = 0;
  uint64_t gets = 0;
  uint64_t erases = 0;
  uint64_t clears = 0;
  uint64_t flushes = 0;
  uint64_t recovered = 0;  // objects found by an open
  void Add(const SimulationCounts& other);
  std::string ToString() const;
};

struct SimulationSettings {
  uint64_t seed = 0;
  OrderSwitches switches;
  std::optional<Durability> durability;  // else the seed's
  bool has_faults = true;
  bool removes_manifest = true;
};

class SimulationRun {
 public:
  explicit SimulationRun(SimulationSettings settings);
  ~SimulationRun();
  // What is wrong, or an empty string.
  std::string Run();
  const SimulationCounts& counts() const { return counts_; }
  // What happened, one line each.
  const std::vector<std::string>& history() const { return history_; }

 private:
  class SteppedClock : public Clock {
   public:
    TimePoint Now() override { return now_; }
    WallTime WallNow() override { return WallTime(std::chrono::seconds(1'800'000'000)); }
    void Advance() { now_ += std::chrono::milliseconds(1); }

   private:
    TimePoint now_{std::chrono::hours(1)};
  };

  uint64_t Draw(uint64_t n) { return DrawOf(settings_.seed, 0xd1ce, draws_++) % n; }
  bool Chance(uint64_t in_100) { return Draw(100) < in_100; }
  void Fail(const std::string& what);
  // Of an answer.
  void Heard(const Status& status);
  void Note(const std::string& what) { history_.push_back(what); }
  bool IsOver() const { return !failure_.empty(); }

  void DrawOptions();
  void SetFaults();
  // Opens, through losses that come meanwhile, and checks what is there.
  void OpenAndCheck();
  bool TryOpen();
  void CheckRecovered();
  void CheckFigures(const std::string& when);
  void OneLife();
  void StartOperation();
  void StartPut(size_t slot);
  void StartGet(size_t slot);
  void StartRangeGet(size_t slot);
  void StartErase(size_t slot);
  void StartClear();
  void StartFlush();
  void Step();
  // Until everything is answered or the world is frozen.
  void Drain();
  void CloseCleanly();
  // The world is frozen, or becomes it.
  void EndByLoss();
  void Audit();
  void BetweenLives();
  void RemoveManifest();

  // The answer of a request: nothing, if it comes from a life that is over.
  template <typename Answer>
  std::function<void(std::span<const Answer>)> Answered(std::function<void(const Answer&)> use) {
    ++open_requests_;
    return [this, life = life_, use = std::move(use)](std::span<const Answer> answers) {
      if (life != life_ || world_->frozen()) return;
      --open_requests_;
      use(answers[0]);
    };
  }

  const SimulationSettings settings_;
  uint64_t draws_ = 0;
  std::string failure_;
  std::vector<std::string> history_;
  SimulationCounts counts_;
  NvmeOptions options_;
  FaultRates tier_faults_;
  FaultRates manifest_faults_;
  SteppedClock clock_;
  std::shared_ptr<SimulatedWorld> world_;
  std::optional<SimulationModel> model_;
  std::unique_ptr<NvmeCore> core_;
  uint64_t life_ = 0;
  size_t open_requests_ = 0;
  size_t operations_left_ = 0;
  bool nothing_promised_ = false;
};

}  // namespace terrace
