// TierDirectory: the directory of one NVMe tier, opened, checked, locked. Holds
//
//   superblock       see superblock.h
//   lock             see directory_lock.h
//   manifest/        RocksDB
//   seg-000000 ...   see segment_files.h
//
// Mode 0700, files 0600; no name in it is followed if it is a symbolic link.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "backends/nvme/directory_lock.h"
#include "backends/nvme/file_descriptor.h"
#include "backends/nvme/superblock.h"
#include "terrace/status.h"

namespace terrace {

inline constexpr char kSuperblockFileName[] = "superblock";
inline constexpr char kSuperblockTemporaryName[] = "superblock.new";
inline constexpr char kManifestDirectoryName[] = "manifest";

class TierDirectory {
 public:
  // Makes the directory (its parent must exist) and its superblock where there is none. kDataLoss for a
  // directory that holds something else, a newer version or a broken superblock: nothing in it is touched.
  // kUnavailable where it is held.
  static Result<TierDirectory> Open(const std::string& path, uint64_t segment_bytes);

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  const Superblock& superblock() const { return superblock_; }
  std::string manifest_path() const { return path_ + "/" + kManifestDirectoryName; }

  // Durable when it returns OK; else the old one stands.
  Status ReplaceSuperblock(const Superblock& superblock);
  void Unlock() { lock_.Release(); }

 private:
  TierDirectory() = default;
  Status MakeAndOpen(const std::string& path);
  // The superblock, or nullopt in a directory that has nothing yet.
  Result<std::optional<Superblock>> ReadSuperblock() const;
  Status CheckNothingForeign() const;

  std::string path_;
  FileDescriptor fd_;
  DirectoryLock lock_;
  Superblock superblock_;
};

}  // namespace terrace
