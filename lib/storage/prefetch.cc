// Prefetch: a load that only promotes, kept alive by the manager until it is done or the manager closes.
#include "lib/base/status_macros.h"
#include "lib/storage/load_registry.h"
#include "lib/storage/load_state.h"

namespace terrace {

Result<uint64_t> ManagerCore::Prefetch(const ChunkKey& root, const TokenView& prompt, uint64_t max_bytes,
                                       const LookupOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(const Lease lease, Lookup(root, prompt, options));
  if (!HasHostTier()) return uint64_t{0};
  const TokenRange range{0, lease.matched_tokens()};
  std::shared_ptr<LoadHandle::State> load = NewLoad(lease, range, TraceKind::kPrefetch);
  load->target = LoadTarget::Nowhere();
  uint64_t bytes = 0;
  for (const LeaseItem& item : load->lease->Items()) {
    if (item.in_host) continue;
    if (item.meta.frame_bytes > max_bytes - bytes) break;
    bytes += item.meta.frame_bytes;
    load->items.push_back(item);
  }
  if (load->items.empty()) return uint64_t{0};
  prefetched_bytes_->Add(bytes);
  StartLoad(load, /*keep=*/true);
  return bytes;
}

}  // namespace terrace
