// LandingTable: where the bytes of transfers go that arrive on data paths, on the server (puts) and on the
// client (gets). It decides which memory a received range may be written to, so that nothing that a peer
// sends is written outside what was asked for, or twice, or after the transfer has ended.
//
// Threads: every call from every thread; callbacks run without a lock, on the thread that brought the bytes
// (or one that brings others of the transfer at the moment), on_end with an error on the thread that fails
// it. A transfer that is dropped while somebody receives into its memory ends for its owner at once; the
// memory is kept (`keep`) until that receiver is done, who may write to it until then. Where nobody receives,
// `keep` is let go of before Drop returns, or before on_end is told of an error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "terrace/backend.h"
#include "terrace/bytes.h"
#include "terrace/status.h"

namespace terrace {

// What is awaited of one transfer.
struct Landing {
  MutableBytes memory;  // e.g. BufferRef::mutable_frame()
  std::vector<FrameRange>
      ranges;                  // of the frame, disjoint, to dst_offset of `memory`; at least one, none empty
  std::shared_ptr<void> keep;  // what keeps the memory alive
  // Bytes [offset, offset + n) of `memory` are in place; one call of a transfer at a time. May be null.
  std::function<void(uint64_t offset, uint64_t n)> on_bytes;
  bool is_watched = true;  // on_bytes reads them: a path that copies leaves them in the cache
  // Once, the transfer's last call: OK after the last byte (and after its on_bytes), else why no more comes
  // (Fail). Not after Drop.
  std::function<void(const Status&)> on_end;
};

class LandingTable {
 public:
  // A range that was reserved for a receiver: written by it alone, then landed, or given up by destruction
  // (which fails the transfer: bytes are missing).
  class Reservation {
   public:
    Reservation() = default;
    ~Reservation();
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&& other) noexcept;
    MutableBytes memory() const { return memory_; }
    // The first `n` bytes that were not reported yet are in place; reports them. After the last one the
    // reservation is done.
    void Landed(uint64_t n);

   private:
    friend class LandingTable;
    struct Transfer;
    LandingTable* table_ = nullptr;
    std::shared_ptr<Transfer> transfer_;
    MutableBytes memory_;
    uint64_t landed_ = 0;
  };

  LandingTable();
  ~LandingTable();  // every Reservation is gone

  // kAlreadyExists: the number is in use. kInvalidArgument: no ranges, outside the memory, or overlapping.
  Status Add(uint64_t transfer, Landing landing);
  // Bytes [offset, offset + length) of the transfer's frame are about to arrive. kNotFound: no such transfer
  // (any more): the receiver reads the bytes and drops them. kDataLoss: not inside one range, or reserved
  // before: the peer is wrong.
  Result<Reservation> Reserve(uint64_t transfer, uint64_t offset, uint64_t length);
  // The transfer ends with an error; false where it is not known (any more).
  bool Fail(uint64_t transfer, const Status& status);
  // Forgets it: no callback of it runs after the return, unless it is running already on another thread.
  bool Drop(uint64_t transfer);
  void FailAll(const Status& status);
  // What a path that fetches bytes itself wants to know of a transfer; none: not known (any more).
  struct Awaited {
    std::vector<FrameRange> ranges;
    bool is_watched = false;  // there is an on_bytes that reads them
  };
  std::optional<Awaited> AwaitedOf(uint64_t transfer) const;
  size_t size() const;
  uint64_t missing_bytes() const;

 private:
  using TransferRef = std::shared_ptr<Reservation::Transfer>;

  TransferRef Find(uint64_t transfer) const;
  void Report(const TransferRef& transfer, uint64_t offset, uint64_t n);
  // Takes it out of the table; with `end`, on_end is called, here or by the thread that reports at the
  // moment.
  bool Leave(const TransferRef& transfer, std::optional<Status> end);
  void RunReports(const TransferRef& transfer, std::unique_lock<std::mutex>& lock);

  mutable std::mutex mutex_;
  uint64_t missing_bytes_ = 0;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Reservation::Transfer>> transfers_;
};

}  // namespace terrace
