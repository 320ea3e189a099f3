// Lease::State: what a lookup found, in segments. A segment is immutable but for its pins, which one lease at
// a time is answerable for: a request that grows takes the earlier lease's segments over and adds one, so
// that renewing costs what is new.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lib/storage/prefix_match.h"
#include "terrace/lease.h"
#include "terrace/trace.h"

namespace terrace {

class ManagerCore;

// What a frame must say of itself, beside its identity.
struct LeasedMeta {
  uint64_t frame_bytes = 0;
  uint64_t payload_bytes = 0;  // 0 for what a remote tier announced: its header says
  uint32_t division = 0;
};

// One object that a lease names, in the load's order.
struct LeaseItem {
  static constexpr size_t kLocal = SIZE_MAX;

  ObjectId id;
  uint64_t chunk_index = 0;
  TokenRange payload_tokens;
  TokenRange matched_tokens;
  LeasedMeta meta;
  const RootState* root = nullptr;  // kept by the lease
  bool in_host = false;
  uint8_t fastest_tier = 0;
  size_t remote_tier = kLocal;  // a tier that answered for itself; the index need not know the object
  // What the frame of a remote tier's chunk must say, where its key does not follow from the prompt.
  struct RemoteIdentity {
    ChunkKey parent;
    ChunkContent begins_with;
  };
  std::shared_ptr<const RemoteIdentity> remote_identity;
};

struct LeaseSegment {
  std::vector<LeaseItem> items;
  std::vector<MatchedChunk> chunks;  // pinned ones; entries may be used while `holds`
  uint64_t host_bytes = 0;           // against the budgets, while they protect
  uint64_t lower_bytes = 0;
  uint64_t frame_bytes = 0;  // of the items
  uint64_t host_tokens =
      0;  // the prompt's tokens up to here lie in the host tier, as far as this segment says
  bool is_in_host = false;  // all of it
  size_t remote_tier = LeaseItem::kLocal;
  std::string remote_token;  // to be released
  // Guarded by the LeaseTable's mutex.
  bool holds = false;
  bool protects_host = false;
  bool protects_lower = false;
};
using LeaseSegmentRef = std::shared_ptr<LeaseSegment>;

struct Lease::State : std::enable_shared_from_this<Lease::State> {
  std::shared_ptr<ManagerCore> core;
  RootStateRef root;
  uint64_t request_id = 0;
  std::vector<ObjectPart> parts;
  uint64_t full_chunks = 0;  // of the match, in all segments but the tail's
  uint64_t losses = 0;       // ManagerCore::losses_ when it was matched
  uint64_t promotions = 0;   // the same of promotions_

  // Guarded by the LeaseTable's mutex.
  bool is_live = false;  // answerable for its segments' pins; in the table's deadlines at `place`
  std::multimap<TimePoint, std::weak_ptr<State>>::iterator place;
  TimePoint deadline{};

  // Taken alone, or after the LeaseTable's.
  mutable std::mutex mutex;
  mutable std::condition_variable settled;
  bool is_pending = false;
  uint64_t matched_tokens = 0;
  uint64_t host_tokens = 0;
  bool is_in_host = true;  // every segment so far
  uint64_t num_objects = 0;
  uint64_t frame_bytes = 0;
  std::vector<LeaseSegmentRef> segments;  // in prefix order; fixed once the state is shared
  LeaseSegmentRef tail;                   // the chunk that the local match ends inside (or with); may be null
  LeaseSegmentRef remote;                 // beyond it; may be null
  bool remote_replaces_tail = false;

  ~State();
  // As if nothing had been matched yet.
  void Reset();
  // Into a trace: tokens by tier, planned tokens.
  void Describe(size_t num_tiers, RequestTrace& trace) const;
  // A copy, of what is there now.
  std::vector<LeaseItem> Items() const;
  uint64_t MatchedTokens() const {
    std::lock_guard lock(mutex);
    return matched_tokens;
  }
  // Counts the segment's items in; with `mutex` held, or before the state is shared.
  void CountIn(const LeaseSegment& segment);
  template <typename F>
  void ForEachSegment(F&& visit) const {
    for (const LeaseSegmentRef& segment : segments) visit(segment);
    if (tail) visit(tail);
    if (remote) visit(remote);
  }
};

}  // namespace terrace
