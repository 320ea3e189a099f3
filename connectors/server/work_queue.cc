#include "connectors/server/work_queue.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace terrace::server {
namespace {

constexpr size_t kLaneShare = 4;  // a lane may fill this part of the queue

}  // namespace

WorkQueue::WorkQueue(const std::string& name, size_t threads, size_t max_waiting)
    : max_waiting_(max_waiting) {
  for (size_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this, name, max_running = std::max<size_t>(threads, 2) - 1] {
      pthread_setname_np(pthread_self(), name.c_str());
      Run(max_running);
    });
  }
}

WorkQueue::~WorkQueue() { Stop(); }

bool WorkQueue::Post(std::function<void()> task, const std::string& lane) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || num_waiting_ >= max_waiting_) return false;
    auto& waiting = lanes_[lane].waiting;
    if (!lane.empty() && waiting.size() >= max_waiting_ / kLaneShare) return false;
    waiting.push_back(std::move(task));
    ++num_waiting_;
  }
  wake_.notify_one();
  return true;
}

void WorkQueue::Stop() {
  std::vector<std::deque<std::function<void()>>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (auto& [name, lane] : lanes_) dropped.push_back(std::exchange(lane.waiting, {}));
    num_waiting_ = 0;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

WorkQueue::Lanes::iterator WorkQueue::Next(size_t max_running) {
  auto lane = lanes_.upper_bound(last_lane_);
  for (size_t i = 0; i < lanes_.size(); ++i, ++lane) {
    if (lane == lanes_.end()) lane = lanes_.begin();
    const bool may_run = lane->first.empty() || lane->second.running < max_running;
    if (may_run && !lane->second.waiting.empty()) return lane;
  }
  return lanes_.end();
}

void WorkQueue::Run(size_t max_running) {
  std::unique_lock lock(mutex_);
  while (true) {
    auto lane = lanes_.end();
    wake_.wait(lock, [&] {
      lane = Next(max_running);
      return stopped_ || lane != lanes_.end();
    });
    if (stopped_) return;
    std::function<void()> task = std::move(lane->second.waiting.front());
    lane->second.waiting.pop_front();
    ++lane->second.running;
    --num_waiting_;
    last_lane_ = lane->first;
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
    // It stays where it is while something of it runs.
    if (--lane->second.running == 0 && lane->second.waiting.empty()) lanes_.erase(lane);
  }
}

}  // namespace terrace::server
