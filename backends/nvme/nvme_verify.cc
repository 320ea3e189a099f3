// The public face of verify.
#include "terrace/nvme_verify.h"

#include <sys/stat.h>

#include <algorithm>

#include "backends/nvme/file_descriptor.h"
#include "backends/nvme/key_ring.h"
#include "backends/nvme/verifier.h"
#include "backends/nvme/verify.h"
#include "lib/base/status_macros.h"

namespace terrace {

std::string_view NvmeFindingKindName(NvmeFindingKind kind) {
  constexpr std::array<std::string_view, kNumNvmeFindingKinds> kNames = {
      "manifest",     "record_key",  "place_record",  "content_record", "identity",     "erased",
      "place_bounds", "quarantine",  "place_overlap", "tier_page",      "frame_header", "payload",
      "unreadable",   "root_record", "capacity",      "erased_log",     "foreign_file"};
  const auto index = static_cast<size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown";
}

bool NvmeVerifyReport::IsClean() const {
  for (size_t kind = 0; kind < counts.size(); ++kind) {
    if (counts[kind].count > 0 && kind != static_cast<size_t>(NvmeFindingKind::kForeignFile)) return false;
  }
  return true;
}

Status NvmeVerifyOptions::Validate() const {
  if (directory.empty()) return InvalidArgumentError("directory is empty, allowed: a path");
  return ValidateKeys(keys);
}

Result<NvmeVerifyReport> VerifyDisk(Disk& disk, const NvmeVerifyOptions& options,
                                    const std::function<void(const NvmeVerifyProgress&)>& progress) {
  return Verifier(disk, options, progress).Run();
}

Result<NvmeVerifyReport> VerifyNvmeDirectory(const NvmeVerifyOptions& options,
                                             const std::function<void(const NvmeVerifyProgress&)>& progress) {
  TERRACE_RETURN_IF_ERROR(options.Validate());
  // A disk makes the directory that it is opened on: it must be there.
  struct stat facts {};
  if (lstat(options.directory.c_str(), &facts) != 0) {
    if (errno == ENOENT) return NotFoundError("directory " + options.directory + " does not exist");
    return ErrnoStatus("directory " + options.directory, errno);
  }
  const std::unique_ptr<Disk> disk = MakeSystemDisk(options.directory, options.io_engine);
  return VerifyDisk(*disk, options, progress);
}

}  // namespace terrace
