#include "backends/nvme/tier_directory.h"

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "lib/base/status_macros.h"

namespace terrace {

Result<TierDirectory> TierDirectory::Open(Disk& disk, uint64_t segment_bytes, const KeyRing& keys) {
  TierDirectory directory(&disk);
  TERRACE_RETURN_IF_ERROR(disk.OpenDirectory());
  // Looked at before the lock file is made: a foreign directory, or one of other keys, stays untouched.
  TERRACE_ASSIGN_OR_RETURN(std::optional<Superblock> found, directory.ReadSuperblock());
  if (!found) TERRACE_RETURN_IF_ERROR(directory.CheckNothingForeign());
  if (found) TERRACE_RETURN_IF_ERROR(directory.WithKeys(*found, keys).status());
  TERRACE_RETURN_IF_ERROR(disk.ProtectDirectory());
  TERRACE_ASSIGN_OR_RETURN(directory.lock_, disk.Lock());
  // Again under the lock: another process may have made it meanwhile.
  TERRACE_ASSIGN_OR_RETURN(found, directory.ReadSuperblock());
  if (!found) {
    TERRACE_ASSIGN_OR_RETURN(Superblock made, NewSuperblock(segment_bytes));
    made.keys = keys.Checks(made.directory);
    TERRACE_RETURN_IF_ERROR(directory.ReplaceSuperblock(made));
    directory.is_new_ = true;
  } else {
    TERRACE_ASSIGN_OR_RETURN(const Superblock keyed, directory.WithKeys(*found, keys));
    directory.superblock_ = *found;
    if (keyed.keys != found->keys) TERRACE_RETURN_IF_ERROR(directory.ReplaceSuperblock(keyed));
  }
  directory.id_ = directory.superblock_.directory;
  TERRACE_RETURN_IF_ERROR(disk.MakeDirectory(kManifestDirectoryName));
  // Records that are synced lie below this name: it must not be lost after them.
  TERRACE_RETURN_IF_ERROR(disk.SyncNames());
  return directory;
}

Result<std::optional<Superblock>> TierDirectory::ReadSuperblock() const {
  Result<std::unique_ptr<DiskFile>> file = disk_->OpenFile(kSuperblockFileName, FileOpen::kExisting, false);
  if (file.status().code() == StatusCode::kNotFound) return std::optional<Superblock>();
  if (!file.ok()) return file.status();
  std::array<std::byte, kSuperblockBytes + 1> raw;  // one more, so that a longer file is seen
  TERRACE_ASSIGN_OR_RETURN(const uint64_t got, (*file)->ReadAt(0, raw));
  Result<Superblock> superblock = DecodeSuperblock({reinterpret_cast<const char*>(raw.data()), got});
  if (!superblock.ok()) return superblock.status().WithContext("directory " + path());
  return std::optional<Superblock>(std::move(*superblock));
}

Result<Superblock> TierDirectory::WithKeys(Superblock superblock, const KeyRing& keys) const {
  Result<std::vector<KeyCheck>> checks = keys.Match(superblock.directory, superblock.keys);
  if (!checks.ok()) return checks.status().WithContext("directory " + path());
  superblock.keys = std::move(*checks);
  return superblock;
}

Status TierDirectory::CheckNothingForeign() const {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> names, disk_->List());
  for (const std::string& name : names) {
    // A process that died while it made the directory leaves no more than these.
    if (name == kLockFileName || name == kSuperblockTemporaryName) continue;
    return DataLossError("directory " + path() + " holds \"" + name +
                         "\" and no superblock: it is not a Terrace directory, and stays as it is");
  }
  return OkStatus();
}

Status TierDirectory::ReplaceSuperblock(const Superblock& superblock) {
  const std::string bytes = EncodeSuperblock(superblock);
  TERRACE_RETURN_IF_ERROR(disk_->Remove(kSuperblockTemporaryName));
  {
    TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<DiskFile> file,
                             disk_->OpenFile(kSuperblockTemporaryName, FileOpen::kNew, false));
    TERRACE_RETURN_IF_ERROR(file->WriteAt(0, std::as_bytes(std::span(bytes))));
    TERRACE_RETURN_IF_ERROR(file->Sync());
  }
  TERRACE_RETURN_IF_ERROR(disk_->Rename(kSuperblockTemporaryName, kSuperblockFileName));
  TERRACE_RETURN_IF_ERROR(disk_->SyncNames());
  superblock_ = superblock;
  return OkStatus();
}

}  // namespace terrace
