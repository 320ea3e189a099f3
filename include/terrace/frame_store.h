// FrameStore: the objects of a StorageManager as whole frames, by id, for what hands them on to others: a
// cache server. Where StorageManager speaks of prompts and payloads, this speaks of keys and frames, which
// whoever asks has hashed and framed already.
//
//   PutRoot -> Has -> Allocate -> (bytes arrive) -> Publish      an object comes
//   Match -> Fetch -> Release                                    a prefix is asked for
//
// Threads: every call from every thread. Match, Has, Allocate, Release and Locate never block and touch no
// disk; Publish takes the manager's lock for a moment. A FrameStore may outlive its manager: calls after
// Close answer kFailedPrecondition. Frames that it handed out stay valid while held.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/backend.h"
#include "terrace/shared_pool.h"
#include "terrace/storage_manager.h"

namespace terrace {

struct FetchOp {
  ObjectId id;
  TimePoint deadline = kNoDeadline;
  CancelFlag cancel;  // may be null
};

struct FetchResult {
  Status status;    // kNotFound: a miss. kResourceExhausted: no room to read it into until the deadline
  BufferRef frame;  // published, or verified and as good; nobody writes it
  uint64_t frame_bytes = 0;  // of frame.frame()
};
using FetchDone = std::function<void(std::vector<FetchResult>)>;

// A frame on its way in. Parts may come from several threads, in any order.
class TERRACE_API ArrivingFrame {
 public:
  virtual ~ArrivingFrame() = default;
  // [0, frame_bytes); each byte is written once, before MarkPresent names it.
  virtual MutableBytes bytes() = 0;
  // Bytes [offset, offset + n) are in place. Pieces that became whole are hashed on this thread, while they
  // are in its cache.
  virtual void MarkPresent(uint64_t offset, uint64_t n) = 0;
};

// What Stats and quotas speak of.
struct TierUsage {
  std::string name;
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t objects = 0;
};

class TERRACE_API FrameStore {
 public:
  explicit FrameStore(const StorageManager& manager);
  ~FrameStore();
  FrameStore(const FrameStore&) = delete;
  FrameStore& operator=(const FrameStore&) = delete;

  // The roots table. Objects are stored of known roots only; equal records are free. kInvalidArgument: a spec
  // that does not parse or is not valid, or another record under a known root. What a root hashes of the salt
  // is not known here, so that a root is taken at its word. kResourceExhausted: 65,536 are known, or 64 MiB
  // of their records.
  Status PutRoot(const RootRecord& record);
  Result<std::vector<RootRecord>> Roots() const;

  // The longest prefix of the query that is stored, counted from its first token: full chunks by their keys
  // (query.parent itself need not be stored), then token-exact inside one child of the last where the root's
  // spec lets payloads be cut, whole stored chunks otherwise. Per part as its group's rule says; `present`
  // says so of what the rule needs, of the rest it may not. With query.lease > 0 the match is protected for
  // that long, at most StorageOptions::lease_time, under `lease_token`, as far as the budget goes
  // (lease_token is empty otherwise: a hint). query.deadline is not used. Unknown roots match nothing.
  PrefixMatch Match(const PrefixQuery& query);
  // False: no such lease, or it has lapsed.
  bool Release(std::string_view lease_token);

  // Whether the object is stored, or on its way into a tier.
  std::vector<bool> Has(std::span<const ObjectId> ids) const;

  // The frames themselves: out of the host tier as they are, out of slower tiers read, verified and promoted
  // on the way. One result per operation, in their order, exactly once, on the calling thread where all lie
  // in the host tier, else on a thread of a backend or of the store. One that finds no room in the pool waits
  // for it until its deadline (at most StorageOptions::io_deadline), but not where its batch holds half the
  // pool.
  void Fetch(std::vector<FetchOp> ops, FetchDone done);

  // Memory for a frame that is to arrive, charged to the stores' share of the pool. kResourceExhausted: no
  // room; nothing waits for it. kInvalidArgument: not a multiple of 4,096, or above largest_frame_bytes().
  Result<std::shared_ptr<ArrivingFrame>> Allocate(uint64_t frame_bytes);
  // Publishes a frame that has arrived whole, in the host tier and behind. Header and identity are checked
  // here: every piece was right, the header's key is that of its parent and content, it agrees with `id` and
  // `meta`. OK, kAlreadyExists (the first wins), kDataLoss (what is wrong), kFailedPrecondition (root or
  // parent not known, or bytes missing), kResourceExhausted. Nobody may write the frame's bytes from here on.
  Status Publish(const ObjectId& id, const ObjectMeta& meta, const std::shared_ptr<ArrivingFrame>& frame);

  std::vector<Status> Erase(std::span<const ObjectId> ids, EraseMode mode);
  Status Clear();
  Status Flush(TimePoint deadline = kNoDeadline);
  // As Backend::Scan, over all tiers, each object once.
  Result<ScanPage> Scan(std::string_view cursor, size_t limit, ScanDetail detail);

  // Protects what is stored of the query's prefix by name, as StorageManager::Pin does. The tokens protected.
  Result<uint64_t> Pin(std::string_view name, const PrefixQuery& query);
  bool Unpin(std::string_view name);

  std::vector<TierUsage> Usage() const;
  uint64_t largest_frame_bytes() const;

  // Only with StorageOptions::share_pool: the descriptors, and where a frame of this pool lies in them.
  std::optional<SharedPool> shared_pool() const;
  std::optional<SharedPlace> Locate(const BufferRef& frame) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace terrace
