// KvEvent: what came into the tiers and what left them, for routers that send a prompt where its prefix lies.
#pragma once

#include <cstdint>

#include "terrace/export.h"
#include "terrace/object_id.h"
#include "terrace/tokens.h"

namespace terrace {

enum class KvEventKind : uint8_t {
  kStored = 1,   // the first tier has the object
  kRemoved = 2,  // no tier has it any more
  kCleared = 3,  // everything is gone; no other field is set
};

struct KvEvent {
  KvEventKind kind = KvEventKind::kStored;
  ObjectId id;
  ChunkKey root;
  ChunkKey parent;
  uint64_t first_token = 0;
  ChunkContentRef content;  // kStored: null where the index does not keep it
};

// Where a manager tells them. Called in the order in which they happen, under the manager's lock: Record
// neither blocks nor calls the manager, and does not throw.
class TERRACE_API KvEventSink {
 public:
  virtual ~KvEventSink() = default;
  virtual void Record(KvEvent event) noexcept = 0;
};

}  // namespace terrace
