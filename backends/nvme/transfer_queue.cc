#include "backends/nvme/transfer_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lib/base/check.h"

namespace terrace {
namespace {

constexpr uint64_t kAlignment = 4096;
constexpr uint32_t kMaxRetries = 100;  // of one request without a byte of progress
constexpr uint32_t kMaxRequestsPerLane = kMaxRequests / 2;

uint64_t BytesOf(const IoRequest& request) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < request.num_memory; ++i) bytes += request.memory[i].iov_len;
  return bytes;
}

Status ErrorOf(const IoRequest& request, int error) {
  const std::string what = request.direction == IoDirection::kRead ? "read" : "write";
  const std::string text =
      what + " of a segment at " + std::to_string(request.offset) + ": " + std::strerror(error);
  return error == ENOSPC || error == EDQUOT ? ResourceExhaustedError(text) : UnavailableError(text);
}

// Not: what another try, or more room, may mend.
bool IsOfTheMedium(int error) {
  return error == EIO || error == ENODATA || error == EILSEQ || error == EREMOTEIO || error == EBADMSG ||
         error == ETIMEDOUT || error == ENOLINK;
}

}  // namespace

TransferQueue::TransferQueue(IoEngine* engine, TransferLimits limits)
    : engine_(engine), limits_(limits), write_share_(limits.inflight_bytes) {
  for (uint32_t i = 0; i < kMaxRequests; ++i) {
    requests_.push_back(std::make_unique<Request>());
    idle_.push_back(requests_.back().get());
  }
}

TransferQueue::~TransferQueue() {
  TERRACE_CHECK(idle_.size() == requests_.size()) << "requests are in flight";
}

void TransferQueue::Add(TransferRef transfer) {
  TERRACE_CHECK(!transfer->spans.empty());
  Lane& lane = lanes_[Index(transfer->direction)];
  lane.waiting.push_back(std::move(transfer));
}

void TransferQueue::Stop(const TransferRef& transfer) {
  if (transfer->ended || transfer->stopped) return;
  transfer->stopped = true;
  if (transfer->status.ok() && HasMore(*transfer)) transfer->status = CancelledError("stopped");
  EndIfIdle(transfer);
}

void TransferQueue::Pump() {
  Lane& reads = lanes_[Index(IoDirection::kRead)];
  PumpLane(reads, limits_.inflight_bytes);
  if (!reads.waiting.empty() || reads.in_flight > 0) write_share_ = limits_.request_bytes;
  PumpLane(lanes_[Index(IoDirection::kWrite)], write_share_);
}

void TransferQueue::PumpLane(Lane& lane, uint64_t max_bytes) {
  while (!lane.waiting.empty()) {
    const TransferRef transfer = lane.waiting.front();
    if (transfer->stopped || !HasMore(*transfer)) {
      lane.waiting.pop_front();
      EndIfIdle(transfer);
      continue;
    }
    if (lane.in_flight >= kMaxRequestsPerLane || idle_.empty()) return;
    Request* request = idle_.back();
    const uint64_t bytes = PlanRequest(*transfer, *request);
    // Rather later than in crumbs. The share may have shrunk below what is in flight.
    if (lane.in_flight_bytes + bytes > max_bytes) return;
    Take(*transfer, bytes);
    if (transfer->stage) Stage(*transfer, *request);
    idle_.pop_back();
    request->transfer = transfer;
    request->retries = 0;
    request->charged_bytes = bytes;
    lane.in_flight_bytes += bytes;
    ++lane.in_flight;
    ++transfer->in_flight;
    engine_->Start(request);
  }
}

uint64_t TransferQueue::PlanRequest(const Transfer& transfer, Request& request) const {
  const TransferSpan& first = transfer.spans[transfer.span];
  uint64_t done = transfer.span_done;
  request.direction = transfer.direction;
  request.fd = first.fd;
  request.offset = first.offset + done;
  request.num_memory = 0;
  uint64_t bytes = 0;
  // A tier page and the frame behind it lie apart in memory and together on disk: one request.
  for (size_t i = transfer.span; i < transfer.spans.size(); ++i) {
    const TransferSpan& span = transfer.spans[i];
    if (bytes == limits_.request_bytes || request.num_memory == request.memory.size()) break;
    if (span.fd != request.fd || span.offset + done != request.offset + bytes) break;
    const uint64_t n = std::min(limits_.request_bytes - bytes, span.length - done);
    request.memory[request.num_memory++] = {span.memory + done, n};
    bytes += n;
    done = 0;
  }
  return bytes;
}

