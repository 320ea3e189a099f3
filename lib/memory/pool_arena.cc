#include "lib/memory/pool_arena.h"

#include <algorithm>
#include <utility>

#include "lib/base/check.h"

namespace terrace {
namespace {

constexpr auto kPieceUnits = static_cast<uint32_t>(kPoolPieceBytes / kPoolUnitBytes);
constexpr size_t kMaxWaiters = 4096;
// Runs of up to this part of a piece (2 MiB of 1 GiB) are short: they are kept together, apart from long
// ones.
constexpr uint32_t kShortPart = 512;
// ListNext: enough to choose from, and not more costs to ask for than an allocation is worth.
constexpr size_t kListedRuns = 64;
constexpr uint32_t kListedWindows = 8;

uint32_t UnitsOf(const PoolMapping& mapping) {
  return static_cast<uint32_t>(mapping.size_bytes() / kPoolUnitBytes);
}

}  // namespace

PoolArena::PoolArena(PoolMapping mapping, MetricRegistry* metrics)
    : mapping_(std::move(mapping)),
      longest_possible_(std::min(UnitsOf(mapping_), kPieceUnits)),
      num_pieces_((UnitsOf(mapping_) + kPieceUnits - 1) / kPieceUnits),
      runs_(std::make_unique<PoolRun[]>(UnitsOf(mapping_))),
      accounts_(UnitsOf(mapping_), metrics),
      map_(UnitsOf(mapping_), kPieceUnits, std::max(longest_possible_ / kShortPart, 1U)) {
  for (uint32_t unit = 0; unit < map_.units(); ++unit) {
    PoolRun& run = runs_[unit];
    run.data = mapping_.base() + uint64_t{unit} * kPoolUnitBytes;
    run.region_id = unit / kPieceUnits;
    run.release = &PoolArena::Release;
    run.arena = this;
  }
  // Address space; pages come when a claim lists that many runs.
  for (Claim& claim : claims_) {
    claim.candidates.reserve(longest_possible_);
    claim.controls.reserve(longest_possible_);
    claim.costs.reserve(longest_possible_);
    claim.victims.reserve(longest_possible_);
  }
}

void PoolArena::Abandon() {
  bool last = false;
  std::vector<Waiter> dropped;
  {
    std::lock_guard lock(mutex_);
    TERRACE_CHECK(open_claims_ == 0) << "an allocation runs while its pool is destroyed";
    abandoned_ = true;
    reclaimer_ = nullptr;
    dropped.swap(waiters_);
    num_waiters_ = 0;
    accounts_.DropMetrics();
    last = runs_out_ == 0;
  }
  if (last) delete this;
}

PoolRun* PoolArena::HandOut(uint32_t start, uint32_t units, BufferUse use) {
  PoolRun& run = runs_[start];
  run.references.store(1, std::memory_order_relaxed);
  run.size_bytes = uint64_t{units} * kPoolUnitBytes;
  run.use.store(use, std::memory_order_relaxed);
  ++run.generation;
  ++runs_out_;
  accounts_.HandedOut(units);
  return &run;
}

PoolRun* PoolArena::Take(uint32_t units, BufferUse use) {
  std::lock_guard lock(mutex_);
  const std::optional<uint32_t> start = map_.Take(units);
  if (!start) ++refused_takes_;
  return start ? HandOut(*start, units, use) : nullptr;
}

void PoolArena::Release(BufferControl* control) {
  auto* run = static_cast<PoolRun*>(control);
  PoolArena* arena = run->arena;
  std::vector<Waiter> woken;
  bool last = false;
  {
    std::lock_guard lock(arena->mutex_);
    arena->GiveBack(*run, woken);
    last = arena->abandoned_ && arena->runs_out_ == 0;
  }
  if (last) delete arena;
  Call(woken);
}

void PoolArena::GiveBack(PoolRun& run, std::vector<Waiter>& woken) {
  const auto start = static_cast<uint32_t>(&run - runs_.get());
  const uint32_t units = map_.At(start).length;
  TERRACE_CHECK(runs_out_ > 0 && !run.reserved) << "unit " << start;
  --runs_out_;
  accounts_.Discharge(units, run.use.exchange(BufferUse::kContent));
  if (run.orphaned.exchange(false, std::memory_order_relaxed)) accounts_.Orphaned(-int64_t{units});
  accounts_.GivenBack(units);
  // Before anybody else has the memory: who reads it without holding the buffer sees that it is gone.
  if (mapping_.generations().is_open()) mapping_.GenerationOf(start).fetch_add(1, std::memory_order_acq_rel);
  if (Claim* claim = ClaimOver(start)) {
    run.reserved = true;
    claim->held_units += units;
    return;
  }
  map_.Give(start);
  Wake(woken);
}

void PoolArena::Wake(std::vector<Waiter>& woken) {
  if (waiters_.empty()) return;
  woken.swap(waiters_);
  num_waiters_ = 0;
}

void PoolArena::Call(std::vector<Waiter>& woken) {
  for (Waiter& waiter : woken) waiter.call();
}

void PoolArena::WakeWaiters() {
  if (num_waiters_.load() == 0) return;
  std::vector<Waiter> woken;
  {
    std::lock_guard lock(mutex_);
    Wake(woken);
  }
  Call(woken);
}

uint64_t PoolArena::AddWaiter(std::function<void()> call) {
  std::lock_guard lock(mutex_);
  if (waiters_.size() >= kMaxWaiters) return 0;
  waiters_.push_back({++last_waiter_id_, std::move(call)});
  ++num_waiters_;
  return last_waiter_id_;
}

bool PoolArena::RemoveWaiter(uint64_t id) {
  std::function<void()> dropped;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(waiters_.begin(), waiters_.end(), [&](const Waiter& waiter) { return waiter.id == id; });
  if (found == waiters_.end()) return false;
  dropped = std::move(found->call);
  waiters_.erase(found);
  --num_waiters_;
  return true;
}

PoolRun* PoolArena::RunOf(const BufferRef& buffer) const {
  if (!buffer || mapping_.size_bytes() == 0) return nullptr;
  const auto base = reinterpret_cast<uintptr_t>(mapping_.base());
  const auto address = reinterpret_cast<uintptr_t>(buffer.run().data());
  if (address < base || address >= base + mapping_.size_bytes()) return nullptr;
  return &runs_[(address - base) / kPoolUnitBytes];
}

void PoolArena::Settle(PoolRun& run) {
  const BufferUse before = run.use.exchange(BufferUse::kContent);
  if (before == BufferUse::kContent) return;
  accounts_.Discharge(run.size_bytes / kPoolUnitBytes, before);
  WakeWaiters();
}

void PoolArena::MarkOrphan(PoolRun& run) {
  if (run.orphaned.exchange(true)) return;
  const uint64_t units = run.size_bytes / kPoolUnitBytes;
  accounts_.Orphaned(static_cast<int64_t>(units));
  // Whoever asked for it has given it up; its class may go on with what is left.
  const BufferUse before = run.use.exchange(BufferUse::kContent);
  if (before == BufferUse::kContent) return;
  accounts_.Discharge(units, before);
  WakeWaiters();
}

PoolArena::Claim* PoolArena::ClaimOver(uint32_t unit) {
  if (open_claims_ == 0) return nullptr;
  for (Claim& claim : claims_) {
    if (unit - claim.window.start < claim.window.length) return &claim;  // unsigned: below wraps to large
  }
  return nullptr;
}

PoolArena::Claim* PoolArena::OpenClaim() {
  std::lock_guard lock(mutex_);
  for (Claim& claim : claims_) {
    if (claim.open) continue;
    claim.open = true;
    ++open_claims_;
    return &claim;
  }
  return nullptr;
}

void PoolArena::CloseClaim(Claim* claim) {
  std::lock_guard lock(mutex_);
  TERRACE_CHECK(claim->open && claim->window.length == 0);
  claim->open = false;
  --open_claims_;
}

WindowCandidate PoolArena::Judge(const RunMap::Run& run) {
  using Kind = WindowCandidate::Kind;
  WindowCandidate candidate{.start = run.start, .length = run.length};
  if (run.free) {
    candidate.kind = Kind::kFree;
    return candidate;
  }
  const PoolRun& control = runs_[run.start];
  candidate.generation = control.generation;
  const bool content = control.use.load(std::memory_order_relaxed) == BufferUse::kContent &&
                       !control.orphaned.load(std::memory_order_relaxed);
  if (content && !control.reserved && ClaimOver(run.start) == nullptr) candidate.kind = Kind::kEvictable;
  return candidate;
}

uint32_t PoolArena::ListFrom(Claim& claim, uint32_t unit, size_t least_runs, uint64_t least_units) {
  claim.candidates.clear();
  claim.controls.clear();
  const uint32_t begin = unit;
  const uint64_t end = std::min<uint64_t>((uint64_t{unit} / kPieceUnits + 1) * kPieceUnits, map_.units());
  while (unit < end && (claim.candidates.size() < least_runs || unit - begin < least_units)) {
    claim.candidates.push_back(Judge(map_.At(unit)));
    if (claim.candidates.back().kind == WindowCandidate::Kind::kEvictable) {
      claim.controls.push_back(&runs_[unit]);
    }
    unit += claim.candidates.back().length;
  }
  claim.costs.assign(claim.controls.size(), Reclaimer::kNotEvictable);
  return unit;
}

void PoolArena::ListNext(Claim& claim, uint32_t units) {
  std::lock_guard lock(mutex_);
  uint32_t unit = next_listed_;
  while (!map_.StartsRun(unit)) --unit;  // not past the piece's first unit, which starts one
  unit = ListFrom(claim, unit, kListedRuns, uint64_t{kListedWindows} * units);
  next_listed_ = unit < map_.units() ? unit : 0;
}

void PoolArena::ListPiece(Claim& claim, uint32_t piece) {
  std::lock_guard lock(mutex_);
  ListFrom(claim, piece * kPieceUnits, SIZE_MAX, UINT64_MAX);
}

bool PoolArena::Claim::TakeCosts() {
  bool any = false;
  auto cost = costs.begin();
  for (WindowCandidate& candidate : candidates) {
    if (candidate.kind != WindowCandidate::Kind::kEvictable) continue;
    candidate.cost = *cost++;
    if (candidate.cost == Reclaimer::kNotEvictable) {
      candidate.kind = WindowCandidate::Kind::kFixed;
    } else {
      any = true;
    }
  }
  return any;
}

bool PoolArena::StillListed(const Claim& claim, const EvictionWindow& window) const {
  auto listed = claim.candidates.begin();
  const uint32_t end = window.start + window.length;
  for (uint32_t unit = window.start; unit < end;) {
    if (!map_.StartsRun(unit)) return false;
    const RunMap::Run run = map_.At(unit);
    if (run.length > end - unit) return false;
    if (!run.free) {
      while (listed != claim.candidates.end() && listed->start < unit) ++listed;
      const bool same = listed != claim.candidates.end() && listed->start == unit &&
                        listed->kind == WindowCandidate::Kind::kEvictable &&
                        listed->generation == runs_[unit].generation && !runs_[unit].reserved;
      if (!same) return false;
    }
    unit += run.length;
  }
  return true;
}

bool PoolArena::Reserve(Claim& claim, const EvictionWindow& window) {
  claim.victims.clear();
  std::lock_guard lock(mutex_);
  for (const Claim& other : claims_) {
    if (window.start < other.window.start + other.window.length &&
        other.window.start < window.start + window.length) {
      return false;
    }
  }
  if (!StillListed(claim, window)) return false;
  claim.window = window;
  claim.held_units = 0;
  for (uint32_t unit = window.start; unit < window.start + window.length;) {
    const RunMap::Run run = map_.At(unit);
    if (run.free) {
      map_.Withdraw(unit);
      runs_[unit].reserved = true;
      claim.held_units += run.length;
    } else {
      claim.victims.push_back(&runs_[unit]);
    }
    unit += run.length;
  }
  claim.free_units = claim.held_units;
  claim.refused_takes = refused_takes_;
  return true;
}

bool PoolArena::IsHeld(const BufferControl* victim) const {
  std::lock_guard lock(mutex_);
  return static_cast<const PoolRun*>(victim)->reserved;
}

PoolRun* PoolArena::Finish(Claim& claim, uint32_t units, BufferUse use) {
  std::vector<Waiter> woken;
  PoolRun* made = nullptr;
  {
    std::lock_guard lock(mutex_);
    const EvictionWindow window = std::exchange(claim.window, {});
    const bool whole = claim.held_units == window.length;
    for (uint32_t unit = window.start; unit < window.start + window.length;) {
      const uint32_t length = map_.At(unit).length;
      if (std::exchange(runs_[unit].reserved, false) && !whole) map_.Give(unit);
      unit += length;
    }
    if (!whole) {
      // Where nothing was won, only those are told whom the claim itself refused: one that waits for room
      // would otherwise wake itself with each attempt, for ever.
      const bool won = claim.held_units > claim.free_units;
      if (won || refused_takes_ != claim.refused_takes) Wake(woken);
    } else {
      map_.Merge(window.start, window.length);
      uint32_t start = window.start;
      if (const uint32_t rest = window.length - units; rest > 0) {
        const bool low = map_.IsShort(units);
        map_.Split(window.start, low ? units : rest);
        if (!low) start += rest;
        map_.Give(low ? window.start + units : window.start);
      }
      accounts_.WindowEvicted();
      made = HandOut(start, units, use);
    }
  }
  Call(woken);
  return made;
}

void PoolArena::SetReclaimer(std::shared_ptr<Reclaimer> reclaimer) {
  std::lock_guard lock(mutex_);
  reclaimer_.swap(reclaimer);
}

std::shared_ptr<Reclaimer> PoolArena::reclaimer() const {
  std::lock_guard lock(mutex_);
  return reclaimer_;
}

uint32_t PoolArena::free_units() const {
  std::lock_guard lock(mutex_);
  return map_.free_units();
}

}  // namespace terrace
