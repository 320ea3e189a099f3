// SessionShmArea: what one session holds in shared memory: the staging area that its client writes puts to,
// and the frames that its client reads where they lie.
//
//   staging   a memory file that the client has mapped for writing and this process for reading. It is read
//             once per put, into memory of the server's own, and never again: whatever the client writes
//             meanwhile or later, the bytes that are hashed are those that are published. It cannot shrink,
//             and pages are there before they are read, so that no hole in it faults.
//   places    references to published frames, each until it is released or its lease has ended
//
// Threads: every call from every thread. Frames are given back without the lock. The end of the object gives
// everything back and shuts the client's socket down, so that the client learns of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "connectors/server/session_table.h"
#include "lib/wire/file_descriptor.h"
#include "terrace/time.h"

namespace terrace::server {

struct ShmAreaOptions {
  uint64_t staging_bytes = 0;    // a multiple of 4,096
  size_t max_staged = 1024;      // puts in the staging area at once
  size_t max_places = 4096;      // frames held at once
  uint64_t max_place_bytes = 0;  // the same in bytes, in whole runs; one frame may always be held
  // Numbers of places begin after it: another one per session, so that a late release of a session that has
  // ended names nothing in the next.
  uint64_t places_after = 0;
  Clock* clock = Clock::Real();
};

class SessionShmArea final : public ShmArea {
 public:
  // `socket` stays the caller's to read; it is shut down, not closed, by the end of the area.
  static Result<std::shared_ptr<SessionShmArea>> Make(const ShmAreaOptions& options,
                                                      std::shared_ptr<FileDescriptor> socket);
  ~SessionShmArea() override;
  SessionShmArea(const SessionShmArea&) = delete;
  SessionShmArea& operator=(const SessionShmArea&) = delete;

  Result<uint64_t> AllocateStaging(uint64_t bytes) override;
  void FreeStaging(uint64_t offset) override;
  // kInvalidArgument: nothing that long was allocated there. kUnavailable: it could not be read.
  Status CopyOut(uint64_t offset, ArrivingFrame& frame) override;
  uint64_t AddPlace(BufferRef frame, Duration lease) override;
  void ReleasePlace(uint64_t place) override;

  // Gives back the frames whose lease has ended.
  void Sweep();

  int staging_fd() const { return staging_.get(); }
  size_t num_places() const;
  size_t num_staged() const;

 private:
  struct Place {
    BufferRef frame;
    TimePoint ends;
  };

  SessionShmArea(const ShmAreaOptions& options, FileDescriptor staging, const std::byte* mapping,
                 std::shared_ptr<FileDescriptor> socket);

  const ShmAreaOptions options_;
  const FileDescriptor staging_;
  const std::byte* const mapping_;
  const std::shared_ptr<FileDescriptor> socket_;
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> staged_;  // offset -> bytes, disjoint
  std::map<uint64_t, Place> places_;
  uint64_t place_bytes_ = 0;
  uint64_t last_place_;
};

}  // namespace terrace::server
