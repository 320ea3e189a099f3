#include "connectors/server/frame_feed.h"

#include <algorithm>

#include "connectors/server/message_checks.h"

namespace terrace::server {

Result<std::vector<WantedObject>> WantedOf(const v1::GetRequest& request) {
  if (static_cast<uint32_t>(request.objects_size()) > kMaxBatch) {
    return InvalidArgumentError("objects: at most " + std::to_string(kMaxBatch));
  }
  std::vector<WantedObject> wanted;
  absl::flat_hash_set<uint64_t> transfers;
  for (const v1::GetObject& object : request.objects()) {
    WantedObject want;
    want.transfer = object.transfer();
    want.max_frame_bytes = object.max_frame_bytes();
    if (!transfers.insert(want.transfer).second) {
      return InvalidArgumentError("objects.transfer: the same number twice");
    }
    const Result<ObjectId> id = ObjectIdOf(object.name());
    Result<std::vector<FrameRange>> ranges = RangesOf(object);
    if (!id.ok()) {
      want.wrong = id.status();
    } else if (!ranges.ok()) {
      want.wrong = ranges.status();
    } else {
      want.id = *id;
      want.ranges = std::move(*ranges);
    }
    wanted.push_back(std::move(want));
  }
  return wanted;
}

FrameFeed::FrameFeed(NamespaceRef name_space, std::vector<WantedObject> wanted, TimePoint deadline,
                     CancelFlag cancel)
    : name_space_(std::move(name_space)),
      wanted_(std::move(wanted)),
      deadline_(deadline),
      cancel_(std::move(cancel)) {}

std::optional<FedFrame> FrameFeed::Take(const std::function<void()>& on_ready) {
  while (true) {
    size_t begin = 0;
    size_t end = 0;
    std::optional<FedFrame> taken;
    {
      const std::lock_guard lock(mutex_);
      if (!ready_.empty()) {
        taken = std::move(ready_.front());
        ready_.pop_front();
        ++num_taken_;
      }
      if (!fetching_ && ready_.size() < kWindow && num_asked_ < wanted_.size()) {
        begin = num_asked_;
        end = std::min(wanted_.size(), begin + kWindow);
        num_asked_ = end;
        fetching_ = true;
      } else if (!taken && num_taken_ < wanted_.size()) {
        on_ready_ = on_ready;
      }
    }
    if (end > begin) Fetch(begin, end);
    // What was asked for just now may be here already; if not, the next turn leaves a callback.
    if (taken || end == begin) return taken;
  }
}

void FrameFeed::Fetch(size_t begin, size_t end) {
  std::vector<FetchOp> ops;
  std::vector<size_t> places;  // of the operations in the request
  for (size_t i = begin; i < end; ++i) {
    if (!wanted_[i].wrong.ok()) continue;
    ops.push_back({wanted_[i].id, deadline_, cancel_});
    places.push_back(i);
  }
  auto done = [self = shared_from_this(), begin, end, places](std::vector<FetchResult> results) {
    std::vector<FetchResult> in_order(end - begin);
    for (size_t i = begin; i < end; ++i) in_order[i - begin].status = self->wanted_[i].wrong;
    for (size_t k = 0; k < places.size() && k < results.size(); ++k) {
      in_order[places[k] - begin] = std::move(results[k]);
    }
    std::function<void()> on_ready;
    {
      const std::lock_guard lock(self->mutex_);
      for (size_t i = begin; i < end; ++i) {
        self->ready_.push_back(self->Checked(i, std::move(in_order[i - begin])));
      }
      self->fetching_ = false;
      on_ready.swap(self->on_ready_);
    }
    if (on_ready) on_ready();
  };
  if (ops.empty()) return done({});
  name_space_->store->Fetch(std::move(ops), std::move(done));
}

FedFrame FrameFeed::Checked(size_t index, FetchResult fetched) const {
  FedFrame fed{index, std::move(fetched), 0};
  if (!fed.fetched.status.ok()) return fed;
  const WantedObject& want = wanted_[index];
  const Result<uint64_t> bytes = BytesWithin(want.ranges, fed.fetched.frame_bytes);
  if (!bytes.ok()) {
    fed.fetched.status = bytes.status();
  } else if (want.max_frame_bytes != 0 && fed.fetched.frame_bytes > want.max_frame_bytes) {
    fed.fetched.status = InvalidArgumentError("the frame has more than max_frame_bytes");
  } else {
    fed.bytes = *bytes;
    return fed;
  }
  fed.fetched.frame.Reset();
  return fed;
}

bool FrameFeed::finished() const {
  const std::lock_guard lock(mutex_);
  return num_taken_ == wanted_.size();
}

}  // namespace terrace::server
