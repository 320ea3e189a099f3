// BenchContext: one context of the engine, and what `terrace-llama bench` measures in it. Slot 0 is used;
// every measurement takes the whole prompt (prefix and suffix) to its first token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "connectors/llamacpp/llama_cache.h"
#include "connectors/llamacpp/tool/kv_store.h"
#include "connectors/llamacpp/tool/loaded_model.h"

namespace terrace::llamacpp {

struct FirstToken {
  uint64_t loaded_tokens = 0;
  uint64_t decoded_tokens = 0;
  double ttft_ms = 0;
  double load_ms = 0;
  std::vector<float> logits;
};

struct StoreRun {
  FirstToken first;            // a prefill in which nothing was loaded, but everything saved
  double store_thread_ms = 0;  // in Save
  double store_ms = 0;         // that and the Flush after the prefix
  uint64_t stored_objects = 0;
  uint64_t stored_bytes = 0;
};

class BenchContext {
 public:
  using Tokens = std::span<const llama_token>;
  using Blobs = std::vector<std::vector<uint8_t>>;

  // A store without a manager: the engine alone. Warms up: the first decodes of a context are slower than all
  // later ones.
  static Result<std::unique_ptr<BenchContext>> Make(const LoadedModel& model, const ModelOptions& options,
                                                    const KvStore& store, const std::string& salt,
                                                    Tokens warm_up);

  // Everything computed, the store not asked.
  Result<FirstToken> Cold(Tokens prompt);
  // Only the suffix is computed. Takes the prefix as Cold or Slot left it in the slot; where the engine
  // cannot go back to the prefix's end, the prefix is computed again, outside the measured time.
  Result<FirstToken> Slot(Tokens prompt, uint64_t prefix_tokens);
  // As Cold, and the prefix is saved as it is computed.
  Result<StoreRun> Store(const std::vector<llama_token>& prompt, uint64_t prefix_tokens);
  // From an empty slot, whatever the store has.
  Result<FirstToken> Loaded(const std::vector<llama_token>& prompt);

  // The engine's own state of tokens [0, end) of the slot, as one blob per chunk (one for all of it where the
  // model's state cannot be taken in ranges).
  Result<Blobs> TakeBlobs(uint64_t end);
  // What the engine's set_data takes for these blobs alone. Leaves the slot empty.
  Result<double> BareSetDataMs(const Blobs& blobs);

  LlamaCache& cache() { return *cache_; }

 private:
  BenchContext(const LoadedModel& model, std::unique_ptr<LlamaCache> cache,
               std::shared_ptr<StorageManager> manager)
      : model_(model), cache_(std::move(cache)), manager_(std::move(manager)) {}

  llama_memory_t memory() const { return llama_get_memory(cache_->context()); }
  void ClearAll();
  Status DecodeStep(const llama_token* tokens, uint32_t count);
  Status DecodeFrom(Tokens prompt, uint64_t from, const std::string& label);
  // The logits of the last token: waits for the engine.
  void TakeLogits(FirstToken* first);

  const LoadedModel& model_;
  std::unique_ptr<LlamaCache> cache_;
  std::shared_ptr<StorageManager> manager_;
};

}  // namespace terrace::llamacpp
