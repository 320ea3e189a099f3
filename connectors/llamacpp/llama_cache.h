// LlamaCache: a llama.cpp context whose prompts outlive their slot. The host keeps its decode loop and calls
//
//   Fetch(slot, prompt)      before the prompt is computed -> tokens that need no computing
//   Save(slot, tokens)       after each decode             -> stores the chunks that became complete
//   Forget(slot)             after a context shift or an edit of the slot's cells
//
// Only llama.h's public API is used. The state of one sequence is an opaque blob; a spare sequence id (the
// scratch sequence, n_seq_max = slots + 1 in a unified context) is used to cut and join by tokens:
//
//   save [p0,p1):  seq_cp(slot -> S, p0, p1);  get_data(S) straight into the WritableChunk;  seq_rm(S)
//   load chunk:    set_data(LeasedChunk -> S); seq_cp(S -> slot);                            seq_rm(S)
//
// Threads: every call on the thread that decodes, between decodes; nothing here is thread safe. No exception
// leaves; any failure inside means "compute it". The context belongs to this object; the model must outlive
// it.
//
// What the host must not do behind the connector's back, because no call of the engine tells it: set LoRA
// adapters (SetAdapters does), control vectors or causal attention; use the scratch sequence; move, cut or
// refill a slot without Forget. Cutting the tail of a slot is seen (fewer positions than were reported) and
// costs the slot's prefix.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llama.h"
#include "terrace/storage_manager.h"

namespace terrace::llamacpp {

class ModelDigests;  // model_digest.h

// Which weights. Exactly one of the first two is given: all GGUF parts in order (their SHA-256 is taken), or
// an explicit id for models that come from memory.
struct ModelIdentity {
  std::vector<std::string> gguf_paths;
  std::string id;
  // What the model was loaded with (overridden metadata, placement: they change bytes, and no call tells
  // them). Null = the engine's defaults. Read by Create only.
  const llama_model_params* model_params = nullptr;
};

struct LlamaCacheOptions {
  std::shared_ptr<StorageManager> manager;  // null: everything is computed, nothing is kept
  std::string salt;                         // isolates tenants
  int slots = 1;  // sequence ids 0..slots-1 belong to the host, `slots` is the scratch sequence
  // Only chunks whose whole prefix was computed or loaded in full 256-token steps are stored, hits (the
  // slot's own too) end on chunk boundaries, no tails: logits then equal a cold one-shot prefill's byte for
  // byte. Requires n_ubatch 256. Another root. The connector sees Save, not decode: a chunk counts as exact
  // if Fetch or Save was called where it begins and Save where it ends, nothing between; the host then
  // decodes it in one step of NextStep, alone in its batch.
  bool exact_only = false;
  bool check_logits = false;  // host calls ReportLogits after the first decode that follows an injection
  bool save_tails = true;     // SaveTail stores a last chunk that is not full
  Duration load_deadline = std::chrono::seconds(10);  // of one Fetch, waiting for a remote answer included
  // Of that, how long a remote tier may take to say what it has; zero: it is not asked. What it does not
  // answer in time is computed.
  Duration remote_deadline = std::chrono::seconds(1);
  std::shared_ptr<ModelDigests>
      digests;  // digests of files taken before in this process; null = one of its own
};

// Tokens and what stands at placeholder positions.
struct Prompt {
  std::span<const llama_token> tokens;
  std::span<const Item> items;
  Prompt(std::span<const llama_token> t, std::span<const Item> i = {}) : tokens(t), items(i) {}  // NOLINT
  Prompt(const std::vector<llama_token>& t) : tokens(t) {}                                       // NOLINT
};

// What one tier gave.
struct TierShare {
  uint64_t tokens = 0;
  uint64_t objects = 0;
};

struct FetchResult {
  uint64_t ready_tokens =
      0;  // the slot holds exactly these; the host decodes from here on (never all of the prompt)
  uint64_t loaded_tokens = 0;  // of those, from the store (the rest was in the slot already)
  uint64_t loaded_objects = 0;
  uint64_t loaded_bytes = 0;
  std::vector<TierShare> by_tier;  // of what was loaded, by the manager's tiers; as long as it needs to be
  double remote_ms = 0;            // waiting for what a remote tier says that it has
  double load_ms = 0;              // waiting for the store's bytes
  double set_data_ms = 0;          // inside the engine
  // Why less than the match was injected, or why it is not known what a remote tier has; OK else.
  Status reason;
};

struct SaveResult {
  uint64_t stored_objects = 0;
  uint64_t present_objects = 0;
  uint64_t stored_bytes = 0;
  double thread_ms = 0;  // spent on this (the decode) thread
  Status reason;         // kFailedPrecondition: the slot does not stand where the tokens say
};

// Per process totals since Create.
struct LlamaCacheCounters {
  uint64_t fetches = 0;
  uint64_t injected_chunks = 0;
  uint64_t injection_failures = 0;  // set_data or seq_cp refused, positions wrong, cells ran out
  uint64_t saves = 0;
  uint64_t refused_saves = 0;
  uint64_t poisoned = 0;         // non-finite logits after an injection
  uint64_t remote_timeouts = 0;  // a remote tier did not answer within remote_deadline
};

class LlamaCache {
 public:
  // Makes the context. Forces kv_unified and n_seq_max = slots + 1. kInvalidArgument or kUnimplemented with
  // the reason for what cannot be served: flash attention "auto", M-RoPE, encoders, embeddings, non-causal
  // attention, ctx_other, other context types, n_rs_seq != 0, exact_only without n_ubatch 256, ...
  static Result<std::unique_ptr<LlamaCache>> Create(llama_model* model, const ModelIdentity& identity,
                                                    const llama_context_params& params,
                                                    const LlamaCacheOptions& options);
  ~LlamaCache();

