// SealedFeed: what FrameChecker is given of a sealed run while the run's bytes go by: the tier page, and the
// frame, opened piece by piece. What does not open is the checker's fault.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "backends/nvme/frame_checker.h"
#include "backends/nvme/key_ring.h"
#include "backends/nvme/sealed_run.h"

namespace terrace {

class SealedFeed {
 public:
  // All outlive it.
  SealedFeed(const DirectoryId& directory, const KeyRing& keys, FrameChecker& checker);

  // The next object, which the checker has begun. Its key is in the ring.
  void Begin(const ObjectId& id, const ObjectRecord& record);
  // The run's bytes, in order, in parts of any length.
  void Feed(Bytes bytes);

 private:
  void OpenRun();
  void OpenPiece();

  const DirectoryId& directory_;
  const KeyRing& keys_;
  FrameChecker& checker_;
  RunIdentity run_;
  uint64_t head_bytes_ = 0;  // of tier page and tag area
  uint64_t header_bytes_ = 0;
  std::optional<RunOpener> opener_;
  std::vector<std::byte> head_;
  std::vector<std::byte> piece_;  // what has come of it
  uint64_t next_piece_ = 0;
  // Tier page and plain header area, which the checker takes at once.
  std::vector<std::byte> front_;
};

}  // namespace terrace
