#include "connectors/server/event_log.h"

namespace terrace::server {

EventLog::EventLog(size_t max_events) : max_events_(max_events) {}

void EventLog::Record(KvEvent event) noexcept {
  const std::lock_guard lock(mutex_);
  events_.push_back({++last_sequence_, std::move(event)});
  if (events_.size() > max_events_) events_.pop_front();
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