  llama_context* context() const;
  llama_seq_id scratch_sequence() const;
  const KvSpec& spec() const;
  const ChunkKey& root() const;
  uint32_t tokens_per_chunk() const;

  // Makes the slot hold the longest known prefix of the prompt: what it holds already, or what the store has,
  // whichever is longer, never the whole prompt.
  FetchResult Fetch(llama_seq_id slot, const Prompt& prompt);
  // The slot holds exactly `prompt` (all computed), which extends what the last Fetch or Save left there.
  // Stores the complete chunks that are not stored yet; of models with window or recurrent state only a chunk
  // that ends exactly here.
  SaveResult Save(llama_seq_id slot, const Prompt& prompt);
  // As Save, and the last, partial chunk too (the end of a turn). Does what Save does where tails are off.
  SaveResult SaveTail(llama_seq_id slot, const Prompt& prompt);
  // The slot's cells are no longer what was reported. A slot that is empty at this moment starts anew; else
  // Save is refused until the next Fetch, which clears the slot.
  void Forget(llama_seq_id slot);
  // Number of tokens to decode next so that every chunk is saved right after it is computed (rule 1): from
  // `position`, at most `remaining`, never across a chunk boundary.
  uint32_t NextStep(uint64_t position, uint64_t remaining) const;

  struct ActiveAdapter {
    llama_adapter_lora* adapter = nullptr;
    std::string path;  // its file: the digest is taken, as for models; or `id`
    std::string id;
    float scale = 1.0f;
  };
  // The only way to change LoRA adapters: sets them in the context and changes the root. Slots are cleared.
  Status SetAdapters(const std::vector<ActiveAdapter>& adapters);

  // Option check_logits. True: fine. False: the logits are not finite; the injected keys were erased, and the
  // host must call llama_memory_clear(mem, true) (all slots are forgotten here) and compute the prompt again.
  bool ReportLogits(llama_seq_id slot, std::span<const float> logits);

  const LlamaCacheCounters& counters() const;

 private:
  struct State;
  explicit LlamaCache(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace terrace::llamacpp
