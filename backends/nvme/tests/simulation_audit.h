// AuditTier: reads a closed tier's manifest and segments by itself, with nothing of the tier's own state.
#pragma once

#include <cstdint>
#include <string>

#include "backends/nvme/disk.h"

namespace terrace {

struct TierAudit {
  std::string wrong;  // empty: records decode, extents lie in their segments and are disjoint, and each
                      // record's place holds its tier page
  uint64_t records = 0;
  uint64_t live_bytes = 0;     // of the records' extents
  uint64_t segment_bytes = 0;  // lengths of the segments
};

TierAudit AuditTier(Disk& disk);

}  // namespace terrace
