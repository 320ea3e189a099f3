#include "lib/memory/buffer_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "lib/base/check.h"

namespace terrace {
namespace {

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

// Free runs in two orders: by start (to join neighbours) and by length (to find the best fit). Both always
// hold the same runs, no two of which touch; units handed out + free units = all units.
struct BufferPool::Arena {
  std::byte* base = nullptr;
  size_t mapped_bytes = 0;
  void* mapping = nullptr;
  uint64_t units = 0;

  mutable std::mutex mutex;  // guards all below
  std::map<uint64_t, uint64_t> free_by_start;
  std::set<std::pair<uint64_t, uint64_t>> free_by_length;
  uint64_t used_units = 0;
  Reclaimer reclaimer;

  ~Arena() {
    if (mapping != nullptr) munmap(mapping, mapped_bytes);
  }

  void AddFree(uint64_t start, uint64_t length) {
    free_by_start[start] = length;
    free_by_length.emplace(length, start);
  }

  void DropFree(std::map<uint64_t, uint64_t>::iterator it) {
    free_by_length.erase({it->second, it->first});
    free_by_start.erase(it);
  }

  // Start of a run, or nothing.
  std::optional<uint64_t> Take(uint64_t wanted) {
    std::lock_guard lock(mutex);
    const auto best = free_by_length.lower_bound({wanted, 0});
    if (best == free_by_length.end()) return std::nullopt;
    const auto [length, start] = *best;
    DropFree(free_by_start.find(start));
    if (length > wanted) AddFree(start + wanted, length - wanted);
    used_units += wanted;
    return start;
  }

  void Give(uint64_t start, uint64_t length) {
    std::lock_guard lock(mutex);
    TERRACE_CHECK(used_units >= length);
    used_units -= length;
    auto next = free_by_start.lower_bound(start);
    if (next != free_by_start.end() && next->first == start + length) {
      length += next->second;
      const auto joined = next++;
      DropFree(joined);
    }
    if (next != free_by_start.begin()) {
      const auto previous = std::prev(next);
      if (previous->first + previous->second == start) {
        start = previous->first;
        length += previous->second;
        DropFree(previous);
      }
    }
    AddFree(start, length);
  }
};

namespace {

// A run that was handed out. Keeps the mapping alive.
template <typename Arena>
struct Run : BufferControl {
  std::shared_ptr<Arena> arena;
  uint64_t start = 0;
  uint64_t length = 0;

  static void Release(BufferControl* control) {
    auto* run = static_cast<Run*>(control);
    run->arena->Give(run->start, run->length);
    delete run;
  }
};

}  // namespace

BufferPool::BufferPool(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}

BufferPool::~BufferPool() {
  std::lock_guard lock(arena_->mutex);
  arena_->reclaimer = nullptr;
}

Result<std::unique_ptr<BufferPool>> BufferPool::Create(const BufferPoolOptions& options) {
  auto arena = std::make_shared<Arena>();
  arena->units = options.size_bytes / kPoolUnitBytes;
  const auto warn = [&](const std::string& message) {
    if (options.log != nullptr) options.log->Log(LogLevel::kInfo, "pool", message);
  };
  if (arena->units > 0) {
    const size_t bytes = arena->units * kPoolUnitBytes;
    arena->mapped_bytes = bytes + kHugePageBytes;
    void* mapping =
        mmap(nullptr, arena->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) {
      return ResourceExhaustedError("the pool's " + std::to_string(bytes) +
                                    " bytes cannot be mapped: " + std::strerror(errno));
    }
    arena->mapping = mapping;
    const auto address = reinterpret_cast<uintptr_t>(mapping);
    arena->base =
        reinterpret_cast<std::byte*>((address + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes);
    if (options.huge_pages && madvise(arena->base, bytes, MADV_HUGEPAGE) != 0) {
      warn(std::string("no huge pages for the pool: ") + std::strerror(errno));
    }
    // A child made by fork must not share what a device may write.
    if (madvise(arena->base, bytes, MADV_DONTFORK) != 0) warn("the pool is visible to forked children");
    if (madvise(arena->base, bytes, MADV_POPULATE_WRITE) != 0) {
      if (errno == ENOMEM || errno == EFAULT) {
        return ResourceExhaustedError("the pool's " + std::to_string(bytes) +
                                      " bytes cannot be populated: " + std::strerror(errno));
      }
      std::memset(arena->base, 0, bytes);  // kernels before 5.14
    }
    if (mlock(arena->base, bytes) != 0)
      warn(std::string("the pool is not locked in memory: ") + std::strerror(errno));
    arena->AddFree(0, arena->units);
  }
  return std::unique_ptr<BufferPool>(new BufferPool(std::move(arena)));
}

void BufferPool::SetReclaimer(Reclaimer reclaimer) {
  std::lock_guard lock(arena_->mutex);
  arena_->reclaimer = std::move(reclaimer);
}

Result<BufferRef> BufferPool::Allocate(uint64_t bytes) {
  const uint64_t wanted = (bytes + kPoolUnitBytes - 1) / kPoolUnitBytes;
  if (wanted == 0) return InvalidArgumentError("a buffer of 0 bytes");
  if (wanted > arena_->units) {
    return ResourceExhaustedError("a buffer of " + std::to_string(bytes) + " bytes is more than the pool's " +
                                  std::to_string(size_bytes()));
  }
  std::optional<uint64_t> start = arena_->Take(wanted);
  if (!start) {
    Reclaimer reclaimer;
    {
      std::lock_guard lock(arena_->mutex);
      reclaimer = arena_->reclaimer;
    }
    while (!start && reclaimer && reclaimer(bytes)) start = arena_->Take(wanted);
    if (!start) start = arena_->Take(wanted);  // given back by another thread meanwhile
  }
  if (!start) return ResourceExhaustedError("the pool is full with what may not be evicted");
  auto* run = new Run<Arena>();
  run->data = arena_->base + *start * kPoolUnitBytes;
  run->size_bytes = wanted * kPoolUnitBytes;
  run->release = &Run<Arena>::Release;
  run->arena = arena_;
  run->start = *start;
  run->length = wanted;
  return BufferRef(run);
}

uint64_t BufferPool::size_bytes() const { return arena_->units * kPoolUnitBytes; }

uint64_t BufferPool::used_bytes() const {
  std::lock_guard lock(arena_->mutex);
  return arena_->used_units * kPoolUnitBytes;
}

MemoryRegion BufferPool::region() const { return {.id = 0, .bytes = {arena_->base, size_bytes()}}; }

}  // namespace terrace
