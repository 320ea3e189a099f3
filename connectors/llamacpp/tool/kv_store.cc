#include "connectors/llamacpp/tool/kv_store.h"

#include <chrono>
#include <cstdio>

#include "connectors/llamacpp/tool/progress_line.h"
#include "terrace/metrics.h"

namespace terrace::llamacpp {
namespace {

// The help is the manager's: whoever asks first gives it.
uint64_t RemoteCounter(const KvStore& store, const char* name, const char* help) {
  if (store.manager == nullptr || store.remote.empty()) return 0;
  return store.manager->metrics().GetCounter(name, help, {{"tier", kRemoteTier}})->value();
}

}  // namespace

std::pair<KvStore, int> OpenStore(const StoreOpener& opener, const CacheOptions& options) {
  KvStore store = opener(options);
  if (store.refused.ok()) return {std::move(store), 0};
  const std::string reason(store.refused.message());
  if (options.require) {
    std::fprintf(stderr, "terrace-llama: %s (--require-cache: not going on without)\n", reason.c_str());
    return {std::move(store), kExitUsage};
  }
  std::fprintf(stderr, "terrace-llama: going on without that tier: %s\n", reason.c_str());
  return {std::move(store), 0};
}

void CloseStore(KvStore* store) {
  if (store->manager == nullptr) return;
  ProgressLine progress("writing the cache");
  const bool has_remote = !store->remote.empty();
  const Status closed = store->manager->Close(
      has_remote ? std::chrono::steady_clock::now() + store->remote_deadline : kNoDeadline);
  progress.Finish();
  if (!closed.ok()) std::fprintf(stderr, "terrace-llama: closing the cache: %s\n", closed.ToString().c_str());
  const ManagerStats stats = store->manager->Stats();
  if (stats.dropped_objects > 0) {
    std::fprintf(stderr, "terrace-llama: %llu chunks could not be kept (no room, or a fault)\n",
                 static_cast<unsigned long long>(stats.dropped_objects));
  }
  const uint64_t lost = RemoteCounter(*store, "terrace_tier_write_failures_total", "Writes that failed");
  if (lost > 0) {
    std::fprintf(stderr, "terrace-llama: %s: %llu chunks did not get there\n", store->remote.c_str(),
                 static_cast<unsigned long long>(lost));
  }
  store->manager.reset();
}

void UseStore(const KvStore& store, LlamaCacheOptions* cache) {
  cache->manager = store.manager;
  if (store.remote.empty()) return;
  cache->remote_deadline = cache->load_deadline = store.remote_deadline;
}

uint64_t TierHits(const KvStore& store, const std::string& tier) {
  if (store.manager == nullptr) return 0;
  for (const TierStats& stats : store.manager->Stats().tiers) {
    if (stats.name == tier) return stats.hits;
  }
  return 0;
}

TierShare ShareOf(const KvStore& store, const FetchResult& fetched, const std::string& tier) {
  if (store.manager == nullptr) return {};
  const std::vector<TierStats> tiers = store.manager->Stats().tiers;
  for (size_t i = 0; i < tiers.size() && i < fetched.by_tier.size(); ++i) {
    if (tiers[i].name == tier) return fetched.by_tier[i];
  }
  return {};
}

uint64_t RemoteFailures(const KvStore& store) {
  return RemoteCounter(store, "terrace_manager_remote_lookup_failures_total",
                       "Remote parts that were not answered");
}

int ExitCode(const Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "terrace-llama: %s\n", std::string(status.message()).c_str());
  return status.code() == StatusCode::kInvalidArgument ? kExitUsage : kExitFailure;
}

}  // namespace terrace::llamacpp
