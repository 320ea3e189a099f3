// MemoryFile: anonymous memory with a descriptor, mapped for writing here and nowhere else: after Seal nobody
// who has the descriptor can write to it or change its size, nor map it so that he could.
#pragma once

#include <cstddef>
#include <string>

#include "terrace/status.h"

namespace terrace {

class MemoryFile {
 public:
  // `bytes` above 0; zeros. kResourceExhausted: the system lacks descriptors or memory.
  static Result<MemoryFile> Create(const std::string& name, size_t bytes);

  MemoryFile() = default;
  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&& other) noexcept;
  ~MemoryFile();

  // kFailedPrecondition: the kernel cannot (before Linux 5.1).
  Status Seal();

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  std::byte* base() const { return base_; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  int fd_ = -1;
  std::byte* base_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace terrace
