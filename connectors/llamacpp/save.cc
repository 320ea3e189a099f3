// Save: chunk by chunk, so that one scratch copy exists at a time, from the engine straight into the chunk's
// buffer.
#include <algorithm>
#include <string>
#include <utility>

#include "connectors/llamacpp/cache_state.h"

namespace terrace::llamacpp {

using std::chrono::steady_clock;

// The slot stands exactly where the tokens say, and they extend what it was known to hold.
Status LlamaCache::State::CheckStand(llama_seq_id slot, const Prompt& prompt) {
  SlotRecord& record = slots[static_cast<size_t>(slot)];
  if (!record.known) return FailedPreconditionError("the slot was forgotten; Fetch starts it anew");
  const uint64_t held = scratch.TokensIn(slot);
  if (held < record.tokens.size()) {
    record.Reset(false);
    return FailedPreconditionError("the slot holds " + std::to_string(held) +
                                   " tokens, fewer than were reported");
  }
  if (held != prompt.tokens.size()) {
    return FailedPreconditionError("the slot holds " + std::to_string(held) + " tokens, not the " +
                                   std::to_string(prompt.tokens.size()) + " that were given");
  }
  if (!scratch.IsWhole(slot, held)) {
    record.Reset(false);
    return FailedPreconditionError("the slot's first positions are gone");
  }
  const uint64_t common = record.CommonPrefix(prompt);
  if (common != record.tokens.size()) {
    return FailedPreconditionError("the tokens differ at " + std::to_string(common) +
                                   " from what the slot holds");
  }
  return OkStatus();
}

SaveResult LlamaCache::State::Save(llama_seq_id slot, const Prompt& prompt, bool with_tail) {
  const auto start = steady_clock::now();
  SaveResult result;
  ++counters.saves;
  Status stand = CheckCall(slot, prompt);
  if (stand.ok()) stand = CheckStand(slot, prompt);
  if (!stand.ok()) {
    ++counters.refused_saves;
    result.reason = stand;
    result.thread_ms = MsSince(start);
    return result;
  }
  SlotRecord& record = slots[static_cast<size_t>(slot)];
  // One full step from an exact boundary to the next; anything else ends exactness here.
  if (record.tokens.size() == record.exact_tokens &&
      prompt.tokens.size() == record.exact_tokens + kChunkTokens) {
    record.exact_tokens += kChunkTokens;
  }
  record.Extend(prompt);
  if (HasStore()) {
    if (prompt.tokens.size() >= record.retry_at) StoreChunks(slot, prompt, with_tail, &result);
  } else if (options.manager != nullptr) {
    result.reason = root_status;
  }
  result.thread_ms = MsSince(start);
  return result;
}

void LlamaCache::State::StoreChunks(llama_seq_id slot, const Prompt& prompt, bool with_tail,
                                    SaveResult* result) {
  SlotRecord& record = slots[static_cast<size_t>(slot)];
  const uint64_t size = prompt.tokens.size();
  const uint64_t boundary = size / kChunkTokens * kChunkTokens;
  Status status = StoreFullChunks(slot, prompt, result);
  const bool tail = with_tail && options.save_tails && !options.exact_only && size > boundary;
  if (status.ok() && tail) status = StoreOne(slot, prompt, {boundary, size}, result);
  if (status.ok()) return;
  // The store cannot keep it now. Asking again for every token would cost more than it brings: at the next
  // boundary.
  record.retry_at = boundary + kChunkTokens;
  // To the host kFailedPrecondition says that the slot does not stand where the tokens say.
  result->reason = status.code() == StatusCode::kFailedPrecondition
                       ? ResourceExhaustedError("not kept: " + std::string(status.message()))
                       : status;
}

Status LlamaCache::State::StoreFullChunks(llama_seq_id slot, const Prompt& prompt, SaveResult* result) {
  SlotRecord& record = slots[static_cast<size_t>(slot)];
  const uint64_t size = prompt.tokens.size();
  uint64_t end = size / kChunkTokens * kChunkTokens;
  if (options.exact_only) end = std::min(end, record.exact_tokens);
  if (!traits.CanCut()) {
    // Earlier chunks lost rows or state already: only the one that ends here is whole.
    if (end != size || end == 0 || record.stored_tokens >= end) return OkStatus();
    Status stored = StoreOne(slot, prompt, {end - kChunkTokens, end}, result);
    if (stored.ok()) record.stored_tokens = end;
    return stored;
  }
  bool restarted = false;
  while (record.stored_tokens < end) {
    const uint64_t begin = record.stored_tokens;
    Status stored = StoreOne(slot, prompt, {begin, begin + kChunkTokens}, result);
    if (stored.code() == StatusCode::kFailedPrecondition && begin > 0 && !restarted) {
      // An ancestor was evicted meanwhile; the slot still has its rows.
      restarted = true;
      record.stored_tokens = 0;
      continue;
    }
    if (!stored.ok()) return stored;
    record.stored_tokens = begin + kChunkTokens;
  }
  return OkStatus();
}

Status LlamaCache::State::StoreOne(llama_seq_id slot, const Prompt& prompt, TokenRange range,
                                   SaveResult* result) {
  const PayloadSizes sizes = [&](TokenRange tokens, ObjectPart) { return scratch.Stage(slot, tokens); };
  Result<PrepareResult> prepared = options.manager->Prepare(root, ViewOf(prompt), range, sizes);
  if (!prepared.ok() || prepared->chunks.empty()) {
    scratch.Drop();
    if (!prepared.ok()) return prepared.status();
    return prepared->status.ok() ? InternalError("the store announced no chunk") : prepared->status;
  }
  PreparedChunk& chunk = prepared->chunks.front();
  if (chunk.present || !chunk.writable) {
    scratch.Drop();
    if (!chunk.present)
      return prepared->status.ok() ? InternalError("no buffer for a chunk") : prepared->status;
    ++result->present_objects;
    return OkStatus();
  }
  const uint64_t bytes = chunk.writable->payload().size();
  if (Status read = scratch.Read(chunk.writable->payload()); !read.ok()) return read;  // abandons the chunk
  std::vector<WritableChunk> filled;
  filled.push_back(std::move(*chunk.writable));
  options.manager->Commit(std::move(filled));
  ++result->stored_objects;
  result->stored_bytes += bytes;
  if (options.check_logits && AnyUnreported()) stored_unreported.push_back(chunk.id.key);
  return OkStatus();
}

}  // namespace terrace::llamacpp
