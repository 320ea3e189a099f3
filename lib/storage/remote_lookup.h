// RemoteQuestion: what was asked of a tier that answers for itself, kept until it answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lib/storage/root_table.h"
#include "terrace/tokens.h"
#include "terrace/trace.h"

namespace terrace {

struct RemoteQuestion {
  size_t tier = 0;
  RootStateRef root;
  std::vector<ObjectPart> parts;
  uint64_t first_chunk = 0;
  uint64_t limit = 0;          // tokens of the prompt
  std::vector<ChunkKey> keys;  // of full chunks, from first_chunk on
  ChunkKey parent;             // of the first of them
  ChunkKey run_key;            // as in PrefixQuery
  ChunkContent content;        // from first_chunk's first token to the limit
  std::function<void(uint64_t matched_tokens)> on_remote;
  std::unique_ptr<RequestTrace> trace;  // of the lookup, which ends with the answer; may be null
  std::chrono::steady_clock::time_point asked_at;
};

}  // namespace terrace
