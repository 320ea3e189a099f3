// EventLog: the last events of a namespace, numbered, for the readers of Watch. Bounded: what is too old is
// gone, and a reader that wanted it is told so.
//
// Threads: every call from every thread. Record comes under the manager's lock and only appends; readers are
// woken on the thread of whoever calls Notify (the server's ticker, or Record's executor).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "terrace/kv_event.h"

namespace terrace::server {

struct NumberedEvent {
  uint64_t sequence = 0;
  KvEvent event;
};

class EventLog : public KvEventSink {
 public:
  // `max_bytes`: of the events' tokens and items, which outlive their objects here.
  explicit EventLog(size_t max_events = 65536, size_t max_bytes = size_t{64} << 20);
  void Record(KvEvent event) noexcept override;
  // Up to `limit` events after `after`, oldest first. `missed`: some after `after` are gone already.
  std::vector<NumberedEvent> ReadAfter(uint64_t after, size_t limit, bool& missed) const;
  uint64_t last_sequence() const;

 private:
  const size_t max_events_;
  const size_t max_bytes_;
  mutable std::mutex mutex_;
  std::deque<NumberedEvent> events_;
  size_t bytes_ = 0;
  uint64_t last_sequence_ = 0;
};

}  // namespace terrace::server
