// CommitThread: writes records to the manifest, in the order in which they are given, off the request path.
// What waits is written as one group: one log write, and one sync if any of them asked for it.
//
// Enqueue is called from the owner's thread; `done` comes back through `post` onto that thread, in the same
// order.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "backends/nvme/manifest.h"
#include "terrace/status.h"

namespace terrace {

struct CommitTask {
  std::vector<RecordChange> changes;
  std::vector<int> sync_files;    // fdatasync'ed before the records are written
  bool sync = false;              // the records are durable before `done`
  std::function<Status()> alone;  // instead of the above: run by itself, after all before it
  std::function<void(const Status&)> done;
};

class CommitThread {
 public:
  using Post = std::function<void(std::function<void()>)>;

  CommitThread(Manifest* manifest, Post post);
  ~CommitThread();  // after everything enqueued has been done

  void Enqueue(CommitTask task);

 private:
  void Run();
  void CommitGroup(std::span<CommitTask> group);
  void Answer(std::span<CommitTask> tasks, std::span<const Status> statuses);

  Manifest* const manifest_;
  const Post post_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<CommitTask> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

// fdatasync, as a Status.
Status SyncFile(int fd);

}  // namespace terrace
