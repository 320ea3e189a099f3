// GreedyDecoder: answers prompts in slot 0 of a LlamaCache, always with the likeliest token. It keeps the
// connector's protocol: Fetch, then decode in NextStep steps, Save after each, SaveTail at the end.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "connectors/llamacpp/llama_cache.h"
#include "connectors/llamacpp/tool/kv_store.h"
#include "connectors/llamacpp/tool/loaded_model.h"

namespace terrace::llamacpp {

struct Answer {
  uint64_t prompt_tokens = 0;
  uint64_t loaded_tokens = 0;    // from the store
  uint64_t slot_tokens = 0;      // were in the context already
  uint64_t decoded_tokens = 0;   // of the prompt, computed
  TierShare host, nvme, remote;  // of what was loaded, by tier
  uint64_t loaded_bytes = 0;
  double ttft_ms = 0;    // from the prompt to its first token, loading included
  double remote_ms = 0;  // until the remote tier said what it has
  double load_ms = 0;
  double set_data_ms = 0;
  double store_thread_ms = 0;  // spent in Save
  double generate_ms = 0;      // after the first token
  std::vector<llama_token> tokens;
  std::string text;
  bool ended = false;  // by the model; else the limit was reached
};

class GreedyDecoder {
 public:
  // All three outlive it.
  GreedyDecoder(const LoadedModel& model, LlamaCache& cache, const KvStore& store)
      : model_(model), cache_(cache), store_(store) {}

  // `on_text` gets each piece of the answer as it comes.
  Result<Answer> Generate(std::vector<llama_token> prompt, uint32_t max_tokens,
                          const std::function<void(const std::string&)>& on_text);
  // Empties the context's slot.
  void ClearSlot();

 private:
  // Computes prompt tokens [from, end), saving as it goes.
  Status Prefill(const std::vector<llama_token>& prompt, uint64_t from, Answer* answer);
  // Fetch and Prefill; once more from nothing where what was injected turns out to be poisoned.
  Status Begin(const std::vector<llama_token>& prompt, Answer* answer);
  Status Decode(const llama_token* tokens, uint32_t count);
  void Save(const std::vector<llama_token>& held, Answer* answer);
  // Says so, once, where the remote tier does not answer, and each time where a load ends early.
  void ReportTrouble(const FetchResult& fetched);
  std::span<const float> Logits() const;
  llama_token Likeliest() const;

  const LoadedModel& model_;
  LlamaCache& cache_;
  const KvStore& store_;
  uint64_t remote_silences_ = 0;  // prompts that the remote tier did not answer for
};

// "prompt 4150 tokens: 4096 loaded (16 chunks from nvme), 0 in the context, 54 computed; first token after
// 480 ms; ..."
std::string Summary(const Answer& answer);

}  // namespace terrace::llamacpp
