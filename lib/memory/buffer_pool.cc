#include "lib/memory/buffer_pool.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/base/status_macros.h"
#include "lib/memory/pool_arena.h"

namespace terrace {
namespace {

// A window is looked for once so much is free: half of what is wanted, but at least this part of the pool.
// Earlier would cost a look at every run for what one more eviction may give; later would leave more of the
// pool empty.
constexpr uint32_t kFreePart = 64;
// Tries per allocation; between two of them twice as many single evictions each time.
constexpr int kMaxWindowTries = 16;
// Looks at some runs before all of them are looked at.
constexpr uint32_t kPartialLists = 2;

class ColdestFirst : public Reclaimer {
 public:
  explicit ColdestFirst(std::function<bool(uint64_t)> reclaim_one) : reclaim_one_(std::move(reclaim_one)) {}
  bool ReclaimOne(uint64_t wanted_bytes) override { return reclaim_one_(wanted_bytes); }
  void Costs(std::span<const BufferControl* const>, std::span<uint64_t> costs) override {
    std::fill(costs.begin(), costs.end(), kNotEvictable);
  }
  bool Evict(const BufferControl*) override { return false; }

 private:
  std::function<bool(uint64_t)> reclaim_one_;
};

}  // namespace

BufferPool::BufferPool(PoolArena* arena) : arena_(arena) {}

BufferPool::~BufferPool() { arena_->Abandon(); }

Result<std::unique_ptr<BufferPool>> BufferPool::Create(const BufferPoolOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(PoolMapping mapping, PoolMapping::Map(options));
  return std::unique_ptr<BufferPool>(new BufferPool(new PoolArena(std::move(mapping), options.metrics)));
}

void BufferPool::SetReclaimer(Reclaimer* reclaimer) {
  arena_->SetReclaimer(std::shared_ptr<Reclaimer>(std::shared_ptr<void>(), reclaimer));
}

void BufferPool::SetReclaimer(std::function<bool(uint64_t)> reclaim_one) {
  if (!reclaim_one) return SetReclaimer(static_cast<Reclaimer*>(nullptr));
  arena_->SetReclaimer(std::make_shared<ColdestFirst>(std::move(reclaim_one)));
}

Result<BufferRef> BufferPool::Allocate(uint64_t bytes, BufferUse use) {
  if (bytes == 0) return InvalidArgumentError("a buffer of 0 bytes");
  PoolAccounts& accounts = arena_->accounts();
  if (bytes > largest_buffer_bytes()) {
    accounts.Failed(PoolFailure::kTooLarge);
    return ResourceExhaustedError("a buffer of " + std::to_string(bytes) + " bytes is more than the pool's " +
                                  std::to_string(largest_buffer_bytes()));
  }
  const auto units = static_cast<uint32_t>((bytes + kPoolUnitBytes - 1) / kPoolUnitBytes);
  if (!accounts.Charge(units, use)) {
    accounts.Failed(PoolFailure::kClassLimit);
    return ResourceExhaustedError(use == BufferUse::kLoad
                                      ? "loads hold all that the stores' reserve leaves them"
                                      : "stores hold all that the loads' reserve leaves them");
  }
  if (PoolRun* run = arena_->Take(units, use)) return BufferRef(run);
  if (PoolRun* run = MakeRoom(units, use)) return BufferRef(run);
  accounts.Discharge(units, use);
  accounts.Failed(PoolFailure::kFull);
  return ResourceExhaustedError("the pool is full with what may not be evicted");
}

PoolRun* BufferPool::MakeRoom(uint32_t units, BufferUse use) {
  const std::shared_ptr<Reclaimer> reclaimer = arena_->reclaimer();
  if (reclaimer == nullptr) return nullptr;
  const auto pool_units = static_cast<uint32_t>(size_bytes() / kPoolUnitBytes);
  const uint32_t enough_free = std::max(units / 2, pool_units / kFreePart);
  // Others may take what is evicted here: more than the whole pool's worth is not one allocation's share.
  const uint64_t max_evictions = 2 * uint64_t{pool_units} + 16;
  uint64_t next_try = 0;
  int tries = 0;
  for (uint64_t evictions = 0; evictions < max_evictions; ++evictions) {
    if (tries < kMaxWindowTries && evictions >= next_try && arena_->free_units() >= enough_free) {
      bool hopeless = false;
      if (PoolRun* run = EvictWindow(*reclaimer, units, use, hopeless)) return run;
      if (hopeless) return arena_->Take(units, use);
      next_try = evictions + (uint64_t{1} << tries++);
    }
    const bool reclaimed = reclaimer->ReclaimOne(uint64_t{units} * kPoolUnitBytes);
    if (PoolRun* run = arena_->Take(units, use)) return run;  // perhaps given back by another thread
    if (!reclaimed) break;
  }
  return nullptr;
}

PoolRun* BufferPool::EvictWindow(Reclaimer& reclaimer, uint32_t units, BufferUse use, bool& hopeless) {
  PoolArena::Claim* claim = arena_->OpenClaim();
  if (claim == nullptr) return nullptr;
  PoolRun* made = nullptr;
  bool any_evictable = false;
  bool any_window = false;
  for (uint32_t i = 0; i < kPartialLists + arena_->num_pieces() && made == nullptr; ++i) {
    if (i < kPartialLists) {
      arena_->ListNext(*claim, units);
    } else {
      arena_->ListPiece(*claim, i - kPartialLists);
    }
    reclaimer.Costs(claim->controls, claim->costs);
    any_evictable |= claim->TakeCosts();
    const std::optional<EvictionWindow> window = CheapestWindow(claim->candidates, units);
    if (!window) continue;
    any_window = true;
    if (!arena_->Reserve(*claim, *window)) continue;
    for (const BufferControl* victim : claim->victims) {
      if (!reclaimer.Evict(victim) && !arena_->IsHeld(victim)) break;
    }
    made = arena_->Finish(*claim, units, use);
  }
  arena_->CloseClaim(claim);
  hopeless = any_evictable && !any_window;
  return made;
}

void BufferPool::Settle(const BufferRef& buffer) {
  if (PoolRun* run = arena_->RunOf(buffer)) arena_->Settle(*run);
}

void BufferPool::MarkOrphan(const BufferRef& buffer) {
  if (PoolRun* run = arena_->RunOf(buffer)) arena_->MarkOrphan(*run);
}

const BufferControl* BufferPool::ControlOf(const BufferRef& buffer) const { return arena_->RunOf(buffer); }

uint64_t BufferPool::NotifyOnRoom(std::function<void()> call) { return arena_->AddWaiter(std::move(call)); }

bool BufferPool::CancelNotify(uint64_t id) { return arena_->RemoveWaiter(id); }

void BufferPool::Nudge() { arena_->WakeWaiters(); }

uint64_t BufferPool::size_bytes() const { return arena_->mapping().size_bytes(); }

uint64_t BufferPool::largest_buffer_bytes() const {
  return uint64_t{arena_->longest_possible()} * kPoolUnitBytes;
}

uint64_t BufferPool::used_bytes() const { return arena_->accounts().used_units() * kPoolUnitBytes; }

uint64_t BufferPool::class_bytes(BufferUse use) const {
  return arena_->accounts().charged_units(use) * kPoolUnitBytes;
}

uint64_t BufferPool::orphaned_bytes() const { return arena_->accounts().orphaned_units() * kPoolUnitBytes; }

std::vector<MemoryRegion> BufferPool::regions() const {
  std::vector<MemoryRegion> regions;
  for (uint64_t offset = 0; offset < size_bytes(); offset += kPoolPieceBytes) {
    regions.push_back(
        {.id = static_cast<uint32_t>(regions.size()),
         .bytes = {arena_->mapping().base() + offset, std::min(kPoolPieceBytes, size_bytes() - offset)}});
  }
  return regions;
}

std::optional<SharedPool> BufferPool::shared() const {
  const PoolMapping& mapping = arena_->mapping();
  if (!mapping.file().is_open()) return std::nullopt;
  return SharedPool{.pool_fd = mapping.file().fd(),
                    .pool_bytes = mapping.file().size_bytes(),
                    .generations_fd = mapping.generations().fd(),
                    .generations_bytes = mapping.generations().size_bytes()};
}

std::optional<SharedPlace> BufferPool::Locate(const BufferRef& buffer) const {
  const PoolMapping& mapping = arena_->mapping();
  if (!mapping.file().is_open() || arena_->RunOf(buffer) == nullptr) return std::nullopt;
  const auto run_offset = static_cast<uint64_t>(buffer.run().data() - mapping.base());
  const auto unit = static_cast<uint32_t>(run_offset / kPoolUnitBytes);
  return SharedPlace{.frame_offset = run_offset + kTierPageBytes,
                     .generation = mapping.GenerationOf(unit).load(std::memory_order_acquire)};
}

MemoryRegion BufferPool::region() const {
  return {.id = 0, .bytes = {arena_->mapping().base(), size_bytes()}};
}

}  // namespace terrace
