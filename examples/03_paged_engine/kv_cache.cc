#include "kv_cache.h"

#include <chrono>
#include <utility>
#include <vector>

#include "terrace/host_backend.h"
#include "terrace/nvme_backend.h"
#include "terrace/remote_backend.h"

namespace paged_engine {

using namespace terrace;

// An engine that serves takes what computing the prefix would take.
constexpr Duration kPatience = std::chrono::seconds(30);

// [readme:begin]
// Behind the prefill, in the order of the stream; the engine goes on. Its thread copies nothing.
Result<StoreHandle> Keep(StorageManager& cache, const ChunkKey& root, const Sequence& sequence,
                         Engine& engine) {
  const PagedKvView view = engine.pages().ViewOf(sequence);
  return cache.Store(root, sequence.tokens, {0, sequence.tokens.size()}, {&view, 1});
}

// The kept prefix comes layer by layer: attention of layer 0 begins while the others are on their way.
Result<Begun> Begin(StorageManager& cache, const ChunkKey& root, const Sequence& sequence, Engine& engine) {
  const uint64_t most = sequence.tokens.size() - 1;  // the last token's logits have to be computed
  const Result<Lease> lease = cache.Lookup(root, sequence.tokens, {.max_tokens = most});
  if (!lease.ok()) return lease.status();
  const TimePoint deadline = std::chrono::steady_clock::now() + kPatience;
  lease->WaitRemote(deadline).IgnoreError();  // no answer of a cache server: what is kept here counts

  const PagedKvView view = engine.pages().ViewOf(sequence);
  const LoadSink sink{.views = {&view, 1}};
  uint64_t loaded = lease->matched_tokens();
  LoadHandle load = cache.Load(*lease, {0, loaded}, sink, LoadOrder::kLayerMajor);
  const auto wait = [&](uint32_t layer) { return load.WaitLayerOn(layer, *view.stream, deadline); };
  Result<Logits> logits = engine.Forward(sequence, loaded, loaded > 0 ? wait : Engine::BeforeLayer());
  const LoadReport report = load.Wait(deadline);
  if (!logits.ok() || report.recompute_from < loaded) {  // a disk failed or was slow: more to compute
    loaded = report.recompute_from;
    logits = engine.Forward(sequence, loaded);
  }
  if (!logits.ok()) return logits.status();
  return Begun{std::move(*logits), loaded};
}
// [readme:end]

Result<std::unique_ptr<StorageManager>> OpenCache(const CacheOptions& options, const Compute& compute) {
  std::vector<Tier> tiers;
  tiers.push_back({MakeHostBackend({.capacity_bytes = 64 << 20}).value()});
  Result<std::unique_ptr<Backend>> nvme =
      MakeNvmeBackend({.directory = options.directory, .capacity_bytes = 1 << 30, .segment_bytes = 64 << 20});
  if (!nvme.ok()) return nvme.status();
  tiers.push_back({std::move(*nvme)});
  if (!options.remote.empty()) {
    Result<std::unique_ptr<Backend>> remote = MakeRemoteBackend({.addresses = {options.remote}});
    if (!remote.ok()) return remote.status();
    tiers.push_back({std::move(*remote)});
  }
  StorageOptions storage;
  storage.pool_bytes = 64 << 20;
  storage.devices = {{.device = compute.stream()->device(), .staging_bytes = 8 << 20}};
  return StorageManager::Open(std::move(storage), std::move(tiers));
}

}  // namespace paged_engine
