// StorageManager: keeps chunks of KV in tiers and hands them back. One object per process is usual,
// several work. Every call is safe from every thread; calls that an engine makes on its own thread
// (Lookup, Prepare, Commit, Load) enqueue and return, and touch no disk.
//
//   Root -> Lookup -> Lease -> Load -> LoadHandle -> LeasedChunk       (a prompt comes)
//   Root -> Prepare -> WritableChunk, filled in place -> Commit        (its KV is computed)
//
// Life of a chunk: README.md, "Life of a chunk". Words and rules: the design, sections 2, 3 and 6.
// Leases, handles, chunks and writable chunks may outlive the manager; after Close they load nothing
// and store nothing (kFailedPrecondition), and their bytes stay valid while held.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/bytes.h"
#include "terrace/kv_spec.h"
#include "terrace/manager_stats.h"
#include "terrace/metrics.h"
#include "terrace/object_id.h"
#include "terrace/status.h"
#include "terrace/storage_options.h"
#include "terrace/time.h"
#include "terrace/tokens.h"

namespace terrace {

class ManagerCore;

// What protects a lookup's chunks. Moves; destruction (or Release) ends the protection.
class TERRACE_API Lease {
 public:
  struct State;  // internal
  Lease();
  ~Lease();
  Lease(Lease&&) noexcept;
  Lease& operator=(Lease&&) noexcept;
  explicit Lease(std::shared_ptr<State> state);

  // Tokens of the prompt that can be loaded for every part asked for; 0 is a miss.
  uint64_t matched_tokens() const;
  // Of those, tokens whose objects all lie in the first (host) tier.
  uint64_t host_tokens() const;
  // Objects that a load of the whole match yields.
  uint64_t num_objects() const;
  // Frame bytes of them.
  uint64_t frame_bytes() const;
  // False above the lease budget, or after the deadline: a hint.
  bool is_protected() const;
  void Release();
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

struct LookupOptions {
  // Same id, same root, tokens that extend the earlier ones: renews and extends the earlier lease's
  // protection. Other tokens release it first. 0 is anonymous.
  uint64_t request_id = 0;
  // The match ends here at the latest (an engine must compute at least one token).
  uint64_t max_tokens = UINT64_MAX;
  // What is asked for; empty = every group of shard 0.
  std::vector<ObjectPart> parts;
};

// One object of a load, verified, its payload in place while this is held.
class TERRACE_API LeasedChunk {
 public:
  struct State;  // internal
  LeasedChunk();
  ~LeasedChunk();
  LeasedChunk(LeasedChunk&&) noexcept;
  LeasedChunk& operator=(LeasedChunk&&) noexcept;
  explicit LeasedChunk(std::unique_ptr<State> state);

  ObjectId id() const;
  uint64_t chunk_index() const;
  // Tokens of the prompt that the payload holds, and those of them that the match covers. They differ
  // where a match ends inside a chunk.
  TokenRange payload_tokens() const;
  TokenRange matched_tokens() const;
  Bytes payload() const;

 private:
  std::unique_ptr<State> state_;
};

// Chunk-major: whole frames in prefix order, and of each chunk the parts in the order asked for.
enum class LoadOrder { kChunkMajor = 1 };

// Where a load puts the payloads. Null destinations: LeasedChunks, taken with Next. Else one destination
// per object, in the load's order, each as large as LeasedChunk::payload() would be; the bytes are
// copied there after they were verified. Kept alive by the caller until Wait or Cancel returned.
struct LoadSink {
  std::span<const MutableBytes> memory;
};

struct LoadReport {
  uint64_t loaded_tokens = 0;   // whole and right from the begin of the load's range to here
  uint64_t recompute_from = 0;  // the token from which the engine must compute
  uint64_t loaded_objects = 0;
  uint64_t loaded_bytes = 0;  // of payload
  Status status;              // why it ended early; OK when everything was loaded
};

class TERRACE_API LoadHandle {
 public:
  struct State;  // internal
  LoadHandle();
  ~LoadHandle();  // cancels
  LoadHandle(LoadHandle&&) noexcept;
  LoadHandle& operator=(LoadHandle&&) noexcept;
  explicit LoadHandle(std::shared_ptr<State> state);

