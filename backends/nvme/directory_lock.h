// The lock of a directory on the operating system's disk: one holder at a time, in this process or another.
// It is the kernel's (flock on an open file description, so it ends with the process); the file's text says
// who has it:
//
//   pid 4711
//   process terrace-llama
//   host node-3
//   since 2026-01-31T12:00:00Z
#pragma once

#include <memory>
#include <string>

#include "backends/nvme/disk.h"
#include "terrace/status.h"

namespace terrace {

// `directory_path` is for the message only. kUnavailable with holder, host and since when if it is held.
Result<std::unique_ptr<DiskLock>> AcquireDirectoryLock(int directory_fd, const std::string& directory_path);

}  // namespace terrace
