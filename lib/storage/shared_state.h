// What a manager shares with the objects that it gives out: roots, writable chunks and writes on their way.
// Fields of a State are fixed once it was given out, but for those that say whose lock guards them.
#pragma once

#include <memory>

#include "lib/storage/lease_state.h"
#include "lib/wire/frame.h"
#include "terrace/storage_manager.h"

namespace terrace {

class ManagerCore;

struct WritableChunk::State {
  std::shared_ptr<ManagerCore> core;
  ObjectId id;
  TokenRange tokens;
  uint64_t store_id = 0;
  BufferRef buffer;
  FrameHeader header;
  uint64_t ticket = 0;

  ~State();
};

// One object on its way into one lower tier.
struct WriteJob {
  ObjectId id;
  BufferRef frame;
  ObjectMeta meta;
  uint64_t ticket = 0;
  int evictions_tried = 0;
  enum class Phase { kQueued, kInFlight, kDone } phase = Phase::kQueued;
  Status status;        // in kDone
  bool doomed = false;  // erased meanwhile: must not become visible
};

}  // namespace terrace
