// BulkSender: what goes out on one bulk connection: a queue that every thread adds to, and the message that
// is under way, which belongs to the connection's reactor thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "lib/wire/bulk_message.h"
#include "lib/wire/bulk_stream.h"
#include "terrace/backend.h"
#include "terrace/bytes.h"
#include "terrace/status.h"

namespace terrace {

class BulkSender {
 public:
  using Sent = std::function<void(const Status&)>;

  BulkSender(uint64_t max_message_bytes, size_t max_queued)
      : max_message_bytes_(max_message_bytes), max_queued_(max_queued) {}

  // From every thread. True: the reactor thread is to be woken, for Send or for RunCallbacks.
  bool Add(uint64_t transfer, BufferRef frame, std::vector<FrameRange> ranges, Sent sent);
  bool AddAbort(uint64_t transfer, BulkCode code);
  bool Cancel(uint64_t transfer);
  uint64_t queued_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }

  // On the reactor thread, or after its end: calls the `sent` that are due, outside the mutex.
  void RunCallbacks();

  // On the reactor thread: one turn, as BulkReceiver::Receive.
  struct Turn {
    Status status;
    bool again = false;
    bool moved = false;
  };
  Turn Send(BulkStream& stream);
  // A message is under way or waits.
  bool pending() const { return under_way_; }
  // Everything ends with `status`, and whatever is added later.
  void Stop(const Status& status);

 private:
  struct Item {
    BulkKind kind = BulkKind::kData;
    uint64_t transfer = 0;
    BulkCode code = BulkCode::kOk;
    BufferRef frame;
    std::vector<FrameRange> ranges;  // what is left of them, from `next` on
    size_t next = 0;
    Sent sent;
    bool cancelled = false;
  };

  bool Enqueue(Item item);
  void Finish(Item& item, const Status& status);
  bool NextMessage();
  void OpenMessage();
  static uint64_t BytesLeft(const Item& item);

  const uint64_t max_message_bytes_;
  const size_t max_queued_;
  std::atomic<uint64_t> queued_bytes_{0};

  std::mutex mutex_;
  std::deque<Item> queue_;
  std::optional<Item> current_;  // of the message under way
  std::vector<std::pair<Sent, Status>> due_;
  bool awake_ = false;  // the reactor thread looks at the queue before it sleeps
  std::optional<Status> stopped_;

  // The message under way: the reactor thread's own.
  std::array<std::byte, kBulkMessageBytes> header_;
  Bytes payload_;
  size_t header_sent_ = 0;
  size_t payload_sent_ = 0;
  bool under_way_ = false;
};

}  // namespace terrace
