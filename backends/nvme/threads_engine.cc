// ThreadsEngine: an IoEngine on a few threads that wait in preadv and pwritev, for systems that forbid
// io_uring.
#include <pthread.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "backends/nvme/io_engine.h"
#include "lib/base/check.h"

namespace terrace {
namespace {

// Requests of megabytes: this many keep a device busy, more only wait beside each other.
constexpr size_t kNumThreads = 4;
// What a condition variable can add to any present time.
constexpr Duration kLongestWait = std::chrono::hours(24);

class ThreadsEngine : public IoEngine {
 public:
  ThreadsEngine(uint32_t depth, std::string fallback) : depth_(depth), fallback_(std::move(fallback)) {}

  // What has begun is finished, what waits is dropped.
  ~ThreadsEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Status Init() {
    try {
      for (size_t i = 0; i < kNumThreads; ++i) threads_.emplace_back([this] { Run(); });
    } catch (const std::system_error& error) {
      return UnavailableError(std::string("no threads for I/O: ") + error.what());
    }
    return OkStatus();
  }

  IoEngineMode mode() const override { return {.engine = "threads", .fallback = fallback_}; }

  void Start(IoRequest* request) override {
    {
      const std::lock_guard lock(mutex_);
      TERRACE_CHECK(outstanding_ < depth_) << "more requests than the engine's depth";
      ++outstanding_;
      waiting_.push_back(request);
    }
    work_.notify_one();
  }

  void Wait(std::optional<Duration> timeout, std::vector<IoCompletion>* completions) override {
    std::unique_lock lock(mutex_);
    const auto is_over = [this] { return !done_.empty() || woken_; };
    if (timeout) {
      changed_.wait_for(lock, std::min(*timeout, kLongestWait), is_over);
    } else {
      changed_.wait(lock, is_over);
    }
    woken_ = false;
    outstanding_ -= done_.size();
    completions->insert(completions->end(), done_.begin(), done_.end());
    done_.clear();
  }

  void Wake() override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    changed_.notify_one();
  }

 private:
  void Run() {
    pthread_setname_np(pthread_self(), "terrace-nvme-io");
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      IoRequest* request = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const int64_t result = Transfer(*request);
      lock.lock();
      done_.push_back({request, result});
      changed_.notify_one();
    }
  }

  static int64_t Transfer(const IoRequest& request) {
    const auto offset = static_cast<off_t>(request.offset);
    const auto num_memory = static_cast<int>(request.num_memory);
    const ssize_t n = request.direction == IoDirection::kRead
                          ? preadv(request.fd, request.memory.data(), num_memory, offset)
                          : pwritev(request.fd, request.memory.data(), num_memory, offset);
    return n >= 0 ? n : -errno;
  }

  const uint32_t depth_;
  const std::string fallback_;
  std::mutex mutex_;                 // all below but threads_
  std::condition_variable work_;     // for the threads: waiting_, stopping_
  std::condition_variable changed_;  // for the owner: done_, woken_
  std::deque<IoRequest*> waiting_;
  std::vector<IoCompletion> done_;
  uint32_t outstanding_ = 0;
  bool woken_ = false;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<IoEngine>> MakeThreadsEngine(uint32_t depth, std::string fallback) {
  auto engine = std::make_unique<ThreadsEngine>(depth, std::move(fallback));
  if (Status status = engine->Init(); !status.ok()) return status;
  return std::unique_ptr<IoEngine>(std::move(engine));
}

}  // namespace terrace
