// ThreadPool: one queue, n threads. Unbounded on purpose: Post must neither block an engine's thread nor lose
// work; the callers bound what they have in flight (buffers of the pool).
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "lib/base/status_macros.h"
#include "terrace/executor.h"

namespace terrace {
namespace {

// Shared with the threads: a pool whose last reference is dropped by its own work must not free the queue
// under the thread that runs this work.
struct WorkQueue {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> work;  // in order of Post
  bool stopping = false;
  uint64_t exceptions = 0;
};

void CountException(WorkQueue& queue, const char* what) {
  uint64_t count;
  {
    std::lock_guard lock(queue.mutex);
    count = ++queue.exceptions;
  }
  // Once: work that fails all the time must not flood the log.
  if (count == 1) std::fprintf(stderr, "terrace: E executor: an exception left posted work: %s\n", what);
}

void RunWork(WorkQueue& queue, std::function<void()> work) {
  try {
    work();
    work = nullptr;  // the captures' destructors may throw as well
  } catch (const std::exception& error) {
    CountException(queue, error.what());
  } catch (...) {
    CountException(queue, "not a std::exception");
  }
}

void RunThread(const std::shared_ptr<WorkQueue>& queue, const std::string& name, int nice_value) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  if (nice_value != 0) {
    const int tid = gettid();
    const int now = getpriority(PRIO_PROCESS, static_cast<id_t>(tid));
    // A refusal (no right to raise the priority) leaves the inherited value, as documented.
    (void)setpriority(PRIO_PROCESS, static_cast<id_t>(tid), now + nice_value);
  }
  std::unique_lock lock(queue->mutex);
  while (true) {
    queue->wake.wait(lock, [&] { return queue->stopping || !queue->work.empty(); });
    if (queue->work.empty()) return;
    std::function<void()> work = std::move(queue->work.front());
    queue->work.pop_front();
    lock.unlock();
    RunWork(*queue, std::move(work));
    lock.lock();
  }
}

class ThreadPool final : public Executor {
 public:
  ~ThreadPool() override {
    {
      std::lock_guard lock(queue_->mutex);
      queue_->stopping = true;
    }
    queue_->wake.notify_all();
    for (std::thread& thread : threads_) {
      if (thread.get_id() == std::this_thread::get_id()) {
        thread.detach();  // this very work dropped the pool; the thread drains the queue and ends
      } else {
        thread.join();
      }
    }
    std::lock_guard lock(queue_->mutex);
    if (queue_->exceptions > 1) {
      std::fprintf(stderr, "terrace: E executor: %llu exceptions left posted work\n",
                   static_cast<unsigned long long>(queue_->exceptions));
    }
  }

  Status Start(const ThreadPoolOptions& options) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (const int cpu : options.cpu_set) CPU_SET(cpu, &cpus);
    for (int i = 0; i < options.num_threads; ++i) {
      std::string name = options.name + "/" + std::to_string(i);
      try {
        threads_.emplace_back([queue = queue_, name = std::move(name), nice_value = options.nice_value] {
          RunThread(queue, name, nice_value);
        });
      } catch (const std::system_error& error) {
        return UnavailableError("thread " + std::to_string(i) + " of the pool: " + error.what());
      }
      if (options.cpu_set.empty()) continue;
      const int code = pthread_setaffinity_np(threads_.back().native_handle(), sizeof(cpus), &cpus);
      if (code != 0) return InvalidArgumentError(std::string("cpu_set: ") + std::strerror(code));
    }
    return OkStatus();
  }

  void Post(std::function<void()> work) override {
    {
      std::lock_guard lock(queue_->mutex);
      queue_->work.push_back(std::move(work));
    }
    queue_->wake.notify_one();
  }

 private:
  const std::shared_ptr<WorkQueue> queue_ = std::make_shared<WorkQueue>();
  std::vector<std::thread> threads_;
};

}  // namespace

Status ThreadPoolOptions::Validate() const {
  if (num_threads < 1 || num_threads > 256) {
    return InvalidArgumentError("num_threads = " + std::to_string(num_threads) + ", allowed 1..256");
  }
  if (nice_value < -40 || nice_value > 40) {
    return InvalidArgumentError("nice_value = " + std::to_string(nice_value) + ", allowed -40..40");
  }
  for (const int cpu : cpu_set) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) {
      return InvalidArgumentError("cpu_set holds " + std::to_string(cpu) + ", allowed 0.." +
                                  std::to_string(CPU_SETSIZE - 1));
    }
  }
  return OkStatus();
}

Result<std::unique_ptr<Executor>> MakeThreadPool(const ThreadPoolOptions& options) {
  TERRACE_RETURN_IF_ERROR(options.Validate());
  auto pool = std::make_unique<ThreadPool>();
  TERRACE_RETURN_IF_ERROR(pool->Start(options));
  return std::unique_ptr<Executor>(std::move(pool));
}

}  // namespace terrace
