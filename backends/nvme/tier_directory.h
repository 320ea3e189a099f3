// TierDirectory: the directory of one NVMe tier, opened, checked, locked. Holds
//
//   superblock       see superblock.h
//   lock             see Disk::Lock
//   manifest/        RocksDB
//   erased           see erased_log.h
//   seg-000000 ...   see segment_files.h
//
// Mode 0700, files 0600; no name in it is followed if it is a symbolic link.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "backends/nvme/disk.h"
#include "backends/nvme/key_ring.h"
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
  // kUnavailable where it is held. What KeyRing says where `keys` are not the directory's: nothing in it is
  // touched; new keys are in the superblock, durably, when it returns. `disk` outlives it.
  static Result<TierDirectory> Open(Disk& disk, uint64_t segment_bytes, const KeyRing& keys);

  const std::string& path() const { return disk_->path(); }
  // For ever the same, on every thread.
  const DirectoryId& id() const { return id_; }
  // Not while another thread is in ReplaceSuperblock.
  const Superblock& superblock() const { return superblock_; }
  // Its superblock was made by this Open: there is nothing in it yet.
  bool is_new() const { return is_new_; }
  std::string manifest_path() const { return path() + "/" + kManifestDirectoryName; }

  // Durable when it returns OK; else the old one stands.
  Status ReplaceSuperblock(const Superblock& superblock);

 private:
  explicit TierDirectory(Disk* disk) : disk_(disk) {}
  // The superblock, or nullopt in a directory that has nothing yet.
  Result<std::optional<Superblock>> ReadSuperblock() const;
  Status CheckNothingForeign() const;
  // The superblock with the checks of all keys; kPermissionDenied, kInvalidArgument: see KeyRing.
  Result<Superblock> WithKeys(Superblock superblock, const KeyRing& keys) const;

  Disk* disk_;
  std::unique_ptr<DiskLock> lock_;
  DirectoryId id_{};
  bool is_new_ = false;
  Superblock superblock_;
};

}  // namespace terrace
