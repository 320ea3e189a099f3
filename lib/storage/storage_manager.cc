#include "terrace/storage_manager.h"

#include "lib/base/status_macros.h"
#include "lib/core/sha256.h"
#include "lib/storage/manager_core.h"

namespace terrace {

StorageManager::StorageManager(std::shared_ptr<ManagerCore> core) : core_(std::move(core)) {}

Result<std::unique_ptr<StorageManager>> StorageManager::Open(StorageOptions options,
                                                             std::vector<Tier> tiers) {
  TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<ManagerCore> core,
                           ManagerCore::Open(std::move(options), std::move(tiers)));
  return std::unique_ptr<StorageManager>(new StorageManager(std::move(core)));
}

StorageManager::~StorageManager() {
  // A forked child has none of the threads and shares the files: it leaves everything to its parent.
  if (core_->IsForkedChild()) {
    new std::shared_ptr<ManagerCore>(std::move(core_));
    return;
  }
  // Destructors do not fail; who wants to know calls Close.
  core_->Close(kNoDeadline).IgnoreError();
}

Result<ChunkKey> StorageManager::Root(const KvSpec& spec, std::span<const Adapter> adapters,
                                      std::string_view salt) {
  return core_->Root(spec, adapters, salt);
}

Result<Lease> StorageManager::Lookup(const ChunkKey& root, const TokenView& prompt,
                                     const LookupOptions& options) {
  return core_->Lookup(root, prompt, options);
}

Result<PrefixPresence> StorageManager::Peek(const ChunkKey& root, const TokenView& prompt,
                                            const LookupOptions& options) {
  return core_->Peek(root, prompt, options);
}

LoadHandle StorageManager::Load(const Lease& lease, TokenRange range, const LoadSink& sink, LoadOrder order) {
  return core_->Load(lease, range, sink, order);
}

Result<uint64_t> StorageManager::Prefetch(const ChunkKey& root, const TokenView& prompt, uint64_t max_bytes,
                                          const LookupOptions& options) {
  return core_->Prefetch(root, prompt, max_bytes, options);
}

Result<PrepareResult> StorageManager::Prepare(const ChunkKey& root, const TokenView& prompt, TokenRange range,
                                              const PayloadSizes& sizes, std::span<const ObjectPart> parts) {
  return core_->Prepare(0, root, prompt, range, sizes, parts);
}

Result<PrepareResult> StorageManager::Prepare(uint64_t request_id, const ChunkKey& root,
                                              const TokenView& prompt, TokenRange range,
                                              const PayloadSizes& sizes, std::span<const ObjectPart> parts) {
  return core_->Prepare(request_id, root, prompt, range, sizes, parts);
}

Result<StoreHandle> StorageManager::Store(const ChunkKey& root, const TokenView& prompt, TokenRange range,
                                          std::span<const PagedKvView> views, const StoreOptions& options) {
  return core_->Store(root, prompt, range, views, options);
}

Result<uint64_t> StorageManager::Pin(std::string_view name, const ChunkKey& root, const TokenView& prompt,
                                     std::span<const ObjectPart> parts) {
  return core_->Pin(name, root, prompt, parts);
}

bool StorageManager::Unpin(std::string_view name) { return core_->Unpin(name); }

Result<uint64_t> StorageManager::ErasePrefix(const ChunkKey& root, const TokenView& prompt) {
  return core_->ErasePrefix(root, prompt);
}

Result<uint64_t> StorageManager::EraseSpec(const KvSpec& spec) {
  TERRACE_RETURN_IF_ERROR(spec.Validate());
  // Roots know nothing of shards.
  return core_->EraseRoots(
      [identity = spec.SerializeIdentity()](const RootState& root) { return root.record.spec == identity; });
}

Result<uint64_t> StorageManager::EraseSalt(std::string_view salt) {
  if (salt.empty())
    return InvalidArgumentError("an empty salt; EraseSpec and ErasePrefix name what has none");
  const Digest digest = Sha256Of(salt);
  return core_->EraseRoots([&](const RootState& root) { return root.record.salt_sha256 == digest; });
}

void StorageManager::Commit(std::vector<WritableChunk> chunks) { core_->Commit(std::move(chunks)); }
Result<uint64_t> StorageManager::Erase(std::span<const ChunkKey> keys) { return core_->Erase(keys); }
Status StorageManager::Clear() { return core_->Clear(); }
Status StorageManager::Flush(TimePoint deadline) { return core_->Flush(deadline); }
Status StorageManager::Close(TimePoint deadline) { return core_->Close(deadline); }
ManagerStats StorageManager::Stats() const { return core_->Stats(); }
MetricRegistry& StorageManager::metrics() const { return core_->metrics(); }

}  // namespace terrace
