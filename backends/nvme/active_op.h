// What NvmeCore knows of an operation between its start and the last word of device and manifest on it. The
// owner's thread only.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "backends/nvme/manifest.h"
#include "backends/nvme/placement.h"
#include "backends/nvme/sealed_read.h"
#include "backends/nvme/staging_pool.h"
#include "backends/nvme/transfer_queue.h"
#include "lib/wire/tier_page.h"
#include "terrace/backend.h"

namespace terrace {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
// Zeros, a multiple of 4,096 of them, 4,096-aligned.
using AlignedPage = std::unique_ptr<std::byte, FreeMemory>;
AlignedPage MakeAlignedPage(size_t bytes = kTierPageBytes);

using SecretRef = std::shared_ptr<const DirectorySecret>;

struct ActiveOp {
  virtual ~ActiveOp() = default;
  ObjectId id;
  TimePoint deadline = kNoDeadline;
  CancelFlag cancel;
  TransferRef transfer;  // null until there is something to move
  BufferRef buffer;
  std::function<void(const Status&)> answer;
  bool answered = false;
  bool orphaned = false;
};
using ActiveRef = std::shared_ptr<ActiveOp>;

struct GetState : ActiveOp {
  PlacementRef placement;
  SecretRef secret;
  bool whole = false;
  std::function<void(uint64_t, uint64_t)> on_bytes;
  std::unique_ptr<SealedRead> sealed;
};

struct EraseWaiter {
  EraseMode mode;
  std::function<void(const Status&)> answer;
};

struct ClearState {
  std::vector<PlacementRef> placements;
  std::vector<EraseWaiter> waiters;  // for Puts that it took with it
};

struct PutState : ActiveOp {
  PlacementRef placement;  // null while it waits for room
  ObjectMeta meta;
  uint32_t header_bytes = 0;
  StagedMemory page;  // of a sealed run with the tag area behind it
  ObjectSalt salt{};  // of a sealed run
  std::unique_ptr<RunSealer> sealer;
  uint64_t sequence = 0;
  RecordChange record;
  uint64_t failed_syncs = 0;  // the core's when its write began
  std::vector<EraseWaiter> waiters;
  std::shared_ptr<ClearState> cleared_by;  // a Clear came after it began
};
using PutRef = std::shared_ptr<PutState>;

// Room for Puts that is on its way (nvme_room.cc).
struct RoomState {
  std::vector<PutRef> waiting;    // for it, in order
  bool in_use = false;            // something was put since the start
  bool making = false;            // a segment
  bool failed = false;            // making or writing ahead: no more of it, but where a Put asks
  std::optional<Extent> zeroing;  // live for the allocator, and nobody's
  AlignedPage zeros;
  std::vector<uint64_t> written_bytes;  // per segment: what was written at some time, from its beginning on
};

}  // namespace terrace
