// DirectoryLock: one holder of a directory at a time, in this process or another. The lock is the kernel's
// (flock on an open file description, so it ends with the process); the file's text says who has it:
//
//   pid 4711
//   process terrace-llama
//   host node-3
//   since 2026-01-31T12:00:00Z
#pragma once

#include <string>

#include "backends/nvme/file_descriptor.h"
#include "terrace/status.h"

namespace terrace {

inline constexpr char kLockFileName[] = "lock";

class DirectoryLock {
 public:
  DirectoryLock() = default;
  // `directory_path` is for the message only. kUnavailable with holder, host and since when if it is held.
  static Result<DirectoryLock> Acquire(int directory_fd, const std::string& directory_path);
  DirectoryLock(DirectoryLock&&) = default;
  DirectoryLock& operator=(DirectoryLock&&) = default;
  ~DirectoryLock() { Release(); }
  void Release();

 private:
  explicit DirectoryLock(FileDescriptor file) : file_(std::move(file)) {}
  FileDescriptor file_;
};

}  // namespace terrace
