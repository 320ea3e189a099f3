#include "lib/wire/bulk_sender.h"

#include <algorithm>
#include <string>
#include <utility>

namespace terrace {
namespace {

// What the kernel is given at once.
constexpr uint64_t kStepBytes = uint64_t{1} << 20;
constexpr uint64_t kTurnBytes = uint64_t{2} << 20;

Status CheckRanges(const BufferRef& frame, const std::vector<FrameRange>& ranges) {
  if (!frame || ranges.empty()) return InvalidArgumentError("ranges: at least one, of a frame");
  const uint64_t size = frame.frame().size();
  for (const FrameRange& range : ranges) {
    if (range.length == 0 || range.length % kFrameAlignment != 0 ||
        range.frame_offset % kFrameAlignment != 0) {
      return InvalidArgumentError("ranges: multiples of 4096, and not empty");
    }
    if (range.length > size || range.frame_offset > size - range.length) {
      return InvalidArgumentError("ranges: outside the frame");
    }
  }
  return OkStatus();
}

}  // namespace

uint64_t BulkSender::BytesLeft(const Item& item) {
  uint64_t bytes = 0;
  for (size_t i = item.next; i < item.ranges.size(); ++i) bytes += item.ranges[i].length;
  return bytes;
}

bool BulkSender::Add(uint64_t transfer, BufferRef frame, std::vector<FrameRange> ranges, Sent sent) {
  Item item{
      .transfer = transfer, .frame = std::move(frame), .ranges = std::move(ranges), .sent = std::move(sent)};
  const Status checked = CheckRanges(item.frame, item.ranges);
  if (checked.ok()) return Enqueue(std::move(item));
  const std::lock_guard lock(mutex_);
  due_.emplace_back(std::move(item.sent), checked);
  return true;
}

bool BulkSender::AddAbort(uint64_t transfer, BulkCode code) {
  return Enqueue({.kind = BulkKind::kAbort, .transfer = transfer, .code = code});
}

bool BulkSender::Enqueue(Item item) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || queue_.size() >= max_queued_) {
    const Status full =
        ResourceExhaustedError("bulk connection: " + std::to_string(max_queued_) + " sends wait");
    due_.emplace_back(std::move(item.sent), stopped_ ? *stopped_ : full);
    return true;
  }
  queued_bytes_ += BytesLeft(item);
  queue_.push_back(std::move(item));
  return !std::exchange(awake_, true);
}

bool BulkSender::Cancel(uint64_t transfer) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return false;
  bool dropped = false;
  const Status cancelled = CancelledError("the send was cancelled");
  for (auto item = queue_.begin(); item != queue_.end();) {
    if (item->kind == BulkKind::kData && item->transfer == transfer) {
      Finish(*item, cancelled);
      item = queue_.erase(item);
      dropped = true;
    } else {
      ++item;
    }
  }
  // The message under way goes on, since the peer counts on its length; no other of the item follows.
  if (current_ && current_->kind == BulkKind::kData && current_->transfer == transfer &&
      BytesLeft(*current_) > 0) {
    current_->cancelled = true;
    queued_bytes_ -= BytesLeft(*current_);
    current_->ranges.resize(current_->next);
    dropped = true;
  }
  if (!dropped) return false;
  queue_.push_front({.kind = BulkKind::kAbort, .transfer = transfer, .code = BulkCode::kGivenUp});
  awake_ = true;
  return true;
}

void BulkSender::Finish(Item& item, const Status& status) {
  queued_bytes_ -= BytesLeft(item);
  item.frame.Reset();
  if (item.sent) due_.emplace_back(std::move(item.sent), status);
}

void BulkSender::RunCallbacks() {
  std::vector<std::pair<Sent, Status>> due;
  {
    const std::lock_guard lock(mutex_);
    due.swap(due_);
  }
  for (const auto& [sent, status] : due) {
    if (sent) sent(status);
  }
}

bool BulkSender::NextMessage() {
  const std::lock_guard lock(mutex_);
  if (current_ && current_->next == current_->ranges.size()) {
    Finish(*current_, current_->cancelled ? CancelledError("the send was cancelled") : OkStatus());
    current_.reset();
  }
  if (!current_) {
    if (queue_.empty()) {
      awake_ = false;
      return false;
    }
    current_ = std::move(queue_.front());
    queue_.pop_front();
  }
  OpenMessage();
  return true;
}

void BulkSender::OpenMessage() {
  BulkMessage message{.kind = current_->kind, .transfer = current_->transfer, .code = current_->code};
  payload_ = {};
  if (message.kind == BulkKind::kData) {
    FrameRange& range = current_->ranges[current_->next];
    message.offset = range.frame_offset;
    message.length = std::min(range.length, max_message_bytes_);
    payload_ = current_->frame.frame().subspan(message.offset, message.length);
    range.frame_offset += message.length;
    range.length -= message.length;
    if (range.length == 0) ++current_->next;
  }
  header_ = EncodeBulkMessage(message);
  header_sent_ = 0;
  payload_sent_ = 0;
}

BulkSender::Turn BulkSender::Send(BulkStream& stream) {
  Turn turn;
  for (uint64_t given = 0; given < kTurnBytes;) {
    if (!under_way_) under_way_ = NextMessage();
    if (!under_way_) return turn;
    const Bytes payload = payload_.subspan(payload_sent_);
    const size_t step = std::min<uint64_t>(payload.size(), kStepBytes);
    const size_t of_header = kBulkMessageBytes - header_sent_;
    // Neither is written to.
    std::array<iovec, 2> parts{iovec{header_.data() + header_sent_, of_header},
                               iovec{const_cast<std::byte*>(payload.data()), step}};
    const size_t first = of_header == 0 ? 1 : 0;
    const size_t n_parts = (of_header > 0 ? 1 : 0) + (step > 0 ? 1 : 0);
    const BulkMove move = stream.Write(std::span<const iovec>(parts).subspan(first, n_parts));
    turn.moved |= move.n > 0;
    given += move.n;
    const size_t header_moved = std::min(move.n, of_header);
    header_sent_ += header_moved;
    payload_sent_ += move.n - header_moved;
    queued_bytes_ -= move.n - header_moved;
    if (header_sent_ == kBulkMessageBytes && payload_sent_ == payload_.size()) under_way_ = false;
    turn.status = move.status;
    if (!move.status.ok() || move.blocked || move.n < of_header + step) return turn;
  }
  turn.again = true;
  return turn;
}

void BulkSender::Stop(const Status& status) {
  const std::lock_guard lock(mutex_);
  stopped_ = status;
  if (current_) Finish(*current_, status);
  for (Item& item : queue_) Finish(item, status);
  current_.reset();
  queue_.clear();
  payload_ = {};
  under_way_ = false;
  queued_bytes_ = 0;
}

}  // namespace terrace
