#include "lib/storage/manager_core.h"

#include <unistd.h>

#include <algorithm>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "lib/device/device_set.h"
#include "lib/storage/guarded_callbacks.h"
#include "lib/storage/load_registry.h"
#include "lib/storage/store_run.h"

namespace terrace {
namespace {

// Where the pool is best: where the option says, else near the first device that says where it is.
int NodeOfPool(const StorageOptions& options) {
  if (options.numa_node != -1) return options.numa_node;
  for (const DeviceOptions& device : options.devices) {
    if (device.device->properties().numa_node >= 0) return device.device->properties().numa_node;
  }
  return -1;
}

}  // namespace

Status StorageOptions::Validate() const {
  const auto bad = [](std::string field, std::string value, std::string allowed) {
    return InvalidArgumentError("StorageOptions." + field + " is " + value + "; allowed: " + allowed);
  };
  if (pool_bytes > (uint64_t{1} << 46)) return bad("pool_bytes", std::to_string(pool_bytes), "0..64 TiB");
  if (lease_time <= Duration::zero()) return bad("lease_time", "not positive", "> 0");
  if (!(lease_budget >= 0.0 && lease_budget <= 1.0))
    return bad("lease_budget", std::to_string(lease_budget), "0..1");
  if (!(pin_budget >= 0.0 && pin_budget <= 1.0)) return bad("pin_budget", std::to_string(pin_budget), "0..1");
  if (numa_node < -1 || numa_node > 1023) return bad("numa_node", std::to_string(numa_node), "-1..1023");
  if (io_deadline <= Duration::zero()) return bad("io_deadline", "not positive", "> 0");
  if (Status status = ValidateDevices(devices); !status.ok()) return status.WithContext("StorageOptions");
  if (!executor) return threads.Validate();
  return OkStatus();
}

ManagerCore::ManagerCore(StorageOptions options) : options_(std::move(options)), owner_pid_(getpid()) {}

ManagerCore::~ManagerCore() = default;

Result<std::shared_ptr<ManagerCore>> ManagerCore::Open(StorageOptions options, std::vector<Tier> tiers) {
  TERRACE_RETURN_IF_ERROR(options.Validate());
  auto core = std::shared_ptr<ManagerCore>(new ManagerCore(std::move(options)));
  const StorageOptions& set = core->options_;
  core->clock_ = set.clock != nullptr ? set.clock : Clock::Real();
  core->metrics_ = set.metrics ? set.metrics : std::make_shared<MetricRegistry>();
  core->callback_exceptions_ =
      core->metrics_->GetCounter("terrace_manager_callback_exceptions_total",
                                 "Exceptions that left a callback or executor of the caller");
  core->log_ =
      set.log ? GuardLogSink(set.log, core->metrics_, core->callback_exceptions_) : MakeStderrLogSink();
  TERRACE_ASSIGN_OR_RETURN(core->pool_, BufferPool::Create({.size_bytes = set.pool_bytes,
                                                            .huge_pages = set.huge_pages,
                                                            .share = set.share_pool,
                                                            .numa_node = NodeOfPool(set),
                                                            .log = core->log_.get(),
                                                            .metrics = core->metrics_.get()}));
  TERRACE_RETURN_IF_ERROR(core->OpenDevices());  // measures on the pool's memory: before anything lies there
  MetricRegistry& metrics = *core->metrics_;
  core->lookups_ = metrics.GetCounter("terrace_manager_lookups_total", "Lookups");
  core->hashed_tokens_ = metrics.GetCounter("terrace_index_hashed_tokens_total",
                                            "Tokens hashed for requests; each once for one request id");
  core->lookup_tokens_ = metrics.GetCounter("terrace_manager_lookup_tokens_total", "Tokens asked for");
  core->matched_tokens_ = metrics.GetCounter("terrace_manager_matched_tokens_total", "Tokens found");
  core->stored_ = metrics.GetCounter("terrace_manager_stored_objects_total", "Objects published by Commit");
  core->superseded_ =
      metrics.GetCounter("terrace_manager_superseded_objects_total", "Replaced by a longer chunk");
  core->unreachable_ =
      metrics.GetCounter("terrace_manager_unreachable_objects_total", "Dropped with their parent");
  core->budget_hints_ = metrics.GetCounter("terrace_manager_lease_hints_total", "Leases above the budget");
  core->orphaned_records_ =
      metrics.GetCounter("terrace_manager_orphaned_records_total", "Found at open without what they hang on");
  const auto lookup_outcome = [&](const char* outcome) {
    return metrics.GetCounter("terrace_manager_lookup_outcomes_total", "Lookups by what was found",
                              {{"outcome", outcome}});
  };
  core->lookup_hits_ = lookup_outcome("hit");
  core->lookup_partial_hits_ = lookup_outcome("partial");
  core->lookup_misses_ = lookup_outcome("miss");
  core->prefetched_bytes_ = metrics.GetCounter("terrace_manager_prefetched_bytes_total",
                                               "Frame bytes that prefetches started to read");
  core->roots_.SetRunsStandAlone(set.runs_stand_alone);
  core->traces_.Set(set.traces, core->callback_exceptions_);
  core->index_ = std::make_unique<ChunkIndex>(ChunkIndexOptions{
      .content_budget_bytes = set.index_bytes,
      .content_drops = metrics.GetCounter("terrace_index_content_drops_total",
                                          "Chunks that lost their tokens to the index budget")});
  core->leases_ = std::make_unique<LeaseTable>(*core->index_);
  TERRACE_RETURN_IF_ERROR(core->AttachTiers(std::move(tiers)));
  core->SetBudgets();
  TERRACE_RETURN_IF_ERROR(core->RebuildIndex());
  if (set.executor) {
    core->executor_ = set.executor;
  } else {
    TERRACE_ASSIGN_OR_RETURN(core->executor_, MakeThreadPool(set.threads));
  }
  core->strand_ = std::make_shared<Strand>(core->executor_, core->callback_exceptions_);
  core->loads_ = std::make_shared<LoadRegistry>(core->executor_, metrics);
  core->copy_strand_ = std::make_shared<Strand>(core->executor_, core->callback_exceptions_);
  core->stores_ = std::make_shared<StoreQueue>(std::min(kCopyWindowBytes, core->pool_->size_bytes() / 4),
                                               core->callback_exceptions_);
  core->reclaimer_ = std::make_unique<HostReclaimer>(*core);
  core->pool_->SetReclaimer(core->reclaimer_.get());
  core->events_ = set.events;
  core->StartContents();
  return core;
}

void ManagerCore::SetBudgets() {
  uint64_t lower_capacity = 0;
  for (size_t t = HasHostTier() ? 1 : 0; t < tiers_.size(); ++t)
    lower_capacity += tiers_[t].backend->capacity_bytes();
  const auto share = [](double part, uint64_t bytes) {
    return static_cast<uint64_t>(part * static_cast<double>(bytes));
  };
  leases_->SetBudgets(share(options_.lease_budget, pool_->size_bytes()),
                      share(options_.lease_budget, lower_capacity));
  pins_.SetBudgets(share(options_.pin_budget, pool_->size_bytes()),
                   share(options_.pin_budget, lower_capacity));
}

Status ManagerCore::AttachTiers(std::vector<Tier> tiers) {
  if (tiers.size() > kMaxTiers) return InvalidArgumentError("more than 8 tiers");
  for (size_t i = 0; i < tiers.size(); ++i) {
    if (!tiers[i].backend) return InvalidArgumentError("tier " + std::to_string(i) + " has no backend");
    TierState tier;
    tier.backend = std::move(tiers[i].backend);
    tier.policy =
        tiers[i].policy ? GuardPolicy(std::move(tiers[i].policy), callback_exceptions_) : MakeLruPolicy();
    tier.capabilities = tier.backend->capabilities();
    tier.name = std::string(tier.backend->name());
    tier.answers_itself = tier.capabilities.supports_match;
    if (tier.capabilities.supports_borrow && (i != 0 || !tier.capabilities.completes_inline)) {
      return InvalidArgumentError("tier '" + tier.name +
                                  "' hands out buffers; it must be the first tier and complete inline");
    }
    const MetricLabels labels = {{"tier", tier.name}};
    tier.hits = metrics_->GetCounter("terrace_tier_hits_total", "Objects loaded", labels);
    tier.evictions = metrics_->GetCounter("terrace_tier_evictions_total", "Objects evicted", labels);
    tier.corrupt =
        metrics_->GetCounter("terrace_tier_corrupt_objects_total", "Found wrong and dropped", labels);
    tier.load_failures =
        metrics_->GetCounter("terrace_tier_load_failures_total", "Reads that failed", labels);
    tier.write_failures =
        metrics_->GetCounter("terrace_tier_write_failures_total", "Writes that failed", labels);
    BackendContext context{.clock = clock_, .metrics = metrics_.get(), .log = log_.get(), .regions = {}};
    context.regions = pool_->regions();
    if (Status status = tier.backend->Attach(context); !status.ok())
      return status.WithContext("tier '" + tier.name + "'");
    tiers_.push_back(std::move(tier));
  }
  return OkStatus();
}

bool ManagerCore::IsForkedChild() const { return getpid() != owner_pid_; }

Status ManagerCore::CheckNotForked() const {
  if (!IsForkedChild()) return OkStatus();
  return FailedPreconditionError("the process was forked after Open; open a manager of its own");
}

TimePoint ManagerCore::DeadlineIn(Duration time) const {
  const TimePoint now = clock_->Now();
  return time < kNoDeadline - now ? now + time : kNoDeadline;
}

Status ManagerCore::CheckOpen() const {
  if (refuses_.load(std::memory_order_acquire)) return FailedPreconditionError("the manager is closed");
  return OkStatus();
}

Counter* ManagerCore::DropCounter(std::string_view reason) {
  return metrics_->GetCounter("terrace_manager_dropped_objects_total",
                              "Objects that were to be kept and are not", {{"reason", std::string(reason)}});
}

void ManagerCore::KeepRoot(const RootRecord& record) {
  for (TierState& tier : tiers_) {
    if (!tier.capabilities.is_durable) continue;
    if (Status status = tier.backend->PutRoot(record); !status.ok()) {
      LogWarning("a root was not kept in tier '" + tier.name + "': " + status.ToString());
    }
  }
}

Result<ChunkKey> ManagerCore::Root(const KvSpec& spec, std::span<const Adapter> adapters,
                                   std::string_view salt) {
  TERRACE_RETURN_IF_ERROR(CheckNotForked());
  TERRACE_ASSIGN_OR_RETURN(const RootRecord record, ComputeRoot(spec, adapters, salt));
  uint64_t ticket = 0;
  {
    std::lock_guard lock(mutex_);
    TERRACE_RETURN_IF_ERROR(CheckOpen());
    if (!roots_.Put(spec, record).is_new) return record.root;
    ticket = next_id_++;
    tickets_.insert(ticket);
  }
  PostKeepRoot(record, ticket);
  return record.root;
}

void ManagerCore::PostKeepRoot(const RootRecord& record, uint64_t ticket) {
  strand_->Post([core = shared_from_this(), record,
                 end = std::make_shared<TicketEnd>(shared_from_this(), ticket)] { core->KeepRoot(record); });
}

ManagerStats ManagerCore::Stats() {
  ManagerStats stats;
  if (IsForkedChild()) return stats;
  ReapLeases();
  std::lock_guard lock(mutex_);
  for (TierState& tier : tiers_) {
    stats.tiers.push_back({.name = tier.name,
                           .objects = tier.objects,
                           .used_bytes = tier.backend->used_bytes(),
                           .capacity_bytes = tier.backend->capacity_bytes(),
                           .hits = tier.hits->value(),
                           .evictions = tier.evictions->value()});
    stats.corrupt_objects += tier.corrupt->value();
    stats.pending_writes += tier.writes.size();
  }
  stats.pool_bytes = pool_->size_bytes();
  stats.pool_used_bytes = pool_->used_bytes();
  stats.index_entries = index_->size();
  stats.lookups = lookups_->value();
  stats.stored_objects = stored_->value();
  for (const char* reason : {"pool_full", "abandoned", "erased", "parent_lost", "no_tier", "write_failed"}) {
    stats.dropped_objects += DropCounter(reason)->value();
  }
  stats.active_leases = leases_->num_active();
  stats.pinned_names = pins_.size();
  stats.index_content_bytes = index_->content_bytes();
  return stats;
}

}  // namespace terrace
