#include "connectors/llamacpp/tool/kv_store.h"

#include <cstdio>

#include "connectors/llamacpp/tool/progress_line.h"

namespace terrace::llamacpp {

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
  const Status closed = store->manager->Close();
  progress.Finish();
  if (!closed.ok()) std::fprintf(stderr, "terrace-llama: closing the cache: %s\n", closed.ToString().c_str());
  const ManagerStats stats = store->manager->Stats();
  if (stats.dropped_objects > 0) {
    std::fprintf(stderr, "terrace-llama: %llu chunks could not be kept (no room, or a fault)\n",
                 static_cast<unsigned long long>(stats.dropped_objects));
  }
  store->manager.reset();
}

uint64_t TierHits(const KvStore& store, const std::string& tier) {
  if (store.manager == nullptr) return 0;
  for (const TierStats& stats : store.manager->Stats().tiers) {
    if (stats.name == tier) return stats.hits;
  }
  return 0;
}

int ExitCode(const Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "terrace-llama: %s\n", std::string(status.message()).c_str());
  return status.code() == StatusCode::kInvalidArgument ? kExitUsage : kExitFailure;
}

}  // namespace terrace::llamacpp