  // The next object in order; nothing at the end or after a failure (see report()). Waits until
  // `deadline`: kDeadlineExceeded then, and the load goes on. LeasedChunk sink only.
  Result<std::optional<LeasedChunk>> Next(TimePoint deadline = kNoDeadline);
  // Until everything is loaded (memory sink), failed, or `deadline`, which cancels.
  LoadReport Wait(TimePoint deadline = kNoDeadline);
  // The caller's part ends at once; buffers that a device still touches are let go of when it is done.
  void Cancel();
  // So far.
  LoadReport report() const;

 private:
  std::shared_ptr<State> state_;
};

// A chunk that is being filled. Destruction without Commit abandons it.
class TERRACE_API WritableChunk {
 public:
  struct State;  // internal
  WritableChunk();
  ~WritableChunk();
  WritableChunk(WritableChunk&&) noexcept;
  WritableChunk& operator=(WritableChunk&&) noexcept;
  explicit WritableChunk(std::unique_ptr<State> state);

  ObjectId id() const;
  TokenRange tokens() const;
  MutableBytes payload();  // exactly the size asked for; empty after Commit

  std::unique_ptr<State>& state() { return state_; }

 private:
  std::unique_ptr<State> state_;
};

// One object of a Prepare, in the order of chunks, then parts.
struct PreparedChunk {
  ObjectId id;
  TokenRange tokens;
  bool present = false;                   // stored, or being stored: nothing to do
  std::optional<WritableChunk> writable;  // else: fill and commit
};

struct PrepareResult {
  std::vector<PreparedChunk> chunks;
  // Why the list ends before the range does (kResourceExhausted: pool full; kFailedPrecondition: the
  // chunk before is neither stored nor being stored). OK: the whole range.
  Status status;
};

// Payload bytes of an object of `tokens`; called on the caller's thread, for absent objects only. An error
// ends the Prepare with it.
using PayloadSizes = std::function<Result<uint64_t>(TokenRange tokens, ObjectPart part)>;

class TERRACE_API StorageManager {
 public:
  // Makes pool and threads, attaches the tiers, rebuilds the index from durable ones. kInvalidArgument
  // names the option. An empty list of tiers is valid (nothing is kept).
  static Result<std::unique_ptr<StorageManager>> Open(StorageOptions options, std::vector<Tier> tiers);
  ~StorageManager();  // closes, if Close was not called

  // The root of a model with adapters under a salt; remembered here and in durable tiers.
  Result<ChunkKey> Root(const KvSpec& spec, std::span<const Adapter> adapters = {},
                        std::string_view salt = {});

  // The longest prefix of `prompt` that is stored. Never blocks, touches no disk. A miss is a lease over 0
  // tokens. kNotFound: a root that Root never made here; kInvalidArgument: a bad view or part.
  Result<Lease> Lookup(const ChunkKey& root, const TokenView& prompt, const LookupOptions& options = {});

  // Loads tokens [range.begin, range.end) of the lease's match. `begin` is a chunk boundary. What is no
  // longer there ends the load early. A failed Load is a handle whose report says why.
  LoadHandle Load(const Lease& lease, TokenRange range, const LoadSink& sink = {},
                  LoadOrder order = LoadOrder::kChunkMajor);

  // Announces the chunks of tokens `range` of `prompt` (range.begin a chunk boundary, range.end at most
  // prompt.tokens.size(); a last chunk that is not full is a tail). `parts` as in LookupOptions.
  Result<PrepareResult> Prepare(const ChunkKey& root, const TokenView& prompt, TokenRange range,
                                const PayloadSizes& sizes, std::span<const ObjectPart> parts = {});
  // Hands filled chunks over, parents first: the executor hashes and publishes them. Returns at once.
  void Commit(std::vector<WritableChunk> chunks);

  // Drops every object of the keys, on all tiers, and what hangs below them; in flight ones too. Durable when
  // it returns. The number of objects that were erased.
  Result<uint64_t> Erase(std::span<const ChunkKey> keys);
  // Drops everything on all tiers. Durable when it returns.
  Status Clear();
  // Waits until what was committed before is published and written behind. kDeadlineExceeded.
  Status Flush(TimePoint deadline = kNoDeadline);
  // Drains, closes the tiers, ends the threads. Safe to call twice.
  Status Close(TimePoint deadline = kNoDeadline);

  ManagerStats Stats() const;
  MetricRegistry& metrics() const;

 private:
  explicit StorageManager(std::shared_ptr<ManagerCore> core);
  std::shared_ptr<ManagerCore> core_;
};

}  // namespace terrace
