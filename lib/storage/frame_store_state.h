// FrameStore::State: a manager's objects as frames. Has no state of its own but for the leases that it gave
// out, the fetches that wait for room, and what the manager's core keeps.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lib/storage/manager_core.h"
#include "terrace/frame_store.h"

namespace terrace {

class PoolFrame;

struct FrameStore::State : std::enable_shared_from_this<State> {
  // Leases at once; above it a match is a hint.
  static constexpr size_t kMaxLeases = 65536;
  static constexpr size_t kMaxRoots = 65536;
  static constexpr uint64_t kMaxRootBytes = uint64_t{64} << 20;  // of their records

  explicit State(std::shared_ptr<ManagerCore> c) : core(std::move(c)) {}

  Status CheckUsable() const;

  // frame_store.cc
  Status PutRoot(const RootRecord& record);
  std::vector<bool> Has(std::span<const ObjectId> ids) const;

  // frame_match.cc
  struct Question;  // a query, checked
  Status Check(const PrefixQuery& query, Question& question) const;
  PrefixMatch Match(const PrefixQuery& query);
  bool Release(std::string_view token);
  Result<uint64_t> Pin(std::string_view name, const PrefixQuery& query);
  // Protects the plan's objects, which are pinned; the token, empty where that is a hint.
  std::string Protect(const MatchPlan& plan, const Question& question, Duration time);
  void DropLapsed(std::vector<std::shared_ptr<Lease::State>>& dropped);  // with `mutex` held

  // frame_publish.cc
  Result<std::shared_ptr<ArrivingFrame>> Allocate(uint64_t frame_bytes);
  Status Publish(const ObjectId& id, const ObjectMeta& meta, PoolFrame& frame);
  Status CheckPlace(const RootState& root, const FrameHeader& header) const;  // with the manager's lock held

  // frame_fetch.cc
  struct Fetched;  // one of a batch
  struct Batch;
  class RoomQueue;
  void Fetch(std::vector<FetchOp> ops, FetchDone done);

  // frame_erase.cc
  std::vector<Status> Erase(std::span<const ObjectId> ids, EraseMode mode);
  bool ForgetOne(const ObjectId& id, EraseMode mode, ManagerCore::ObjectsByTier& by_tier,
                 ManagerCore::DoomedJobs& doomed, ManagerCore::Evictions& evictions);
  Result<ScanPage> Scan(std::string_view cursor, size_t limit, ScanDetail detail) const;
  ChunkContentRef ContentOf(const IndexEntry& entry, const ObjectPresence& object) const;

  const std::shared_ptr<ManagerCore> core;

  struct KeptLease {
    std::shared_ptr<Lease::State> lease;
    std::multimap<TimePoint, std::string>::iterator place;
  };
  std::mutex mutex;  // a leaf: nothing is called while it is held
  std::map<std::string, KeptLease, std::less<>> leases;
  std::multimap<TimePoint, std::string> lease_deadlines;
  std::shared_ptr<RoomQueue> room_queue;  // made when the first fetch waits
};

}  // namespace terrace
