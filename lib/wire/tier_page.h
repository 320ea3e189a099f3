// Tier page: the 4,096 bytes in front of a frame on disk. Written only by the disk tier, never hashed into
// the frame and never sent. Its MAC is keyed with the directory's secret, so that a payload that looks like a
// tier page and a frame is never adopted by a scan.
//
//   offset  size
//   0       8     magic "TERRPAGE"
//   8       4     u32 version = 1
//   12      4     u32 frame header area in bytes
//   16      16    directory id
//   32      8     u64 generation
//   40      8     u64 frame_bytes
//   48      8     i64 expiry, nanoseconds since the epoch, 0 = never
//   56      4     i32 priority
//   60      4     u32 reserved = 0
//   64      16    HMAC-SHA-256, first 128 bits, under the directory's secret, over bytes [0, 64) and the
//   frame's
//                 header area
//   80      4016  zeros
//
// An erased object's tier page is overwritten with zeros.
#pragma once

#include <array>
#include <cstdint>

#include "terrace/bytes.h"
#include "terrace/object_id.h"
#include "terrace/status.h"

namespace terrace {

using DirectoryId = std::array<std::byte, 16>;
using DirectorySecret = std::array<std::byte, 32>;

struct TierPage {
  DirectoryId directory{};
  uint64_t generation = 0;
  uint64_t frame_bytes = 0;
  int64_t expiry_ns = 0;
  int32_t priority = 0;
};

// Fills `page` (4,096 bytes) for the frame whose header area is `header_area`.
void WriteTierPage(const TierPage& fields, Bytes header_area, const DirectorySecret& secret,
                   MutableBytes page);

// kDataLoss unless the page is whole, was written under this secret for this very header area.
Result<TierPage> ParseTierPage(Bytes page, Bytes header_area, const DirectorySecret& secret);

// SHA-256 (kind to callers that have no OpenSSL in sight).
Digest Sha256(std::string_view bytes);

}  // namespace terrace
