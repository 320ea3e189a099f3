// VerifyDisk: what VerifyNvmeDirectory does, on any Disk.
#pragma once

#include <functional>

#include "backends/nvme/disk.h"
#include "terrace/nvme_verify.h"

namespace terrace {

// The disk's directory exists (Disk::OpenDirectory would make it). options.directory and io_engine are not
// looked at.
Result<NvmeVerifyReport> VerifyDisk(Disk& disk, const NvmeVerifyOptions& options,
                                    const std::function<void(const NvmeVerifyProgress&)>& progress);

}  // namespace terrace
