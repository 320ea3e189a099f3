// StorageManager: keeps chunks of KV in tiers and hands them back. One object per process is usual,
// several work. Every call is safe from every thread; calls that an engine makes on its own thread
// (Lookup, Prepare, Commit, Load) enqueue and return, and touch no disk.
//
//   Root -> Lookup -> Lease -> Load -> LoadHandle -> LeasedChunk       (a prompt comes)
//   Root -> Prepare -> WritableChunk, filled in place -> Commit        (its KV is computed)
//   Root -> Store(views) -> StoreHandle                                (the same, out of paged memory)
//
// Life of a chunk: README.md, "Life of a chunk". Words and rules: the design, sections 2, 3 and 6.
// Leases, handles, chunks and writable chunks may outlive the manager; after Close they load nothing
// and store nothing (kFailedPrecondition), and their bytes stay valid while held.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "terrace/kv_spec.h"
#include "terrace/lease.h"
#include "terrace/load.h"
#include "terrace/manager_stats.h"
#include "terrace/metrics.h"
#include "terrace/object_id.h"
#include "terrace/status.h"
#include "terrace/storage_options.h"
#include "terrace/store.h"
#include "terrace/time.h"
#include "terrace/tokens.h"

namespace terrace {

class FrameStore;
class ManagerCore;

class TERRACE_API StorageManager {
 public:
  // Makes pool and threads, attaches the tiers, rebuilds the index from durable ones: where objects lie at
  // once, tokens and items of large tiers in the background, so that for some seconds a chunk may be matched
  // as a whole or not at all. kInvalidArgument names the option. An empty list of tiers is valid (nothing is
  // kept).
  static Result<std::unique_ptr<StorageManager>> Open(StorageOptions options, std::vector<Tier> tiers);
  ~StorageManager();  // closes, if Close was not called

  // The root of a model with adapters under a salt; remembered here and in durable tiers.
  Result<ChunkKey> Root(const KvSpec& spec, std::span<const Adapter> adapters = {},
                        std::string_view salt = {});

  // The longest prefix of `prompt` that is stored. Never blocks, touches no disk. A miss is a lease over 0
  // tokens. kNotFound: a root that Root never made here; kInvalidArgument: a bad view or part.
  Result<Lease> Lookup(const ChunkKey& root, const TokenView& prompt, const LookupOptions& options = {});

  // What Lookup would answer from the local tiers now, without protecting anything, renewing a lease or
  // touching recency. For schedulers that poll.
  Result<PrefixPresence> Peek(const ChunkKey& root, const TokenView& prompt,
                              const LookupOptions& options = {});

  // Loads tokens [range.begin, range.end) of the lease's match. `begin` is a chunk boundary (with views:
  // any token). What is no longer there ends the load early. A failed Load is a handle whose report says why.
  LoadHandle Load(const Lease& lease, TokenRange range, const LoadSink& sink = {},
                  LoadOrder order = LoadOrder::kChunkMajor);

  // Announces the chunks of tokens `range` of `prompt` (range.begin a chunk boundary, range.end at most
  // prompt.tokens.size(); a last chunk that is not full is a tail). `parts` as in LookupOptions.
  Result<PrepareResult> Prepare(const ChunkKey& root, const TokenView& prompt, TokenRange range,
                                const PayloadSizes& sizes, std::span<const ObjectPart> parts = {});
  // The same with what is known of a request id between its calls (see LookupOptions): a grown prompt hashes
  // its new tokens only.
  Result<PrepareResult> Prepare(uint64_t request_id, const ChunkKey& root, const TokenView& prompt,
                                TokenRange range, const PayloadSizes& sizes,
                                std::span<const ObjectPart> parts = {});
  // Hands filled chunks over, parents first: the executor hashes and publishes them. Returns at once.
  void Commit(std::vector<WritableChunk> chunks);

  // Stores tokens `range` (as in Prepare) out of paged memory, one view per part; canonical payloads only.
  // Enqueues and returns: the executor copies, hashes and publishes. Pages of devices are read behind what is
  // enqueued now on the views' streams. kResourceExhausted: too many stores wait already; skip caching.
  //
  // The groups of a hybrid model are one call. A full group's view holds the whole range. Of a window group
  // the chunks that its view holds are stored; among the range's last ceil(window / tokens_per_chunk) + 1
  // full chunks, and of the tail, each is held or stored already: else the store ends there
  // (kInvalidArgument), for what lies before could serve no prefix that ends with the range. Of a state group
  // the chunks whose last token the view holds are stored; the range's last one is among them.
  Result<StoreHandle> Store(const ChunkKey& root, const TokenView& prompt, TokenRange range,
                            std::span<const PagedKvView> views, const StoreOptions& options = {});

  // Brings what is stored of the prompt up into the host tier, in the background, at most `max_bytes` (and at
  // most a load's window at a time). The frame bytes that were started, 0 when all is there.
  Result<uint64_t> Prefetch(const ChunkKey& root, const TokenView& prompt, uint64_t max_bytes = UINT64_MAX,
                            const LookupOptions& options = {});

  // Protects what is stored of the prompt, under a name of the caller's, until Unpin, Erase, Clear or Close.
  // The tokens that are protected. kResourceExhausted above StorageOptions::pin_budget: nothing is. Pinning
  // under a name in use replaces what it protected. Pins do not outlive the manager.
  Result<uint64_t> Pin(std::string_view name, const ChunkKey& root, const TokenView& prompt,
                       std::span<const ObjectPart> parts = {});
  // False: no such name.
  bool Unpin(std::string_view name);

  // Drops every object of the keys, on all tiers, and what hangs below them; in flight ones too. Durable when
  // it returns. The number of objects that were erased.
  Result<uint64_t> Erase(std::span<const ChunkKey> keys);
  // The same by what the objects belong to: the prefix's last chunk (a boundary or a stored tail; with an
  // empty prompt the whole root) and what hangs below, every root of a spec, every root made with a salt.
  Result<uint64_t> ErasePrefix(const ChunkKey& root, const TokenView& prompt);
  Result<uint64_t> EraseSpec(const KvSpec& spec);
  Result<uint64_t> EraseSalt(std::string_view salt);
  // Drops everything on all tiers. Durable when it returns.
  Status Clear();
  // Waits until what was committed before is published and written behind. kDeadlineExceeded.
  Status Flush(TimePoint deadline = kNoDeadline);
  // Drains, closes the tiers, ends the threads. Safe to call twice.
  Status Close(TimePoint deadline = kNoDeadline);

  ManagerStats Stats() const;
  MetricRegistry& metrics() const;

 private:
  friend class FrameStore;
  explicit StorageManager(std::shared_ptr<ManagerCore> core);
  std::shared_ptr<ManagerCore> core_;
};

}  // namespace terrace
