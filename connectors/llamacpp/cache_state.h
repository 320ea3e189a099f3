// LlamaCache::State: the parts of a cache. llama_cache.cc makes it and changes its root; fetch.cc and save.cc
// are its two ways.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "connectors/llamacpp/llama_cache.h"
#include "connectors/llamacpp/model_digest.h"
#include "connectors/llamacpp/scratch_sequence.h"
#include "connectors/llamacpp/slot_record.h"

namespace terrace::llamacpp {

struct ContextDeleter {
  void operator()(llama_context* context) const { llama_free(context); }
};
using ContextPtr = std::unique_ptr<llama_context, ContextDeleter>;

inline double MsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// What is to be loaded, and until when.
struct LoadWish {
  TokenRange range;
  TimePoint deadline;
};

struct LlamaCache::State {
  State(ContextPtr made_context, const ModelTraits& model_traits, LlamaCacheOptions cache_options,
        KvSpec kv_spec);

  // fetch.cc
  FetchResult Fetch(llama_seq_id slot, const Prompt& prompt);
  uint64_t KeepablePrefix(llama_seq_id slot, const Prompt& prompt, uint64_t limit) const;
  uint64_t LoadFrom(uint64_t kept) const;
  // What the store has of the prompt's first `limit` tokens, its remote tier too; none where nothing can be
  // asked.
  std::optional<Lease> LookUp(const Prompt& prompt, uint64_t limit, TimePoint deadline, FetchResult* result);
  uint64_t LoadInto(llama_seq_id slot, const Lease& lease, const LoadWish& wish, FetchResult* result);

  // save.cc
  SaveResult Save(llama_seq_id slot, const Prompt& prompt, bool with_tail);
  Status CheckStand(llama_seq_id slot, const Prompt& prompt);
  void StoreChunks(llama_seq_id slot, const Prompt& prompt, bool with_tail, SaveResult* result);
  Status StoreFullChunks(llama_seq_id slot, const Prompt& prompt, SaveResult* result);
  Status StoreOne(llama_seq_id slot, const Prompt& prompt, TokenRange range, SaveResult* result);

  // llama_cache.cc
  Status CheckCall(llama_seq_id slot, const Prompt& prompt) const;
  bool HasStore() const { return options.manager != nullptr && root_status.ok(); }
  Status MakeRoot(std::span<const Adapter> adapters);
  Status SetAdapters(const std::vector<ActiveAdapter>& adapters);
  bool ReportLogits(llama_seq_id slot, std::span<const float> logits);
  void Forget(llama_seq_id slot);
  // Empties the slot; it is known to be empty.
  void ClearSlot(llama_seq_id slot);
  bool AnyUnreported() const;

  const ContextPtr context;
  const ModelTraits traits;
  const LlamaCacheOptions options;
  const std::shared_ptr<ModelDigests> digests;
  const KvSpec spec;
  ScratchSequence scratch;
  ChunkKey root;
  Status root_status;  // not OK: nothing is looked up or stored
  std::vector<SlotRecord> slots;
  // Stored while an injection was not yet reported on: it may be computed from a poisoned context.
  std::vector<ChunkKey> stored_unreported;
  LlamaCacheCounters counters;
};

// The engine's token ids are signed and not negative; Terrace's are the same bits.
inline TokenView ViewOf(const Prompt& prompt) {
  return {{reinterpret_cast<const Token*>(prompt.tokens.data()), prompt.tokens.size()}, prompt.items};
}

}  // namespace terrace::llamacpp
