// PoolArena: what of a BufferPool lives until its last buffer is given back: the memory, a control block per
// unit, the map of runs, the accounts, who waits for room, and the claims of allocations that evict a window.
//
//   claim:  OpenClaim -> List (runs side by side) -> [costs] -> Reserve (a window) -> [evictions] -> Finish
//
// Between Reserve and Finish every unit of the window that is free, or becomes free, belongs to the claim, so
// that nobody takes what another one evicted for. What is in brackets happens without the lock.
//
// Threads: every call from every thread; one mutex, never held over a reclaimer, a waiter or the log.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lib/memory/eviction_window.h"
#include "lib/memory/pool_accounts.h"
#include "lib/memory/pool_mapping.h"
#include "lib/memory/reclaimer.h"
#include "lib/memory/run_map.h"
#include "terrace/bytes.h"

namespace terrace {

class PoolArena;

// The control block of the run that starts at its unit. `data`, `region_id`, `release` and `arena` never
// change.
struct PoolRun : BufferControl {
  PoolArena* arena = nullptr;
  std::atomic<BufferUse> use{BufferUse::kContent};
  std::atomic<bool> orphaned{false};
  bool reserved = false;    // by a claim, no buffer in it; guarded by the arena's mutex
  uint32_t generation = 0;  // how often it was handed out; guarded by the arena's mutex
};

class PoolArena {
 public:
  struct Claim {
    // What was listed. controls[i] and costs[i] belong to the i-th evictable candidate.
    std::vector<WindowCandidate> candidates;
    std::vector<const BufferControl*> controls;
    std::vector<uint64_t> costs;
    std::vector<const BufferControl*> victims;  // to be evicted, set by Reserve

    // Gives the costs to the candidates, of which those that may not go become fixed; whether any may go.
    bool TakeCosts();

   private:
    friend class PoolArena;
    bool open = false;
    EvictionWindow window;       // length 0: none reserved
    uint32_t held_units = 0;     // of the window, that nobody else can get
    uint32_t free_units = 0;     // of these, what was free before
    uint64_t refused_takes = 0;  // the arena's, at that time
  };

  PoolArena(PoolMapping mapping, MetricRegistry* metrics);
  // The pool is gone: the arena deletes itself when the last buffer is. No allocation may be running.
  void Abandon();

  // A run of `units` that were charged to `use`, or null when no free run has them.
  PoolRun* Take(uint32_t units, BufferUse use);
  // To be called after something became free for somebody in another way than by a release.
  void WakeWaiters();
  // 0 when as many wait as may.
  uint64_t AddWaiter(std::function<void()> call);
  bool RemoveWaiter(uint64_t id);

  // Null when the bytes are not of this pool.
  PoolRun* RunOf(const BufferRef& buffer) const;
  void Settle(PoolRun& run);
  void MarkOrphan(PoolRun& run);

  // Null when as many are open as may be.
  Claim* OpenClaim();
  // Lists the runs that come after those listed last, so that each gets its turn: some, with room for several
  // windows of `units`, and of one piece only.
  void ListNext(Claim& claim, uint32_t units);
  // Lists all runs of a piece.
  void ListPiece(Claim& claim, uint32_t piece);
  // Claims the window; false, and nothing claimed, when its runs are no longer those that were listed.
  bool Reserve(Claim& claim, const EvictionWindow& window);
  bool IsHeld(const BufferControl* victim) const;
  // The reserved window as a run of `units` when all of it is held. Otherwise null, and what is held is free.
  PoolRun* Finish(Claim& claim, uint32_t units, BufferUse use);
  void CloseClaim(Claim* claim);

  void SetReclaimer(std::shared_ptr<Reclaimer> reclaimer);
  std::shared_ptr<Reclaimer> reclaimer() const;

  PoolAccounts& accounts() { return accounts_; }
  const PoolMapping& mapping() const { return mapping_; }
  uint32_t longest_possible() const { return longest_possible_; }
  uint32_t num_pieces() const { return num_pieces_; }
  uint32_t free_units() const;

 private:
  struct Waiter {
    uint64_t id;
    std::function<void()> call;
  };

  static void Release(BufferControl* control);
  static void Call(std::vector<Waiter>& woken);
  // All below with the mutex held.
  void GiveBack(PoolRun& run, std::vector<Waiter>& woken);
  PoolRun* HandOut(uint32_t start, uint32_t units, BufferUse use);
  Claim* ClaimOver(uint32_t unit);
  WindowCandidate Judge(const RunMap::Run& run);
  // Lists from the run that starts at `unit` until a piece ends or there are as many as told: where it ended.
  uint32_t ListFrom(Claim& claim, uint32_t unit, size_t least_runs, uint64_t least_units);
  bool StillListed(const Claim& claim, const EvictionWindow& window) const;
  void Wake(std::vector<Waiter>& woken);

  const PoolMapping mapping_;
  const uint32_t longest_possible_;
  const uint32_t num_pieces_;
  const std::unique_ptr<PoolRun[]> runs_;  // by unit
  PoolAccounts accounts_;                  // its metrics go with the pool, under the mutex
  std::atomic<uint32_t> num_waiters_{0};   // waiters_.size(), to be read without the mutex

  mutable std::mutex mutex_;  // guards all below, and what PoolRun says
  RunMap map_;
  uint64_t runs_out_ = 0;
  bool abandoned_ = false;
  std::shared_ptr<Reclaimer> reclaimer_;
  std::vector<Waiter> waiters_;
  uint64_t refused_takes_ = 0;
  uint64_t last_waiter_id_ = 0;
  std::array<Claim, 4> claims_;
  uint32_t open_claims_ = 0;
  uint32_t next_listed_ = 0;  // the unit at which ListNext goes on
};

}  // namespace terrace
