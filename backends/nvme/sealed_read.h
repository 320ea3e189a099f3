// SealedRead: the reading of one sealed object, whole or in ranges. Says where the parts of the run have to
// land, and opens each piece as soon as it and the tags are there; nothing of a piece counts as read before
// it was authenticated.
//
// A piece that is wanted as a whole lands in its place in the destination and is opened there; one of which
// only a part is wanted lands in staging memory, and the part is copied. Tier page and tags land in staging
// memory in front of those.
//
// Threads: the owner's only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "backends/nvme/key_ring.h"
#include "backends/nvme/sealed_run.h"
#include "backends/nvme/staging_pool.h"
#include "terrace/backend.h"
#include "terrace/status.h"

namespace terrace {

class SealedRead {
 public:
  // Bytes [run_offset, run_offset + length) of the run land at `memory`.
  struct Landing {
    uint64_t run_offset = 0;
    uint64_t length = 0;
    std::byte* memory = nullptr;
  };
  // Offset in the destination's frame, and length.
  using OnPlain = std::function<void(uint64_t offset, uint64_t n)>;

  // `ranges` are within the frame, land within `dst_frame` and do not meet there; none: the whole frame.
  // `keys` and the destination outlive it.
  SealedRead(const RunIdentity& run, const KeyRing* keys, std::span<const FrameRange> ranges,
             MutableBytes dst_frame, StagingPool& staging);

  std::vector<Landing> landings() const;
  // [memory, memory + n) has landed. Opens what is complete now; each part of the destination that this
  // finishes is reported once.
  void OnBytes(const std::byte* memory, uint64_t n, const OnPlain& on_plain);
  // OK: everything landed, and every piece opened. kDataLoss: the first that did not. kInternal before the
  // end.
  Status Finish() const;
  // As it was read. After Finish said OK it named the key under which everything opened.
  Bytes tier_page() const { return head().first(kTierPageBytes); }

 private:
  struct Part {
    uint64_t piece = 0;
    std::byte* memory = nullptr;  // where it lands
    uint64_t length = 0;
    uint64_t landed_bytes = 0;
    // What is wanted of it: `wanted` bytes from `skip`, at dst_offset.
    uint64_t skip = 0;
    uint64_t wanted = 0;
    uint64_t dst_offset = 0;
    bool is_staged = false;
  };

  void PlanRange(const FrameRange& range);
  uint64_t head_bytes() const { return FrameOffsetInRun(run_.frame_bytes, true); }
  Bytes head() const { return {staging_.get(), head_bytes()}; }
  Status BeginOpening();
  void OpenPart(const Part& part, const OnPlain& on_plain);

  const RunIdentity run_;
  const KeyRing* const keys_;
  const MutableBytes dst_;
  StagedMemory staging_;     // tier page, tags, then the staged pieces
  std::vector<Part> parts_;  // by memory, once planned
  uint64_t head_landed_bytes_ = 0;
  size_t open_parts_ = 0;  // that have not been opened yet
  std::optional<RunOpener> opener_;
  Status status_;
};

}  // namespace terrace
