#include "backends/nvme/read_window.h"

#include <cstdlib>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"

namespace terrace {
namespace {

constexpr size_t kAlignment = 4096;
// Small objects: bytes alone would let more of them in than the engine is deep.
constexpr size_t kMaxReads = kMaxRequests;

}  // namespace

Result<std::unique_ptr<ReadWindow>> ReadWindow::Open(Disk& disk, uint64_t window_bytes,
                                                     uint64_t request_bytes) {
  TERRACE_CHECK(window_bytes % kAlignment == 0 && request_bytes % kAlignment == 0);
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<IoEngine> engine, disk.MakeEngine(kMaxRequests));
  return std::unique_ptr<ReadWindow>(new ReadWindow(std::move(engine), window_bytes, request_bytes));
}

ReadWindow::ReadWindow(std::unique_ptr<IoEngine> engine, uint64_t window_bytes, uint64_t request_bytes)
    : engine_(std::move(engine)),
      queue_(engine_.get(), TransferLimits{request_bytes, window_bytes}),
      window_bytes_(window_bytes),
      memory_(static_cast<std::byte*>(std::aligned_alloc(kAlignment, window_bytes))) {
  TERRACE_CHECK(memory_ != nullptr) << "out of memory: " << window_bytes;
}

ReadWindow::~ReadWindow() {
  for (const std::unique_ptr<Read>& read : reads_) WaitFor(*read);
}

std::optional<uint64_t> ReadWindow::Room(uint64_t bytes) const {
  if (reads_.empty()) return bytes <= window_bytes_ ? std::optional<uint64_t>(0) : std::nullopt;
  if (reads_.size() >= kMaxReads) return std::nullopt;
  const uint64_t oldest = reads_.front()->offset;
  const uint64_t end = reads_.back()->offset + reads_.back()->length;
  if (reads_.back()->offset >= oldest) {
    // Used in the middle: behind it, or else in front of it.
    if (bytes <= window_bytes_ - end) return end;
    return bytes < oldest ? std::optional<uint64_t>(0) : std::nullopt;
  }
  return bytes < oldest - end ? std::optional<uint64_t>(end) : std::nullopt;
}

bool ReadWindow::Add(std::span<const Span> spans) {
  uint64_t bytes = 0;
  for (const Span& span : spans) bytes += span.length;
  const std::optional<uint64_t> offset = Room(bytes);
  if (!offset) return false;
  auto read = std::make_unique<Read>();
  read->offset = *offset;
  read->length = bytes;
  read->transfer = std::make_shared<Transfer>();
  read->transfer->direction = IoDirection::kRead;
  std::byte* at = memory_.get() + *offset;
  for (const Span& span : spans) {
    read->transfer->spans.push_back({span.fd, span.offset, span.length, at});
    at += span.length;
  }
  read->transfer->on_end = [raw = read.get()](const Status& status) {
    raw->ended = true;
    raw->status = status;
  };
  queue_.Add(read->transfer);
  reads_.push_back(std::move(read));
  // An engine may start what it was given only when it is waited for: the device must not idle while the
  // oldest read is looked at.
  Reap(Duration::zero());
  return true;
}

ReadWindow::Done ReadWindow::Front() {
  TERRACE_CHECK(!reads_.empty());
  const Read& read = *reads_.front();
  WaitFor(read);
  return {read.status, Bytes(memory_.get() + read.offset, read.length)};
}

void ReadWindow::Release() {
  TERRACE_CHECK(!reads_.empty() && reads_.front()->ended);
  reads_.pop_front();
}

void ReadWindow::WaitFor(const Read& read) {
  while (!read.ended) Reap(std::nullopt);
}

void ReadWindow::Reap(std::optional<Duration> timeout) {
  queue_.Pump();
  completions_.clear();
  engine_->Wait(timeout, &completions_);
  for (const IoCompletion& completion : completions_) queue_.OnCompletion(completion);
  queue_.Report();
}

}  // namespace terrace
