#include "connectors/server/shm_area.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace terrace::server {
namespace {

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

constexpr uint64_t kPageBytes = 4096;
// What is copied is hashed while it is in the cache.
constexpr uint64_t kCopyStepBytes = 256 * 1024;

}  // namespace

Result<std::shared_ptr<SessionShmArea>> SessionShmArea::Make(const ShmAreaOptions& options,
                                                             std::shared_ptr<FileDescriptor> socket) {
  FileDescriptor staging(memfd_create("terrace-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!staging || ftruncate(staging.get(), static_cast<off_t>(options.staging_bytes)) != 0 ||
      fcntl(staging.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ResourceExhaustedError("no staging area of " + std::to_string(options.staging_bytes) +
                                  " bytes: " + std::strerror(errno));
  }
  void* mapping = mmap(nullptr, options.staging_bytes, PROT_READ, MAP_SHARED, staging.get(), 0);
  if (mapping == MAP_FAILED) {
    return ResourceExhaustedError(std::string("the staging area cannot be mapped: ") + std::strerror(errno));
  }
  return std::shared_ptr<SessionShmArea>(new SessionShmArea(
      options, std::move(staging), static_cast<const std::byte*>(mapping), std::move(socket)));
}

SessionShmArea::SessionShmArea(const ShmAreaOptions& options, FileDescriptor staging,
                               const std::byte* mapping, std::shared_ptr<FileDescriptor> socket)
    : options_(options),
      staging_(std::move(staging)),
      mapping_(mapping),
      socket_(std::move(socket)),
      last_place_(options.places_after) {}

SessionShmArea::~SessionShmArea() {
  munmap(const_cast<std::byte*>(mapping_), options_.staging_bytes);
  if (socket_) shutdown(socket_->get(), SHUT_RDWR);
}

Result<uint64_t> SessionShmArea::AllocateStaging(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes == 0 || bytes > options_.staging_bytes || staged_.size() >= options_.max_staged) {
    return ResourceExhaustedError("staging: " + std::to_string(bytes) + " bytes asked for, beside " +
                                  std::to_string(staged_.size()) + " puts");
  }
  const uint64_t wanted = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  uint64_t free_from = 0;
  for (const auto& [offset, taken] : staged_) {
    if (offset - free_from >= wanted) break;
    free_from = offset + taken;
  }
  if (options_.staging_bytes - free_from < wanted) {
    return ResourceExhaustedError("staging: no room for " + std::to_string(bytes) + " bytes");
  }
  staged_.emplace(free_from, wanted);
  return free_from;
}

void SessionShmArea::FreeStaging(uint64_t offset) {
  const std::lock_guard lock(mutex_);
  staged_.erase(offset);
}

Status SessionShmArea::CopyOut(uint64_t offset, ArrivingFrame& frame) {
  const MutableBytes target = frame.bytes();
  {
    const std::lock_guard lock(mutex_);
    const auto found = staged_.find(offset);
    if (found == staged_.end() || found->second < target.size()) {
      return InvalidArgumentError("nothing of " + std::to_string(target.size()) + " bytes is staged at " +
                                  std::to_string(offset));
    }
  }
  for (uint64_t done = 0; done < target.size(); done += kCopyStepBytes) {
    const uint64_t n = std::min<uint64_t>(kCopyStepBytes, target.size() - done);
    const std::byte* from = mapping_ + offset + done;
    // Kernels before 5.14 do not know it, and fault the pages in one by one.
    if (madvise(const_cast<std::byte*>(from), n, MADV_POPULATE_READ) != 0 && errno != EINVAL) {
      return UnavailableError(std::string("staging cannot be read: ") + std::strerror(errno));
    }
    std::memcpy(target.data() + done, from, n);
    frame.MarkPresent(done, n);
  }
  return OkStatus();
}

uint64_t SessionShmArea::AddPlace(BufferRef frame, Duration lease) {
  const TimePoint ends = options_.clock->Now() + lease;
  const std::lock_guard lock(mutex_);
  const uint64_t bytes = frame.size_bytes();
  const bool fits = bytes <= options_.max_place_bytes && place_bytes_ <= options_.max_place_bytes - bytes;
  if (places_.size() >= options_.max_places || (!fits && !places_.empty())) return 0;
  place_bytes_ += bytes;
  if (++last_place_ == 0) ++last_place_;
  places_.emplace(last_place_, Place{std::move(frame), ends});
  return last_place_;
}

void SessionShmArea::ReleasePlace(uint64_t place) {
  BufferRef given_back;
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(place);
  if (found == places_.end()) return;
  given_back = std::move(found->second.frame);
  place_bytes_ -= given_back.size_bytes();
  places_.erase(found);
}

void SessionShmArea::Sweep() {
  const TimePoint now = options_.clock->Now();
  std::vector<BufferRef> given_back;
  const std::lock_guard lock(mutex_);
  for (auto place = places_.begin(); place != places_.end();) {
    if (place->second.ends > now) {
      ++place;
      continue;
    }
    place_bytes_ -= place->second.frame.size_bytes();
    given_back.push_back(std::move(place->second.frame));
    place = places_.erase(place);
  }
}

size_t SessionShmArea::num_places() const {
  const std::lock_guard lock(mutex_);
  return places_.size();
}

size_t SessionShmArea::num_staged() const {
  const std::lock_guard lock(mutex_);
  return staged_.size();
}

}  // namespace terrace::server
