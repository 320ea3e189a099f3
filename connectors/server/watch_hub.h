// WatchHub: the readers of Watch, looked after by the server's ticker: events are recorded under a manager's
// lock, so that nobody can be woken there.
//
// Threads: every call from every thread.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace terrace::server {

class EventReader {
 public:
  virtual ~EventReader() = default;
  // Sends what is new, if anything, and if nothing is on its way; does not block.
  virtual void Poll() = 0;
  // The server ends.
  virtual void Leave() = 0;
};

class WatchHub {
 public:
  void Add(const std::shared_ptr<EventReader>& reader) {
    const std::lock_guard lock(mutex_);
    readers_.push_back(reader);
  }
  void PollAll() {
    for (const auto& reader : Living()) reader->Poll();
  }
  void LeaveAll() {
    for (const auto& reader : Living()) reader->Leave();
  }
  size_t size() { return Living().size(); }

 private:
  std::vector<std::shared_ptr<EventReader>> Living() {
    std::vector<std::shared_ptr<EventReader>> living;
    const std::lock_guard lock(mutex_);
    std::erase_if(readers_, [&living](const std::weak_ptr<EventReader>& held) {
      std::shared_ptr<EventReader> reader = held.lock();
      if (!reader) return true;
      living.push_back(std::move(reader));
      return false;
    });
    return living;
  }

  std::mutex mutex_;
  std::vector<std::weak_ptr<EventReader>> readers_;
};

}  // namespace terrace::server
