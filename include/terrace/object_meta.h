// ObjectMeta: what a tier knows of an object beside its bytes. The same facts as in the frame header,
// plus what changes per tier (generation, expiry, priority). A plain value; `content` is shared.
#pragma once

#include <cstdint>

#include "terrace/object_id.h"
#include "terrace/time.h"
#include "terrace/tokens.h"

namespace terrace {

// Chunks of a prefix that one server holds together, a run: [0, 4), [4, 32), then [32 n, 32 n + 32). Prompts
// of one service begin alike: with a first run of 32 chunks, more than twice a fair share of what they have in
// all lay on one of four servers (the recorded conversations in the tests of backends/remote).
inline constexpr uint32_t kRunChunks = 32;
inline constexpr uint32_t kFirstRunChunks = 4;
// The first chunk of the run that a chunk lies in, and the first chunk beyond it.
constexpr uint64_t RunBegin(uint64_t chunk) {
  if (chunk >= kRunChunks) return chunk / kRunChunks * kRunChunks;
  return chunk < kFirstRunChunks ? 0 : kFirstRunChunks;
}
constexpr uint64_t RunEnd(uint64_t chunk) {
  return chunk < kFirstRunChunks ? kFirstRunChunks : (chunk / kRunChunks + 1) * kRunChunks;
}

enum class Codec : uint8_t {
  kRaw = 0,
};

struct ObjectMeta {
  ChunkKey root;
  ChunkKey parent;
  uint64_t first_token = 0;    // position of the chunk's first token in the prompt
  ChunkContentRef content;     // tokens and items; may be null where a backend does not keep them
  uint64_t frame_bytes = 0;    // header + payload, multiple of 4,096; without the tier page
  uint64_t payload_bytes = 0;  // decoded
  Codec codec = Codec::kRaw;
  uint16_t flags = 0;
  uint32_t division = 0;  // KvSpec::DivisionTag: how the model was cut into shards
  int32_t priority = 0;
  WallTime expiry{};        // epoch = never
  uint64_t generation = 0;  // given by a disk backend, 0 elsewhere
  // The key of the first chunk of this chunk's run (RunBegin): what places it on one of several
  // servers. Of a put only, all zero where it is not known; not kept.
  ChunkKey run_key;
};

}  // namespace terrace