void TransferQueue::Stage(const Transfer& transfer, Request& request) {
  for (uint32_t i = 0; i < request.num_memory; ++i) {
    iovec& memory = request.memory[i];
    request.staged[i] = transfer.stage(static_cast<std::byte*>(memory.iov_base), memory.iov_len);
    if (request.staged[i]) memory.iov_base = request.staged[i].get();
  }
}

void TransferQueue::Take(Transfer& transfer, uint64_t n) {
  while (n > 0) {
    const uint64_t left = transfer.spans[transfer.span].length - transfer.span_done;
    if (n < left) {
      transfer.span_done += n;
      return;
    }
    n -= left;
    ++transfer.span;
    transfer.span_done = 0;
  }
}

void TransferQueue::OnCompletion(const IoCompletion& completion) {
  auto* request = static_cast<Request*>(completion.request);
  Transfer& transfer = *request->transfer;
  const int64_t result = completion.result;
  const uint64_t wanted = BytesOf(*request);
  TERRACE_CHECK(result <= static_cast<int64_t>(wanted)) << result << " of " << wanted;
  bool again = false;
  if (result == -EAGAIN || result == -EINTR) {
    again = ++request->retries <= kMaxRetries;
    if (!again) Fail(*request, static_cast<int>(-result));
  } else if (result < 0) {
    Fail(*request, static_cast<int>(-result));
  } else if (result == 0) {
    if (transfer.status.ok()) {
      transfer.status =
          request->direction == IoDirection::kRead
              ? DataLossError("a segment ends before " + std::to_string(request->offset + wanted))
              : ErrorOf(*request, ENOSPC);
    }
  } else {
    // A device may stop anywhere; what goes on must be aligned again.
    const uint64_t whole = static_cast<uint64_t>(result) / kAlignment * kAlignment;
    if (whole > 0) request->retries = 0;
    Consume(*request, whole);
    again = whole < wanted && (whole > 0 || ++request->retries <= kMaxRetries);
    if (whole < wanted && !again) Fail(*request, EIO);
  }
  if (!transfer.status.ok()) transfer.stopped = true;
  if (again && !transfer.stopped) {
    engine_->Start(request);
    return;
  }
  if (again && transfer.status.ok()) transfer.status = CancelledError("stopped");
  Finish(request);
}

void TransferQueue::Fail(const Request& request, int error) {
  Transfer& transfer = *request.transfer;
  if (!transfer.status.ok()) return;
  transfer.status = ErrorOf(request, error);
  if (!IsOfTheMedium(error)) return;
  transfer.failed_fd = request.fd;
  transfer.failed_offset = request.offset;
  transfer.failed_bytes = BytesOf(request);
}

void TransferQueue::Consume(Request& request, uint64_t n) {
  bytes_done_[Index(request.direction)] += n;
  request.offset += n;
  while (n > 0) {
    iovec& first = request.memory[0];
    const uint64_t part = std::min<uint64_t>(n, first.iov_len);
    auto* memory = static_cast<std::byte*>(first.iov_base);
    if (request.transfer->on_bytes) {
      ++request.transfer->unreported;
      arrivals_.push_back({request.transfer, memory, part});
    }
    first.iov_base = memory + part;
    first.iov_len -= part;
    n -= part;
    if (first.iov_len == 0 && request.num_memory > 1) {
      request.memory[0] = request.memory[1];
      --request.num_memory;
    }
  }
}

void TransferQueue::Finish(Request* request) {
  Lane& lane = lanes_[Index(request->direction)];
  lane.in_flight_bytes -= request->charged_bytes;
  --lane.in_flight;
  if (request->direction == IoDirection::kWrite) {
    write_share_ = std::min(write_share_ + request->charged_bytes, limits_.inflight_bytes);
  }
  TransferRef transfer = std::move(request->transfer);
  request->transfer = nullptr;
  request->staged = {};
  idle_.push_back(request);
  --transfer->in_flight;
  arrivals_.push_back({std::move(transfer)});
}

void TransferQueue::Report() {
  // What is called may stop transfers and add some.
  reporting_.swap(arrivals_);
  for (const Arrival& arrival : reporting_) {
    Transfer& transfer = *arrival.transfer;
    if (arrival.n > 0) {
      transfer.on_bytes(arrival.memory, arrival.n);
      --transfer.unreported;
    }
    EndIfIdle(arrival.transfer);
  }
  reporting_.clear();
}

void TransferQueue::EndIfIdle(const TransferRef& transfer) {
  if (transfer->ended || transfer->in_flight > 0 || transfer->unreported > 0) return;
  if (HasMore(*transfer) && !transfer->stopped) return;
  transfer->ended = true;
  const auto on_end = std::move(transfer->on_end);
  transfer->on_bytes = nullptr;
  on_end(transfer->status);
}

}  // namespace terrace
