// FrameStore::State::Batch: one Fetch between the call and its completion; RoomQueue: reads that wait for
// room in the pool.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lib/codec/piece_codec.h"
#include "lib/storage/frame_store_state.h"

namespace terrace {

// One object of a batch. Touched by one thread at a time: that which starts it, then that which reads it.
struct FrameStore::State::Fetched {
  FetchOp op;
  TimePoint deadline;  // of waiting and reading
  RootStateRef root;   // what `item` points to
  LeaseItem item;
  ManagerCore::ReadSource source;
  size_t from_tier = 0;
  Status failure;  // of the tier tried last
  BufferRef buffer;
  std::shared_ptr<PieceVerifier> verifier;
};

struct FrameStore::State::Batch : std::enable_shared_from_this<Batch> {
  Batch(std::shared_ptr<State> s, std::vector<FetchOp> ops, FetchDone d);

  void Run();
  // Whether its buffer is there, so that it can be sent.
  bool TakeRoom(Fetched& fetched);
  void Send(const std::vector<size_t>& reads);
  void Complete(size_t i, Status status);
  bool MayWait(const Fetched& fetched) const;

  const std::shared_ptr<State> store;
  std::vector<Fetched> fetched;
  std::vector<FetchResult> results;
  FetchDone done;
  std::atomic<size_t> left;
  std::atomic<uint64_t> held_bytes{0};

 private:
  // Finds the object from its `from_tier` on; true where it has to be read and has its buffer.
  bool Begin(size_t i);
  bool Find(Fetched& fetched);
  void OnRead(size_t i, const GetResult& result, std::vector<size_t>& again);
};

// Waiting reads, oldest first, tried again when there may be room, each until its deadline. Its thread runs
// while anything waits.
class FrameStore::State::RoomQueue : public std::enable_shared_from_this<RoomQueue> {
 public:
  explicit RoomQueue(std::shared_ptr<ManagerCore> core) : core_(std::move(core)) {}
  ~RoomQueue();

  // False: as many wait as may.
  bool Add(const std::shared_ptr<Batch>& batch, size_t i);

 private:
  static constexpr size_t kMaxWaiting = 4096;
  // How often it is looked whether a waiting operation was cancelled, or room came that nobody told of.
  static constexpr std::chrono::milliseconds kPollTime{10};

  struct Waiting {
    std::shared_ptr<Batch> batch;
    size_t i = 0;
  };
  void Run();
  // What still waits.
  std::deque<Waiting> TryAll(std::deque<Waiting> waiting);
  void AskForNotice();

  const std::shared_ptr<ManagerCore> core_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Waiting> waiting_;
  bool is_running_ = false;
  bool is_woken_ = false;
  uint64_t notice_ = 0;  // of the pool; 0: none
  std::thread thread_;
};

}  // namespace terrace
