// MatchPrefix: the longest loadable prefix of a prompt in the index. For a boundary after n chunks, full
// groups need all of them, window groups the last few, state groups the last one; after a boundary where full
// and window groups have what they need, a child may add tokens.
//
// Takes no lock of its owner. What a match found present and pinned stays where it was found until it is
// unpinned; what it did not pin may be gone when it returns.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/chunk_index.h"
#include "lib/storage/root_table.h"

namespace terrace {

struct MatchRequest {
  const RootState& root;
  std::span<const ChunkKey> keys;  // of the prompt's full chunks
  const TokenView& prompt;
  uint64_t limit = 0;  // tokens; the match ends here at the latest
  std::span<const ObjectPart> parts;
  const ChunkKey* parent = nullptr;  // of the first chunk, where that is not the root's first
  std::optional<uint32_t> division;  // of the objects; null: any
  uint64_t known_chunks =
      0;  // an earlier match's full chunks, still pinned: not looked at again. Full groups only
  bool pin = false;
  bool has_host = false;
  uint64_t pool_bytes = 0;  // what does not fit in it cannot be loaded
};

struct MatchedChunk {
  IndexEntry* entry = nullptr;  // null: no object of it is needed
  ChunkKey key;
  uint64_t first_token = 0;
  uint32_t num_tokens = 0;
  bool host_pin = false;  // pinned: the entry has a hold and these
  bool lower_pin = false;
};

struct MatchPlan {
  uint64_t first_token = 0;           // where the first key's chunk begins; set by the caller
  uint64_t matched_tokens = 0;        // from there on
  bool has_tail = false;              // the last chunk is the child that the match ends inside (or with)
  std::vector<MatchedChunk> chunks;   // from known_chunks on
  std::vector<ObjectPresence> found;  // chunks x parts, as they were; tiers == 0 where not needed
  std::vector<ChunkKey> unused;       // for the owner: ChunkIndex::RemoveIfUnused
};

MatchPlan MatchPrefix(ChunkIndex& index, const MatchRequest& request);

// Chunks that a window group needs before a boundary, the boundary's own included, and one more: an engine
// that leaves the last token to compute may step back over a boundary.
uint64_t WindowChunks(const GroupSpec& group, uint32_t tokens_per_chunk);

}  // namespace terrace
