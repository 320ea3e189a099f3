// LoadPlan: the steps of a load in the order in which they are taken. Chunk-major: one per object, its whole
// payload. Layer-major: one per (layer group, object), layer groups outside, so that a group of layers is
// there for all chunks before the next one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/codec/paged_copy.h"
#include "lib/storage/lease_state.h"

namespace terrace {

// One step: bytes [payload_begin, payload_end) of one object's payload.
struct LoadUnit {
  size_t item = 0;  // which object, of the load's
  uint64_t payload_begin = 0;
  uint64_t payload_end = 0;
  LayerSpan layers;  // of the part's layers; of no meaning for opaque payloads
  uint32_t end_layer =
      0;                 // layer-major: of the model's layers, those below are in this step or an earlier one
  bool is_first = true;  // of its object's steps
  bool is_last = true;
  bool is_whole() const { return is_first && is_last; }
};

std::vector<LoadUnit> PlanChunkMajor(const KvSpec& spec, std::span<const LeaseItem> items);

// Layers are grouped so that the largest part's read of a group is 1 MiB or more, and those of all objects
// together 4 MiB, as far as payloads allow. What a remote tier announced is one step of the first group: how
// its frame is laid out is known when it is there. `spec` is canonical.
std::vector<LoadUnit> PlanLayerMajor(const KvSpec& spec, std::span<const LeaseItem> items);

}  // namespace terrace
