#include "backends/nvme/commit_thread.h"

#include <pthread.h>

#include <algorithm>
#include <map>

#include "backends/nvme/file_descriptor.h"

namespace terrace {
namespace {

constexpr size_t kMaxGroup = 1024;

}  // namespace

Status SyncFile(int fd) {
  int result;
  do {
    result = fdatasync(fd);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? OkStatus() : ErrnoStatus("fdatasync of a segment", errno);
}

CommitThread::CommitThread(Manifest* manifest, Post post)
    : manifest_(manifest), post_(std::move(post)), thread_([this] { Run(); }) {}

CommitThread::~CommitThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CommitThread::Enqueue(CommitTask task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void CommitThread::Run() {
  pthread_setname_np(pthread_self(), "terrace-commit");
  for (;;) {
    std::vector<CommitTask> group;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      while (!tasks_.empty() && group.size() < kMaxGroup) {
        if (tasks_.front().alone && !group.empty()) break;
        group.push_back(std::move(tasks_.front()));
        tasks_.pop_front();
        if (group.back().alone) break;
      }
    }
    if (group.front().alone) {
      const Status status = group.front().alone();
      Answer(group, {&status, 1});
    } else {
      CommitGroup(group);
    }
  }
}

void CommitThread::CommitGroup(std::span<CommitTask> group) {
  std::map<int, Status> synced;
  std::vector<RecordChange> changes;
  bool sync = false;
  for (CommitTask& task : group) {
    for (const int fd : task.sync_files) {
      if (!synced.contains(fd)) synced.emplace(fd, SyncFile(fd));
    }
    sync |= task.sync;
    std::move(task.changes.begin(), task.changes.end(), std::back_inserter(changes));
  }
  const Status applied = changes.empty() ? OkStatus() : manifest_->Apply(changes, sync);
  std::vector<Status> statuses(group.size(), applied);
  for (size_t i = 0; i < group.size(); ++i) {
    for (const int fd : group[i].sync_files) {
      if (!synced[fd].ok()) statuses[i] = synced[fd];
    }
  }
  Answer(group, statuses);
}

void CommitThread::Answer(std::span<CommitTask> tasks, std::span<const Status> statuses) {
  std::vector<std::pair<std::function<void(const Status&)>, Status>> answers;
  for (size_t i = 0; i < tasks.size(); ++i) answers.emplace_back(std::move(tasks[i].done), statuses[i]);
  post_([answers = std::move(answers)] {
    for (const auto& [done, status] : answers) done(status);
  });
}

}  // namespace terrace
