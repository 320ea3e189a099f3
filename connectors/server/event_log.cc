#include "connectors/server/event_log.h"

namespace terrace::server {
namespace {

size_t ContentBytes(const KvEvent& event) {
  if (!event.content) return 0;
  size_t bytes = event.content->tokens.size() * sizeof(Token);
  for (const Item& item : event.content->items) bytes += sizeof(item) + item.bytes.size();
  return bytes;
}

}  // namespace

EventLog::EventLog(size_t max_events, size_t max_bytes) : max_events_(max_events), max_bytes_(max_bytes) {}

void EventLog::Record(KvEvent event) noexcept {
  const std::lock_guard lock(mutex_);
  bytes_ += ContentBytes(event);
  events_.push_back({++last_sequence_, std::move(event)});
  while (events_.size() > max_events_ || (bytes_ > max_bytes_ && events_.size() > 1)) {
    bytes_ -= ContentBytes(events_.front().event);
    events_.pop_front();
  }
}

std::vector<NumberedEvent> EventLog::ReadAfter(uint64_t after, size_t limit, bool& missed) const {
  const std::lock_guard lock(mutex_);
  const uint64_t first = last_sequence_ - events_.size() + 1;
  missed = after + 1 < first;
  std::vector<NumberedEvent> found;
  for (size_t i = missed ? 0 : after + 1 - first; i < events_.size() && found.size() < limit; ++i) {
    found.push_back(events_[i]);
  }
  return found;
}

uint64_t EventLog::last_sequence() const {
  const std::lock_guard lock(mutex_);
  return last_sequence_;
}

}  // namespace terrace::server
