#include "backends/nvme/commit_thread.h"

#include <pthread.h>

#include <algorithm>
#include <map>

namespace terrace {
namespace {

constexpr size_t kMaxGroup = 1024;

}  // namespace

CommitThread::CommitThread(Manifest* manifest, LogErased log_erased, Post post, bool own_thread)
    : manifest_(manifest), log_erased_(std::move(log_erased)), post_(std::move(post)) {
  if (own_thread) thread_ = std::thread([this] { Run(); });
}

CommitThread::~CommitThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CommitThread::Enqueue(std::vector<CommitTask>* tasks) {
  {
    const std::lock_guard lock(mutex_);
    std::move(tasks->begin(), tasks->end(), std::back_inserter(tasks_));
  }
  tasks->clear();
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
      group = TakeGroup();
    }
    Execute(group);
  }
}

bool CommitThread::RunGroup() {
  std::vector<CommitTask> group;
  {
    const std::lock_guard lock(mutex_);
    if (tasks_.empty()) return false;
    group = TakeGroup();
  }
  Execute(group);
  return true;
}

std::vector<CommitTask> CommitThread::TakeGroup() {
  std::vector<CommitTask> group;
  while (!tasks_.empty() && group.size() < kMaxGroup) {
    if (tasks_.front().alone && !group.empty()) break;
    group.push_back(std::move(tasks_.front()));
    tasks_.pop_front();
    if (group.back().alone) break;
  }
  return group;
}

void CommitThread::Execute(std::span<CommitTask> group) {
  if (!group.front().alone) return CommitGroup(group);
  const Status status = group.front().alone();
  Answer(group, {&status, 1});
}

void CommitThread::CommitGroup(std::span<CommitTask> group) {
  std::map<DiskFile*, Status> synced;
  std::vector<ErasedEntry> erased;
  std::vector<RecordChange> changes;
  RecordWrite write = RecordWrite::kUnlogged;
  for (CommitTask& task : group) {
    bool is_synced = true;
    for (DiskFile* file : task.sync_files) {
      if (!synced.contains(file)) synced.emplace(file, file->Sync());
      is_synced &= synced[file].ok();
    }
    if (!is_synced) continue;  // no record names data that may not be there
    erased.insert(erased.end(), task.erased.begin(), task.erased.end());
    write = std::max(write, task.write);
    std::move(task.changes.begin(), task.changes.end(), std::back_inserter(changes));
  }
  const Status logged = erased.empty() ? OkStatus() : log_erased_(erased);
  const Status applied = changes.empty() ? OkStatus() : manifest_->Apply(changes, write);
  std::vector<Status> statuses(group.size(), applied);
  for (size_t i = 0; i < group.size(); ++i) {
    if (!logged.ok() && !group[i].erased.empty()) statuses[i] = logged;
    for (DiskFile* file : group[i].sync_files) {
      if (!synced[file].ok()) statuses[i] = synced[file];
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
