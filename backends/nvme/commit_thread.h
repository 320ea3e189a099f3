// CommitThread: writes records to the manifest, in the order in which they are given, off the request path.
// What waits is written as one group: one log write, as durable as the strongest of them asks.
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

#include "backends/nvme/disk.h"
#include "backends/nvme/erased_log.h"
#include "backends/nvme/manifest.h"
#include "terrace/status.h"

namespace terrace {

struct CommitTask {
  std::vector<RecordChange> changes;
  std::vector<ErasedEntry> erased;    // logged, durably, before the records are written
  std::vector<DiskFile*> sync_files;  // synced before the records are written
  RecordWrite write = RecordWrite::kLogged;
  std::function<Status()> alone;  // instead of the above: run by itself, after all before it
  std::function<void(const Status&)> done;
};

class CommitThread {
 public:
  using Post = std::function<void(std::function<void()>)>;
  // Logs all that a group erases.
  using LogErased = std::function<Status(std::span<const ErasedEntry>)>;

  // Without `own_thread` its groups run in RunGroup, on the caller's.
  CommitThread(Manifest* manifest, LogErased log_erased, Post post, bool own_thread = true);
  ~CommitThread();  // after everything enqueued has been done

  // All of them, in order; `tasks` is empty then. One lock and one wake for what comes together.
  void Enqueue(std::vector<CommitTask>* tasks);
  // One group, if something waits.
  bool RunGroup();

 private:
  void Run();
  // What waits and goes together, in order.
  std::vector<CommitTask> TakeGroup();
  void Execute(std::span<CommitTask> group);
  void CommitGroup(std::span<CommitTask> group);
  void Answer(std::span<CommitTask> tasks, std::span<const Status> statuses);

  Manifest* const manifest_;
  const LogErased log_erased_;
  const Post post_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<CommitTask> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace terrace
