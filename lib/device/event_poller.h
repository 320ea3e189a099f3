// EventPoller: tells when events of devices are done, by asking them. One thread, made with it; it sleeps
// without a break while nothing is awaited, and asks with pauses of at most 50 us while something is.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "terrace/device.h"
#include "terrace/status.h"

namespace terrace {

class EventPoller {
 public:
  EventPoller();
  // Waits for every event that was added, and calls its `done`.
  ~EventPoller();
  EventPoller(const EventPoller&) = delete;
  EventPoller& operator=(const EventPoller&) = delete;

  // `done` is called once, on the poller's thread, never under a lock of it: OK, or the error with which the
  // device's work ended. By then the poller has let go of the event. It posts work and returns; it throws
  // nothing (the process would end) and does not destroy the poller. From every thread, `done` included, also
  // while the destructor waits.
  void Add(std::shared_ptr<Event> event, std::function<void(const Status&)> done);

 private:
  struct Awaited {
    std::shared_ptr<Event> event;
    std::function<void(const Status&)> done;
  };
  void Run();
  // Calls and removes those whose events are done, the others keep their order; how many they were.
  static size_t CallDone(std::vector<Awaited>& awaited);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Awaited> added_;  // guarded by mutex_; taken over by the thread
  bool is_ending_ = false;      // guarded by mutex_
  std::thread thread_;
};

}  // namespace terrace
