// Checking a directory of the NVMe tier (nvme_backend.h): an independent reader that looks at every record
// and reads every byte of every object, beside whatever the tier itself believes. `terrace verify` is this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/export.h"
#include "terrace/nvme_backend.h"
#include "terrace/status.h"

namespace terrace {

// What can be wrong. A record is told once, by the first of these that it meets; but a frame that is wrong
// prevails over its content record, as an object with a right frame keeps it.
enum class NvmeFindingKind : uint8_t {
  kManifest,   // missing or unreadable, as a whole or from some record on; another directory's, or older than
               // the superblock. Not repaired: the tier's next start rebuilds it, or says that it cannot
  kRecordKey,  // a record under a key that names no object
  kPlaceRecord,    // a place that does not decode, or whose lengths do not fit together
  kContentRecord,  // tokens that do not decode, that belong to no place, or that a place names in vain
  kIdentity,       // the tokens and items are not those of the key
  kErased,         // of an object that was erased later
  kPlaceBounds,    // a place beyond the segments that are there
  kQuarantine,     // a place with bytes that are never to be used again
  kPlaceOverlap,   // bytes that a record of a higher generation claims too
  kTierPage,       // not of this directory, generation, length, or wiped
  kFrameHeader,    // not whole, or of another object than the record
  kPayload,        // a piece's hash is wrong
  kUnreadable,     // the device gave an error for its bytes
  kRootRecord,     // an entry of the roots table that does not decode
  kCapacity,       // segments and manifest take more than NvmeVerifyOptions::capacity_bytes. Not repaired
  kErasedLog,  // the log of erased objects is missing, or has broken entries: a rebuild would leave out what
               // is older. Not repaired
  kForeignFile,  // a name that is not the tier's. Harmless: such a directory is clean, and it stays
};
inline constexpr size_t kNumNvmeFindingKinds = 17;

// "payload", "tier_page", ...: what terrace verify --json prints.
TERRACE_API std::string_view NvmeFindingKindName(NvmeFindingKind kind);

struct NvmeFinding {
  NvmeFindingKind kind = NvmeFindingKind::kManifest;
  std::string name;  // the object as key/group/shard, a record's key in hex, or a file
  std::string reason;
  uint64_t bytes = 0;  // that the object takes on disk, tier page included; 0 where none are known
};

struct NvmeFindingCount {
  uint64_t count = 0;
  uint64_t bytes = 0;
};

struct NvmeVerifyReport {
  std::array<NvmeFindingCount, kNumNvmeFindingKinds> counts{};  // by kind
  std::vector<NvmeFinding> findings;                            // the first max_findings

  uint64_t records = 0;          // of objects, right or wrong
  uint64_t roots = 0;            // of the roots table
  uint64_t objects_checked = 0;  // whose bytes were read
  uint64_t bytes_read = 0;       // of segments
  uint64_t dropped_records = 0;  // by `repair`: objects, contents alone, roots

  // live + free + quarantined = segment bytes. Live is what records claim that are in their bounds and do not
  // overlap, after the repair where there was one.
  uint64_t segment_bytes = 0;
  uint64_t live_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t quarantined_bytes = 0;
  uint64_t manifest_bytes = 0;
  uint64_t segments = 0;

  const NvmeFindingCount& count(NvmeFindingKind kind) const { return counts[static_cast<size_t>(kind)]; }
  // Nothing but foreign files was found.
  TERRACE_API bool IsClean() const;
};

struct NvmeVerifyOptions {
  std::string directory;
  // Drops the records of what is wrong, durably, and changes nothing else. Dropped objects are misses for the
  // tier. An object whose content record alone is wrong loses that, and with it the match inside its chunk;
  // its place then says that there is none. Safe to repeat after any crash; a verify after it finds nothing
  // that a record stood for.
  bool repair = false;
  uint64_t capacity_bytes = 0;  // what segments and manifest may take; 0: not checked
  size_t max_findings = 100;    // listed in the report; all are counted
  IoEngineKind io_engine = IoEngineKind::kAuto;
  std::vector<EncryptionKey> keys;  // all of an encrypted directory's
  Status Validate() const;
};

struct NvmeVerifyProgress {
  uint64_t bytes_read = 0;
  uint64_t bytes_total = 0;
  uint64_t objects_checked = 0;
  uint64_t objects_total = 0;
  uint64_t findings = 0;
};

// Takes the directory's lock for as long as it runs. Without `repair` no file changes but the lock's text.
// Called on the caller's thread, as is `progress` (may be null; after each read). Memory: 32 MiB, two bits
// per 4 KiB of segments, about 100 bytes per object, and the log of erased objects.
//
// Errors mean that nothing was judged: kNotFound (no such directory, or not a tier; it stays untouched),
// kDataLoss (superblock broken or of a newer version, a symbolic link), kUnavailable (held; the message names
// the holder), kPermissionDenied (a file; a key that is missing, or is not the directory's), kInvalidArgument
// (options; keys for a directory that is not encrypted).
TERRACE_API Result<NvmeVerifyReport> VerifyNvmeDirectory(
    const NvmeVerifyOptions& options, const std::function<void(const NvmeVerifyProgress&)>& progress = {});

}  // namespace terrace
