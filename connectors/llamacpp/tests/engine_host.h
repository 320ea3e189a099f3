// What a host does around LlamaCache, and the engine without Terrace to compare with; both count what they
// decode.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "connectors/llamacpp/llama_cache.h"
#include "connectors/llamacpp/tests/tiny_models.h"
#include "terrace/host_backend.h"
#include "terrace/nvme_backend.h"
#include "tests/support/temporary_directory.h"

namespace terrace::llamacpp {

std::vector<llama_token> RandomTokens(size_t count, uint64_t seed);
std::vector<llama_token> Joined(const std::vector<llama_token>& a, size_t count,
                                const std::vector<llama_token>& b);

// n_ctx 2,048, n_ubatch 256, one thread, flash attention off, f16.
llama_context_params TinyContextParams();

// Decodes `tokens` at `position` of `slot` in one call; the last token's logits. Empty if the engine refuses.
std::vector<float> DecodeStep(llama_context* context, llama_seq_id slot,
                              const std::vector<llama_token>& tokens, size_t begin, size_t count);
bool SameBytes(const std::vector<float>& a, const std::vector<float>& b);
bool AllFinite(const std::vector<float>& logits);

// The engine alone, set as LlamaCache sets it.
class BareEngine {
 public:
  BareEngine(llama_model* model, llama_context_params params, int slots = 1);
  // Tokens [begin, end) in steps that end at the given positions.
  std::vector<float> Decode(const std::vector<llama_token>& tokens, size_t begin,
                            const std::vector<size_t>& ends);
  // Clears, then all tokens in one call.
  std::vector<float> OneShot(const std::vector<llama_token>& tokens);
  void Cut(size_t tokens);
  void Clear();
  llama_context* context() { return context_.get(); }

 private:
  struct Deleter {
    void operator()(llama_context* context) const { llama_free(context); }
  };
  std::unique_ptr<llama_context, Deleter> context_;
};

// A manager over a host tier and, if a directory is given, an NVMe tier.
std::shared_ptr<StorageManager> OpenStore(
    const std::optional<std::filesystem::path>& directory = std::nullopt,
    uint64_t host_bytes = uint64_t{48} << 20);
// Flushes and closes.
void CloseStore(StorageManager& store);

std::unique_ptr<LlamaCache> MakeCache(llama_model* model, const llama_context_params& params,
                                      const std::shared_ptr<StorageManager>& store,
                                      LlamaCacheOptions options = {}, const std::string& model_id = "tiny");

struct HostRun {
  FetchResult fetch;
  std::vector<size_t> ends;  // of the steps
  uint64_t decoded = 0;
  uint64_t stored_objects = 0;
  Status save_reason;
  std::vector<float> logits;
};
// Fetch, decode in NextStep's steps with Save after each; SaveTail at the end where `tail`.
HostRun RunPrompt(LlamaCache& cache, llama_seq_id slot, const Prompt& prompt, bool tail = false);
// The host empties the slot, so that the next Fetch has only the store.
void EmptySlot(LlamaCache& cache, llama_seq_id slot);

// Stores, under the keys of `tokens`, payloads computed from `other` (equally long), in chunks that end at
// `ends`.
void PlantWrongChunks(StorageManager& store, const ChunkKey& root, llama_model* model,
                      const llama_context_params& params, const std::vector<llama_token>& tokens,
                      const std::vector<llama_token>& other, const std::vector<size_t>& ends);

}  // namespace terrace::llamacpp
