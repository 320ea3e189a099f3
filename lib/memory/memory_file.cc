#include "lib/memory/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace terrace {
namespace {

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

Status SystemError(const std::string& what) {
  return ResourceExhaustedError(what + ": " + std::strerror(errno));
}

}  // namespace

Result<MemoryFile> MemoryFile::Create(const std::string& name, size_t bytes) {
  MemoryFile made;
  made.fd_ = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (made.fd_ < 0) return SystemError("no memory file");
  if (ftruncate(made.fd_, static_cast<off_t>(bytes)) != 0)
    return SystemError("a memory file of " + std::to_string(bytes) + " bytes");
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd_, 0);
  if (mapping == MAP_FAILED) return SystemError("a memory file cannot be mapped");
  made.base_ = static_cast<std::byte*>(mapping);
  made.size_bytes_ = bytes;
  return made;
}

Status MemoryFile::Seal() {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (fcntl(fd_, F_ADD_SEALS, kSeals) == 0) return OkStatus();
  return FailedPreconditionError(std::string("memory cannot be sealed against other writers: ") +
                                 std::strerror(errno));
}

MemoryFile::MemoryFile(MemoryFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      base_(std::exchange(other.base_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MemoryFile& MemoryFile::operator=(MemoryFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(base_, other.base_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MemoryFile::~MemoryFile() {
  if (base_ != nullptr) munmap(base_, size_bytes_);
  if (fd_ >= 0) close(fd_);
}

}  // namespace terrace
