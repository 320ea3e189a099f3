// BulkLoop: one reactor thread: epoll over its sockets, each of which gets a bounded turn, and a look at
// those that stand still. Add, Wake and Stop from every thread.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "terrace/bytes.h"
#include "terrace/status.h"
#include "terrace/time.h"

namespace terrace {

// What a loop drives, on its thread alone but for fd().
class BulkLoopSocket {
 public:
  virtual ~BulkLoopSocket() = default;
  virtual int fd() const = 0;
  // A turn with what epoll reported (EPOLLIN | EPOLLOUT after a wake, or where `again` was answered). Not OK:
  // the socket is over, and gets End.
  struct Turn {
    Status status;
    bool again = false;
    uint32_t events = 0;  // to wait for
  };
  virtual Turn Run(uint32_t events, MutableBytes scratch) = 0;
  // Something is under way that can stand still.
  virtual bool CanStall() const = 0;
  virtual bool IsStalled(Duration limit, TimePoint now) const = 0;
  virtual void End(const Status& status) = 0;
  // Callbacks that are due, also after End.
  virtual void RunCallbacks() = 0;
};

class BulkLoop {
 public:
  static Result<std::shared_ptr<BulkLoop>> Start(uint32_t number, Duration stall_limit);
  // Stop was called.
  ~BulkLoop();

  // The socket gets its first turn. False: stopped, and nothing was done.
  bool Add(std::shared_ptr<BulkLoopSocket> socket);
  bool Wake(std::shared_ptr<BulkLoopSocket> socket);
  // Ends every socket with kCancelled and then the thread. Not from the loop's own thread.
  void Stop();
  size_t num_sockets() const { return num_sockets_.load(std::memory_order_relaxed); }

 private:
  struct Posted {
    std::shared_ptr<BulkLoopSocket> socket;
    bool is_new;
  };
  struct Entry {
    std::shared_ptr<BulkLoopSocket> socket;
    uint32_t events = 0;  // epoll's
  };

  BulkLoop(int epoll_fd, int wake_fd, Duration stall_limit);
  bool Post(Posted posted);
  void RunThread();
  void Wait();
  // Takes what was posted; false: stop.
  bool TakePosted();
  void RunTurn(BulkLoopSocket* socket, uint32_t events);
  void EndSocket(BulkLoopSocket* socket, const Status& status);
  void EndStalled();

  const int epoll_fd_;
  const int wake_fd_;
  const Duration stall_limit_;
  std::atomic<size_t> num_sockets_{0};

  std::mutex mutex_;
  std::vector<Posted> posted_;
  bool signalled_ = false;  // the thread will look at posted_ before it sleeps
  bool stopping_ = false;

  // The thread's own.
  absl::flat_hash_map<BulkLoopSocket*, Entry> sockets_;
  std::vector<BulkLoopSocket*> again_;
  bool watching_ = false;  // some socket can stall
  TimePoint next_look_{};
  std::vector<std::byte> scratch_;

  std::thread thread_;  // last: uses all of the above
};

}  // namespace terrace
