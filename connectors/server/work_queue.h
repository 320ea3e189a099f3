// WorkQueue: a few named threads for what may take its time (publishing, erasing, scanning), so that the
// threads of gRPC and of the bulk reactor never wait. Work of one lane (a tenant's) leaves one thread and
// most of the room to the others, and lanes take turns: who has slow work keeps nobody else waiting for it.
//
// Threads: every call from every thread. Tasks do not throw.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace terrace::server {

class WorkQueue {
 public:
  // `name` is that of the threads: at most 15 bytes.
  WorkQueue(const std::string& name, size_t threads, size_t max_waiting);
  ~WorkQueue();  // Stop
  // False: full or stopped; the task is destroyed. The empty lane has no limits of its own.
  bool Post(std::function<void()> task, const std::string& lane = {});
  // Waits for the tasks that run; the others are destroyed.
  void Stop();

 private:
  struct Lane {
    std::deque<std::function<void()>> waiting;
    size_t running = 0;
  };
  using Lanes = std::map<std::string, Lane>;

  void Run(size_t max_running);
  // With the lock held: the lane whose turn it is; end() where none may run now.
  Lanes::iterator Next(size_t max_running);

  const size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable wake_;
  Lanes lanes_;  // in which something waits or runs
  std::string last_lane_;
  size_t num_waiting_ = 0;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace terrace::server
