// Tier page: the 4,096 bytes in front of a frame on disk. Written only by the disk tier, never hashed into
// the frame and never sent. Its MAC is keyed with the directory's secret, so that a payload that looks like a
// tier page and a frame is never adopted by a scan.
//
//   offset  size
//   0       8     magic "TERRPAGE"
//   8       4     u32 version = 2 (version 1, still read: flags and all from offset 80 on are zero)
//   12      4     u32 frame header area in bytes
//   16      16    directory id
//   32      8     u64 generation
//   40      8     u64 frame_bytes
//   48      8     i64 expiry, nanoseconds since the epoch, 0 = never
//   56      4     i32 priority
//   60      4     u32 flags: 1 = sealed (backends/nvme/sealed_run.h)
//   64      16    HMAC-SHA-256, first 128 bits, under the directory's secret, over bytes [0, 64), [80, 4096)
//                 (version 1: [0, 64)) and the frame's header area (the plain one, where the run is sealed)
//   80      4     u32 number of extents; 0xffffffff = more than fit, a rebuild leaves the object out
//   84      4     u32 key id, 0 = not sealed
//   88      16    salt of the object's key, zero = not sealed
//   104     ...   extents, at most 332 (329 where sealed), of the run that begins with this page, in order:
//                 { u32 segment | u32 offset / 4,096 | u32 length / 4,096 }
//           ...   zeros
//   4060    36    where sealed: the object's record key, without which nothing of the run can be opened
//                 (lib/wire/object_record.h); else of the extents, or zeros
//
// An erased object's tier page is overwritten with zeros.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/wire/object_record.h"
#include "terrace/bytes.h"
#include "terrace/object_id.h"
#include "terrace/status.h"

namespace terrace {

using DirectoryId = std::array<std::byte, 16>;
using DirectorySecret = std::array<std::byte, 32>;
using ObjectSalt = std::array<std::byte, 16>;

struct TierPage {
  DirectoryId directory{};
  uint64_t generation = 0;
  uint64_t frame_bytes = 0;
  int64_t expiry_ns = 0;
  int32_t priority = 0;
  bool sealed = false;
  uint32_t key_id = 0;
  ObjectSalt salt{};
  ObjectId id;                  // where sealed; zero else
  std::vector<Extent> extents;  // empty: not known (version 1, or more than fit)
};

inline constexpr std::string_view kTierPageMagic = "TERRPAGE";
inline constexpr size_t kMaxPageExtents = 332;
inline constexpr size_t kMaxSealedPageExtents = 329;

// Fills `page` (4,096 bytes) for the frame whose header area is `header_area`.
void WriteTierPage(const TierPage& fields, Bytes header_area, const DirectorySecret& secret,
                   MutableBytes page);

// kDataLoss unless the page is whole, was written under this secret for this very header area.
Result<TierPage> ParseTierPage(Bytes page, Bytes header_area, const DirectorySecret& secret);

// What a page says of itself before its code was looked at.
struct PeekedTierPage {
  uint32_t header_bytes = 0;  // of the frame's header area, which ParseTierPage wants
  TierPage fields;
};
// For a scan, which has to find the header area before it can authenticate the page. Bounded: a header area
// of 1 MiB at most inside the frame, extents that together hold page and frame. Nothing of it is to be
// trusted before ParseTierPage: anybody can write such bytes into a payload. kDataLoss: not a tier page.
Result<PeekedTierPage> PeekTierPage(Bytes page);

// SHA-256 (kind to callers that have no OpenSSL in sight).
Digest Sha256(std::string_view bytes);

}  // namespace terrace
