// LeaseTable: live leases by deadline, and what is kept of request ids between their calls. Ends what is past
// its deadline, and gives pins and budgets back exactly once, whoever ends a lease.
//
// Threads: every call from every thread. One mutex; a lease's own mutex and the index's shards are taken
// after it or alone, the manager's never inside it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lib/core/chunk_index.h"
#include "lib/storage/lease_state.h"
#include "terrace/token_hasher.h"

namespace terrace {

// The prompt of a request id so far and its hash state, so that a grown prompt hashes only its new tokens.
// Shared by the calls with that id which are going on at once (ranks of one request), so that it is hashed
// once: who comes second waits while its tokens are hashed, and for nothing else.
struct RequestChain {
  const RootStateRef root;
  std::mutex mutex;  // a leaf; guards all below
  TokenHasher hasher;
  std::vector<Token> tokens;
  std::vector<Item> items;

  explicit RequestChain(RootStateRef r)
      : root(std::move(r)), hasher(root->root, root->spec.tokens_per_chunk) {}
  bool IsExtendedBy(const TokenView& prompt) const;  // with the lock
};

// What one call knows of a request id; between calls the LeaseTable keeps it. One call at a time.
struct RequestState {
  std::shared_ptr<RequestChain> chain;
  std::vector<ChunkKey>
      keys;  // full chunks of the prompt, the chain's as far as this call has asked for them
  std::weak_ptr<Lease::State> lease;
  uint64_t kept_tokens = 0;  // that the chain's memory is for

  explicit RequestState(std::shared_ptr<RequestChain> c) : chain(std::move(c)) {}

  // Hashes what the chain does not know of the prompt; the number of tokens that this took, nothing where the
  // chain is not one of `root` that the prompt extends. Not `keep_tokens`: nothing will be compared with it
  // later.
  Result<std::optional<uint64_t>> Extend(const RootStateRef& root, const TokenView& prompt, bool keep_tokens);
};

// Bytes that may be protected at once.
class ProtectionBudget {
 public:
  void SetLimit(uint64_t bytes) { limit_ = bytes; }
  bool TryTake(uint64_t bytes);
  void GiveBack(uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t free() const { return limit_ - used(); }

 private:
  std::atomic<uint64_t> used_{0};
  uint64_t limit_ = 0;
};

class LeaseTable {
 public:
  explicit LeaseTable(ChunkIndex& index) : index_(index) {}

  // Before the first call.
  void SetBudgets(uint64_t host_bytes, uint64_t lower_bytes);

  // A request's state, taken out of the table: a second call with the id meanwhile gets one with the same
  // chain, of no lease. A new one where there is none yet, and for id 0.
  std::unique_ptr<RequestState> TakeRequest(uint64_t id, const RootStateRef& root, TimePoint deadline);
  void KeepRequest(uint64_t id, std::unique_ptr<RequestState> request, TimePoint deadline);

  // Makes `lease` answerable for its segments' pins, until the deadline, and counts `added` (of them, those
  // with pins that are in no budget yet) in the budgets; pins above these are taken back. Where the lease
  // goes on with segments of `earlier` (null: none), these are its own from here on, and the earlier one's
  // tail is unpinned first. Nothing is done where the earlier one has ended meanwhile.
  enum class Started { kProtected, kHint, kNot };
  Started Start(const std::shared_ptr<Lease::State>& lease, TimePoint deadline,
                std::span<const LeaseSegmentRef> added, Lease::State* earlier, std::vector<ChunkKey>& unused);
  // Gives back the pins of a segment that no lease is answerable for.
  void Drop(const LeaseSegmentRef& segment, std::vector<ChunkKey>& unused);
  // Ends the lease's protection. `unused`: keys for ChunkIndex::RemoveIfUnused.
  void End(Lease::State& lease, std::vector<ChunkKey>& unused);
  // Whether part of a live lease is a hint that the budgets now have room for; the tail left out.
  bool CouldProtectMore(const Lease::State& lease) const;
  // Whether it still protects everything that it found.
  bool IsProtecting(const Lease::State& lease, TimePoint now) const;
  // Leases past their deadline, whose protection has been ended; requests past theirs are forgotten. The
  // caller drops them without a lock: they may be last references.
  std::vector<std::shared_ptr<Lease::State>> Reap(TimePoint now, std::vector<ChunkKey>& unused);

  uint64_t num_active() const { return num_active_.load(std::memory_order_relaxed); }

 private:
  struct KeptRequest {
    std::shared_ptr<RequestChain> chain;  // the state's
    std::unique_ptr<RequestState> state;  // null: calls have it
    uint64_t tokens = 0;                  // that its memory is for
    std::multimap<TimePoint, uint64_t>::iterator place;
  };
  using RequestMap = absl::flat_hash_map<uint64_t, KeptRequest>;
  // With mutex_ held; what is removed ends after the lock.
  KeptRequest Remove(RequestMap::iterator request);
  void Add(uint64_t id, KeptRequest request, TimePoint deadline, std::vector<KeptRequest>& let_go);
  // With mutex_ held: the segment's pins, for the caller to give back after the lock.
  static void Disown(const LeaseSegmentRef& segment, std::vector<LeaseSegmentRef>& disowned);
  void DisownAll(Lease::State& lease, std::vector<LeaseSegmentRef>& disowned);
  void Unpin(LeaseSegment& segment, std::vector<ChunkKey>& unused);
  // False: the host budget is too small.
  bool Protect(LeaseSegment& segment);

  // What is kept of requests; the ones nearest to their deadline go first. 256 MiB of tokens.
  static constexpr size_t kMaxRequests = size_t{1} << 16;
  static constexpr uint64_t kMaxKeptTokens = uint64_t{1} << 26;

  ChunkIndex& index_;
  ProtectionBudget host_budget_;
  ProtectionBudget lower_budget_;
  std::atomic<uint64_t> num_active_{0};
  std::atomic<int64_t> next_deadline_ns_{INT64_MAX};  // no later than the first deadline in the table

  mutable std::mutex mutex_;
  std::multimap<TimePoint, std::weak_ptr<Lease::State>> deadlines_;
  RequestMap requests_;
  uint64_t kept_tokens_ = 0;
  std::multimap<TimePoint, uint64_t> request_deadlines_;
};

}  // namespace terrace
