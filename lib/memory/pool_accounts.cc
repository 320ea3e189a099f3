#include "lib/memory/pool_accounts.h"

#include <algorithm>

#include "lib/memory/buffer_pool_options.h"

namespace terrace {
namespace {

int64_t BytesOf(int64_t units) { return units * static_cast<int64_t>(kPoolUnitBytes); }

void AddUnits(Gauge* gauge, int64_t units) {
  if (gauge != nullptr) gauge->Add(BytesOf(units));
}

}  // namespace

PoolAccounts::PoolAccounts(uint64_t units, MetricRegistry* metrics) : units_(units) {
  if (metrics == nullptr) return;
  const auto failures = [&](const char* reason) {
    return metrics->GetCounter("terrace_pool_failures_total", "Buffers that could not be had",
                               {{"reason", reason}});
  };
  metrics_ = {
      .size = metrics->GetGauge("terrace_pool_size_bytes", "Size of the host pool"),
      .used = metrics->GetGauge("terrace_pool_used_bytes", "Handed out and not yet given back"),
      .orphaned =
          metrics->GetGauge("terrace_pool_orphaned_bytes", "Given up, but a device may still touch them"),
      .charged = {nullptr,
                  metrics->GetGauge("terrace_pool_load_bytes", "Held by loads, or being made room for"),
                  metrics->GetGauge("terrace_pool_store_bytes", "Held by stores, or being made room for")},
      .allocations = metrics->GetCounter("terrace_pool_allocations_total", "Buffers handed out"),
      .window_evictions = metrics->GetCounter("terrace_pool_window_evictions_total",
                                              "Runs made by evicting what lies side by side"),
      .failures = {failures("too_large"), failures("class_limit"), failures("full")},
  };
  AddUnits(metrics_.size, static_cast<int64_t>(units));
}

uint64_t PoolAccounts::LimitUnits() const {
  const uint64_t largest = largest_.load(std::memory_order_relaxed);
  if (units_ < 2 * largest) return units_;  // loads and stores alternate
  return units_ - std::max(units_ / 4, largest);
}

bool PoolAccounts::Charge(uint64_t units, BufferUse use) {
  uint64_t largest = largest_.load(std::memory_order_relaxed);
  while (largest < units && !largest_.compare_exchange_weak(largest, units, std::memory_order_relaxed)) {
  }
  if (use == BufferUse::kContent) return true;
  std::atomic<uint64_t>& charged = charged_[static_cast<int>(use)];
  const uint64_t limit = LimitUnits();
  uint64_t before = charged.load();
  do {
    if (before + units > limit) return false;
  } while (!charged.compare_exchange_weak(before, before + units));
  AddUnits(metrics_.charged[static_cast<int>(use)], static_cast<int64_t>(units));
  return true;
}

void PoolAccounts::Discharge(uint64_t units, BufferUse use) {
  if (use == BufferUse::kContent) return;
  charged_[static_cast<int>(use)].fetch_sub(units);
  AddUnits(metrics_.charged[static_cast<int>(use)], -static_cast<int64_t>(units));
}

void PoolAccounts::HandedOut(uint64_t units) {
  used_.fetch_add(units, std::memory_order_relaxed);
  AddUnits(metrics_.used, static_cast<int64_t>(units));
  if (metrics_.allocations != nullptr) metrics_.allocations->Add();
}

void PoolAccounts::GivenBack(uint64_t units) {
  used_.fetch_sub(units, std::memory_order_relaxed);
  AddUnits(metrics_.used, -static_cast<int64_t>(units));
}

void PoolAccounts::Orphaned(int64_t units) {
  orphaned_.fetch_add(static_cast<uint64_t>(units), std::memory_order_relaxed);
  AddUnits(metrics_.orphaned, units);
}

void PoolAccounts::Failed(PoolFailure reason) {
  if (metrics_.allocations != nullptr) metrics_.failures[static_cast<int>(reason)]->Add();
}

void PoolAccounts::WindowEvicted() {
  if (metrics_.window_evictions != nullptr) metrics_.window_evictions->Add();
}

void PoolAccounts::DropMetrics() {
  AddUnits(metrics_.size, -static_cast<int64_t>(units_));
  AddUnits(metrics_.used, -static_cast<int64_t>(used_units()));
  AddUnits(metrics_.orphaned, -static_cast<int64_t>(orphaned_units()));
  for (int use = 0; use < 3; ++use)
    AddUnits(metrics_.charged[use], -static_cast<int64_t>(charged_[use].load()));
  metrics_ = {};
}

}  // namespace terrace
