// FrameFeed: the frames that a Get asked for, one by one in its order, fetched in windows ahead of who sends
// them, so that a large request holds few frames at a time.
//
// Threads: Take by one thread at a time; `on_ready` comes without a lock, on a thread of the store, or inside
// Take.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "connectors/server/session_table.h"
#include "proto/terrace/v1/cache.pb.h"
#include "terrace/frame_store.h"

namespace terrace::server {

// One object of a Get, checked.
struct WantedObject {
  ObjectId id;
  std::vector<FrameRange> ranges;
  uint64_t transfer = 0;
  uint64_t max_frame_bytes = 0;  // 0: any
  Status wrong;                  // not OK: what the request says of it makes no sense
};
// kInvalidArgument: too many objects, or a transfer number used twice.
Result<std::vector<WantedObject>> WantedOf(const v1::GetRequest& request);

struct FedFrame {
  size_t index = 0;  // of the object in the request
  FetchResult fetched;
  uint64_t bytes = 0;  // of the ranges asked for
};

class FrameFeed : public std::enable_shared_from_this<FrameFeed> {
 public:
  static constexpr size_t kWindow = 4;

  FrameFeed(NamespaceRef name_space, std::vector<WantedObject> wanted, TimePoint deadline, CancelFlag cancel);
  // The next one; its status also says what the request got wrong. Empty: all were taken, or the next is not
  // here yet: `on_ready` comes once then.
  std::optional<FedFrame> Take(const std::function<void()>& on_ready);
  bool finished() const;
  const std::vector<WantedObject>& wanted() const { return wanted_; }

 private:
  void Fetch(size_t begin, size_t end);
  FedFrame Checked(size_t index, FetchResult fetched) const;

  const NamespaceRef name_space_;
  const std::vector<WantedObject> wanted_;
  const TimePoint deadline_;
  const CancelFlag cancel_;
  mutable std::mutex mutex_;
  std::deque<FedFrame> ready_;
  size_t num_asked_ = 0;
  size_t num_taken_ = 0;
  bool fetching_ = false;
  std::function<void()> on_ready_;
};

}  // namespace terrace::server
