// TransferQueue: carries out whole transfers (an object's extents to or from memory) as requests of bounded
// size and number. Bytes in flight are bounded per direction. Reads go first: while a read waits for its
// turn, writes go on with one request at a time, so that they are slowed and never starve. Short results are
// continued, EAGAIN and EINTR retried within a bound, and an error ends its own transfer only.
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
  // [memory, memory + n) is done, while the rest is in flight. May be null.
  std::function<void(std::byte* memory, uint64_t n)> on_bytes;
  // Once, when the device touches none of the memory any more. kDataLoss: the file ended early.
  std::function<void(const Status&)> on_end;

  // Of the queue.
  size_t span = 0;
  uint64_t span_done = 0;
  uint32_t in_flight = 0;
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

  uint64_t bytes_done(IoDirection direction) const { return bytes_done_[Index(direction)]; }

 private:
  struct Request : IoRequest {
    TransferRef transfer;
    uint64_t charged_bytes = 0;
    uint32_t retries = 0;
  };
  struct Lane {
    std::deque<TransferRef> waiting;  // those that have requests to start
    uint64_t in_flight_bytes = 0;
    uint32_t in_flight = 0;
  };

  static size_t Index(IoDirection direction) { return static_cast<size_t>(direction); }
  void PumpLane(Lane& lane, uint32_t max_requests);
  // Fills `request` with the next bytes of the transfer.
  void NextRequest(Transfer& transfer, Request& request) const;
  // Drops the `n` first bytes of the request's memory, reporting them.
  void Consume(Request& request, uint64_t n);
  void Finish(Request* request);
  void EndIfIdle(const TransferRef& transfer);
  static bool HasMore(const Transfer& transfer) { return transfer.span < transfer.spans.size(); }

  IoEngine* engine_;
  TransferLimits limits_;
  std::array<Lane, 2> lanes_;
  std::array<uint64_t, 2> bytes_done_{};
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Request*> idle_;
};

}  // namespace terrace
