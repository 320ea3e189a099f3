#include "lib/memory/pool_mapping.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <string>
#include <utility>

#include "lib/base/status_macros.h"
#include "terrace/shared_pool.h"

namespace terrace {
namespace {

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr uint64_t kMaxPoolBytes = uint64_t{1} << 46;
constexpr int kMaxNumaNodes = 1024;

void Log(const BufferPoolOptions& options, LogLevel level, const std::string& message) {
  if (options.log != nullptr) options.log->Log(level, "pool", message);
}

// Preferred, not bound: a node that is full costs speed, not the process.
bool PreferNode(std::byte* base, size_t bytes, int node) {
  constexpr int kWordBits = sizeof(unsigned long) * CHAR_BIT;
  unsigned long nodes[kMaxNumaNodes / kWordBits] = {};
  nodes[node / kWordBits] = 1UL << (node % kWordBits);
  // The kernel reads one bit less than it is told.
  return syscall(SYS_mbind, base, bytes, MPOL_PREFERRED, nodes, kMaxNumaNodes + 1UL, 0U) == 0;
}

Status Populate(std::byte* base, size_t bytes) {
  if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0) return OkStatus();
  if (errno == ENOMEM || errno == EFAULT) {
    return ResourceExhaustedError("the pool's " + std::to_string(bytes) +
                                  " bytes cannot be populated: " + std::strerror(errno));
  }
  std::memset(base, 0, bytes);  // kernels before 5.14
  return OkStatus();
}

}  // namespace

Result<PoolMapping> PoolMapping::Map(const BufferPoolOptions& options) {
  if (options.numa_node < -1 || options.numa_node >= kMaxNumaNodes) {
    return InvalidArgumentError("numa_node " + std::to_string(options.numa_node) + ": allowed is -1..1023");
  }
  if (options.size_bytes > kMaxPoolBytes) {
    return InvalidArgumentError("pool of " + std::to_string(options.size_bytes) +
                                " bytes: allowed is 0..64 TiB");
  }
  PoolMapping made;
  const size_t bytes = options.size_bytes / kPoolUnitBytes * kPoolUnitBytes;
  if (bytes == 0) return made;
  TERRACE_RETURN_IF_ERROR(options.share ? made.MapShared(bytes) : made.Map(bytes, options));
  if (options.numa_node >= 0 && !PreferNode(made.base_, bytes, options.numa_node)) {
    Log(options, LogLevel::kWarning,
        "the pool is not on NUMA node " + std::to_string(options.numa_node) + ": " + std::strerror(errno));
  }
  // A child made by fork must not share what a device may write.
  if (madvise(made.base_, bytes, MADV_DONTFORK) != 0) {
    Log(options, LogLevel::kInfo, "the pool is visible to forked children");
  }
  if (options.share) TERRACE_RETURN_IF_ERROR(made.Seal());
  if (!options.populate) return made;
  TERRACE_RETURN_IF_ERROR(Populate(made.base_, bytes));
  if (mlock(made.base_, bytes) != 0) {
    Log(options, LogLevel::kInfo, std::string("the pool is not locked in memory: ") + std::strerror(errno));
  }
  return made;
}

Status PoolMapping::Map(size_t bytes, const BufferPoolOptions& options) {
  mapped_bytes_ = bytes + kHugePageBytes;
  void* mapping = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return ResourceExhaustedError("the pool's " + std::to_string(bytes) +
                                  " bytes cannot be mapped: " + std::strerror(errno));
  }
  mapping_ = mapping;
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  base_ = reinterpret_cast<std::byte*>((address + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes);
  size_bytes_ = bytes;
  if (options.huge_pages && madvise(base_, bytes, MADV_HUGEPAGE) != 0) {
    Log(options, LogLevel::kInfo, std::string("no huge pages for the pool: ") + std::strerror(errno));
  }
  return OkStatus();
}

Status PoolMapping::MapShared(size_t bytes) {
  static_assert(kSharedPoolUnitBytes == kPoolUnitBytes);
  TERRACE_ASSIGN_OR_RETURN(file_, MemoryFile::Create("terrace-pool", bytes));
  TERRACE_ASSIGN_OR_RETURN(
      generations_, MemoryFile::Create("terrace-generations", bytes / kPoolUnitBytes * sizeof(uint64_t)));
  base_ = file_.base();
  size_bytes_ = bytes;
  return Populate(generations_.base(), generations_.size_bytes());
}

Status PoolMapping::Seal() {
  TERRACE_RETURN_IF_ERROR(file_.Seal());
  return generations_.Seal();
}

PoolMapping::PoolMapping(PoolMapping&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      base_(std::exchange(other.base_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      file_(std::move(other.file_)),
      generations_(std::move(other.generations_)) {}

PoolMapping& PoolMapping::operator=(PoolMapping&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(base_, other.base_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(file_, other.file_);
  std::swap(generations_, other.generations_);
  return *this;
}

PoolMapping::~PoolMapping() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_bytes_);
}

}  // namespace terrace
