// ModelDigests: SHA-256 of model and adapter files, remembered by device, inode, size and times, so that a
// second cache over the same weights does not read them again. Safe from every thread. Lives as long as its
// owner; nothing is kept on disk.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "terrace/object_id.h"
#include "terrace/status.h"

namespace terrace::llamacpp {

class ModelDigests {
 public:
  // SHA-256 of the file's bytes. kNotFound, kUnavailable (cannot be read), kAborted (changed while it was
  // read).
  Result<Digest> OfFile(const std::string& path);
  // One name for a model of one or more files: the file's digest, or the digest of the parts' digests in
  // their order.
  Result<std::string> OfParts(const std::vector<std::string>& paths);
  // Files that were read through; what was remembered does not count.
  uint64_t files_read() const;

 private:
  // dev, inode, size, mtime, ctime (both in ns)
  using Stamp = std::tuple<uint64_t, uint64_t, uint64_t, int64_t, int64_t>;

  mutable std::mutex mutex_;
  std::map<Stamp, Digest> remembered_;
  uint64_t files_read_ = 0;
};

// SHA-256 of `domain`, a zero byte and `bytes`.
Result<Digest> DigestOfText(std::string_view domain, std::string_view bytes);

}  // namespace terrace::llamacpp
