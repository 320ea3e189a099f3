// ShmMapping: a server's pool as this process has mapped it, and the session's staging area; with the socket
// that keeps them (lib/wire/shm_message.h).
//
// Nothing that the server says is trusted: descriptors must be memory files that are as long as said and
// sealed against getting shorter, so that no access can fault, and what is read must lie in them. Pool and
// generations are mapped read-only.
//
// Threads: every call from every thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lib/wire/file_descriptor.h"
#include "lib/wire/shm_message.h"
#include "terrace/bytes.h"
#include "terrace/status.h"
#include "terrace/time.h"

namespace terrace::remote {

// One memory file, mapped as a whole.
class MappedFile {
 public:
  enum class Access { kRead, kReadWrite };

  // kDataLoss: no sealed memory file of `bytes`. kResourceExhausted: it cannot be mapped. For reading it has
  // to be sealed against writers that come later, too.
  static Result<MappedFile> Map(FileDescriptor file, uint64_t bytes, Access access);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  MutableBytes bytes() const { return bytes_; }
  // Whether [offset, offset + n) lies in it.
  bool Holds(uint64_t offset, uint64_t n) const { return n <= bytes_.size() && offset <= bytes_.size() - n; }

 private:
  MutableBytes bytes_;
};

class ShmMapping {
 public:
  // Connects, says hello, and maps what it is handed. kUnavailable: nobody listens, or not until the limit;
  // kPermissionDenied: the server refuses the token or the user; kDataLoss: it breaks a rule.
  static Result<std::shared_ptr<ShmMapping>> Connect(const std::string& path, const ShmHello& hello,
                                                     Duration limit);

  // False: the server has ended the session, or is gone. What is mapped stays readable.
  bool connected() const;

  // The frame's bytes in the pool. kDataLoss: no frame can lie there.
  Result<Bytes> FrameAt(uint64_t frame_offset, uint64_t frame_bytes) const;
  // The generation of a place that FrameAt has found to be one.
  uint64_t GenerationBefore(
      uint64_t frame_offset) const;  // reads of the frame that come after see it or later
  uint64_t GenerationAfter(
      uint64_t frame_offset) const;  // reads of the frame that came before saw it at most
  // kDataLoss: outside the staging area.
  Result<MutableBytes> StagingAt(uint64_t offset, uint64_t bytes) const;

 private:
  ShmMapping() = default;

  FileDescriptor socket_;
  MappedFile pool_;
  MappedFile generations_;
  MappedFile staging_;
};

}  // namespace terrace::remote
