// TransferQueue: carries out whole transfers (an object's extents to or from memory) as requests of bounded
// size and number. What has arrived is reported apart (Report), when the requests that follow are on their
// way: whoever hashes it does not keep the device waiting. Bytes in flight are bounded per direction. Reads
// go first: while one waits or is in flight, writes have no more than one request's bytes in flight, as a
// read waits in the device behind all of them; they always have one request, so that they never starve. After
// the last read their share grows with each write that completes, so that the next read of a caller who loads
// one chunk after the other does not find the device full. Short results are continued, EAGAIN and EINTR
// retried within a bound, and an error ends its own transfer only.
//
// The owner's thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "backends/nvme/io_engine.h"
#include "terrace/status.h"

namespace terrace {

// Bytes of one file and their place in memory; both multiples of 4,096.
struct TransferSpan {
  int fd = -1;
  uint64_t offset = 0;
  uint64_t length = 0;
  std::byte* memory = nullptr;
};

struct Transfer {
  IoDirection direction = IoDirection::kRead;
  std::vector<TransferSpan> spans;
  // [memory, memory + n) is done, while the rest is in flight; from Report. May be null.
  std::function<void(std::byte* memory, uint64_t n)> on_bytes;
  // Once, when the device touches none of the memory any more; from Report, Pump or Stop. kDataLoss: the
  // file ended early.
  std::function<void(const Status&)> on_end;
  // Writes: asked when a request with `n` bytes at `memory` is about to start, once for each byte, in the
  // order of the spans; what it returns is written in their place and held until the device has let go. Null:
  // the memory itself. So that what has to be made for a write exists for the bytes in flight only.
  std::function<std::shared_ptr<std::byte>(std::byte* memory, uint64_t n)> stage;

  // Where the device could not: the bytes of the request that failed. Only for errors of the medium or of the
  // way to it; failed_bytes = 0: there was none.
  int failed_fd = -1;
  uint64_t failed_offset = 0;
  uint64_t failed_bytes = 0;

  // Of the queue.
  size_t span = 0;
  uint64_t span_done = 0;
  uint32_t in_flight = 0;
  uint32_t unreported = 0;
  bool stopped = false;
  bool ended = false;
  Status status;
};
using TransferRef = std::shared_ptr<Transfer>;

struct TransferLimits {
  uint64_t request_bytes = 0;
  uint64_t inflight_bytes = 0;  // per direction
};

// Requests that are in flight at most, both directions together: the engine's depth.
inline constexpr uint32_t kMaxRequests = 128;

class TransferQueue {
 public:
  TransferQueue(IoEngine* engine, TransferLimits limits);
  ~TransferQueue();

  void Add(TransferRef transfer);
  // No further request of it is started. on_end comes (here, or later) with the status that it then has,
  // kCancelled if nothing else went wrong.
  void Stop(const TransferRef& transfer);
  // Starts what the limits allow. To be called before each wait.
  void Pump();
  void OnCompletion(const IoCompletion& completion);
  // Calls on_bytes and on_end for what completed since the last time.
  void Report();

  uint64_t bytes_done(IoDirection direction) const { return bytes_done_[Index(direction)]; }
  // The device has nothing of ours.
  bool is_idle() const { return idle_.size() == requests_.size(); }

 private:
  struct Request : IoRequest {
    TransferRef transfer;
    uint64_t charged_bytes = 0;
    uint32_t retries = 0;
    std::array<std::shared_ptr<std::byte>, 2> staged;  // see Transfer::stage
  };
  // Bytes to report; none: the transfer may have ended.
  struct Arrival {
    TransferRef transfer;
    std::byte* memory = nullptr;
    uint64_t n = 0;
  };
  struct Lane {
    std::deque<TransferRef> waiting;  // those that have requests to start
    uint64_t in_flight_bytes = 0;
    uint32_t in_flight = 0;
  };

  static size_t Index(IoDirection direction) { return static_cast<size_t>(direction); }
  void PumpLane(Lane& lane, uint64_t max_bytes);
  // Fills `request` with the next bytes of the transfer, without taking them from it. Its length.
  uint64_t PlanRequest(const Transfer& transfer, Request& request) const;
  static void Take(Transfer& transfer, uint64_t n);
  // Makes what the transfer stages for these bytes, and puts it in their place.
  static void Stage(const Transfer& transfer, Request& request);
  // The request's error becomes its transfer's, unless that has one.
  static void Fail(const Request& request, int error);
  // Drops the `n` first bytes of the request's memory; they are to be reported.
  void Consume(Request& request, uint64_t n);
  void Finish(Request* request);
  void EndIfIdle(const TransferRef& transfer);
  static bool HasMore(const Transfer& transfer) { return transfer.span < transfer.spans.size(); }

  IoEngine* engine_;
  TransferLimits limits_;
  std::array<Lane, 2> lanes_;
  uint64_t write_share_;  // bytes of writes that may be in flight, within the limits
  std::array<uint64_t, 2> bytes_done_{};
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Request*> idle_;
  std::vector<Arrival> arrivals_;
  std::vector<Arrival> reporting_;  // empty but within Report
};

}  // namespace terrace
