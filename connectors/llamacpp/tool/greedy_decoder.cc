#include "connectors/llamacpp/tool/greedy_decoder.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "connectors/llamacpp/tool/progress_line.h"

namespace terrace::llamacpp {
namespace {

using std::chrono::steady_clock;

constexpr llama_seq_id kSlot = 0;

double MsSince(steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - start).count();
}

}  // namespace

void GreedyDecoder::ClearSlot() {
  llama_memory_seq_rm(llama_get_memory(cache_.context()), kSlot, -1, -1);
  cache_.Forget(kSlot);
}

Status GreedyDecoder::Decode(const llama_token* tokens, uint32_t count) {
  // llama_batch_get_one does not write to the tokens, and asks for the last one's logits.
  llama_batch batch = llama_batch_get_one(const_cast<llama_token*>(tokens), static_cast<int32_t>(count));
  const int32_t code = llama_decode(cache_.context(), batch);
  if (code == 0) return OkStatus();
  return InternalError("the engine did not decode " + std::to_string(count) + " tokens (code " +
                       std::to_string(code) + ")");
}

std::span<const float> GreedyDecoder::Logits() const {
  return {llama_get_logits_ith(cache_.context(), -1),
          static_cast<size_t>(llama_vocab_n_tokens(model_.vocab()))};
}

llama_token GreedyDecoder::Likeliest() const {
  const std::span<const float> logits = Logits();
  return static_cast<llama_token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void GreedyDecoder::Save(const std::vector<llama_token>& held, Answer* answer) {
  answer->store_thread_ms += cache_.Save(kSlot, held).thread_ms;
}

Status GreedyDecoder::Prefill(const std::vector<llama_token>& prompt, uint64_t from, Answer* answer) {
  ProgressLine progress("computing " + std::to_string(prompt.size() - from) + " tokens of the prompt");
  std::vector<llama_token> held(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(from));
  held.reserve(prompt.size());
  while (held.size() < prompt.size()) {
    const uint32_t step = cache_.NextStep(held.size(), prompt.size() - held.size());
    const llama_token* tokens = prompt.data() + held.size();
    if (Status decoded = Decode(tokens, step); !decoded.ok()) return decoded;
    held.insert(held.end(), tokens, tokens + step);
    answer->decoded_tokens += step;
    // The last step is saved by the caller, after its logits were taken: the first token does not wait for
    // it.
    if (held.size() < prompt.size()) Save(held, answer);
    progress.SetFraction(static_cast<double>(held.size() - from) / static_cast<double>(prompt.size() - from));
  }
  return OkStatus();
}

void GreedyDecoder::ReportTrouble(const FetchResult& fetched) {
  const uint64_t silences = RemoteFailures(store_) + cache_.counters().remote_timeouts;
  if (silences > 0 && remote_silences_ == 0) {
    std::fprintf(stderr, "terrace-llama: %s: no answer; computing what it may have\n", store_.remote.c_str());
  } else if (silences == remote_silences_ && !fetched.reason.ok()) {
    std::fprintf(stderr, "terrace-llama: less was loaded than is stored: %s\n",
                 fetched.reason.ToString().c_str());
  }
  remote_silences_ = silences;
}

Status GreedyDecoder::Begin(const std::vector<llama_token>& prompt, Answer* answer) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    const FetchResult fetched = cache_.Fetch(kSlot, prompt);
    ReportTrouble(fetched);
    answer->prompt_tokens = prompt.size();
    answer->loaded_tokens = fetched.loaded_tokens;
    answer->slot_tokens = fetched.ready_tokens - fetched.loaded_tokens;
    answer->decoded_tokens = 0;
    answer->host = ShareOf(store_, fetched, kHostTier);
    answer->nvme = ShareOf(store_, fetched, kNvmeTier);
    answer->remote = ShareOf(store_, fetched, kRemoteTier);
    answer->loaded_bytes = fetched.loaded_bytes;
    answer->remote_ms = fetched.remote_ms;
    answer->load_ms = fetched.load_ms;
    answer->set_data_ms = fetched.set_data_ms;
    if (Status computed = Prefill(prompt, fetched.ready_tokens, answer); !computed.ok()) return computed;
    if (cache_.ReportLogits(kSlot, Logits())) return OkStatus();
    std::fprintf(stderr, "terrace-llama: what was loaded does not compute; computing it again\n");
    llama_memory_clear(llama_get_memory(cache_.context()), true);
  }
  return InternalError("the model's logits are not finite");
}

Result<Answer> GreedyDecoder::Generate(std::vector<llama_token> prompt, uint32_t max_tokens,
                                       const std::function<void(const std::string&)>& on_text) {
  const uint64_t room = llama_n_ctx(cache_.context());
  if (prompt.empty()) return InvalidArgumentError("the prompt has no tokens");
  if (prompt.size() + max_tokens > room) {
    return InvalidArgumentError("--ctx: a prompt of " + std::to_string(prompt.size()) +
                                " tokens and an answer of " + std::to_string(max_tokens) +
                                " do not fit into " + std::to_string(room) +
                                " tokens; allowed: --ctx of at least their sum");
  }
  const auto start = steady_clock::now();
  Answer answer;
  if (Status begun = Begin(prompt, &answer); !begun.ok()) return begun;
  llama_token token = Likeliest();
  answer.ttft_ms = MsSince(start);
  const auto first = steady_clock::now();
  Save(prompt, &answer);
  std::vector<llama_token>& held = prompt;  // from here on the slot holds the prompt and what was generated
  while (true) {
    if (model_.EndsAnswer(token)) {
      answer.ended = true;
      break;
    }
    answer.tokens.push_back(token);
    const std::string piece = model_.Piece(token);
    answer.text += piece;
    on_text(piece);
    if (answer.tokens.size() >= max_tokens) break;
    if (Status decoded = Decode(&token, 1); !decoded.ok()) return decoded;
    held.push_back(token);
    token = Likeliest();
    Save(held, &answer);
  }
  answer.store_thread_ms += cache_.SaveTail(kSlot, held).thread_ms;
  answer.generate_ms = MsSince(first);
  return answer;
}

std::string Summary(const Answer& answer) {
  std::string from;
  const auto add = [&from](const TierShare& share, const char* tier) {
    if (share.objects == 0) return;
    from += (from.empty() ? " (" : ", ") + std::to_string(share.objects) +
            (share.objects == 1 ? " chunk from " : " chunks from ") + tier;
  };
  add(answer.host, kHostTier);
  add(answer.nvme, kNvmeTier);
  add(answer.remote, kRemoteTier);
  if (!from.empty()) from += ")";
  char timing[120];
  std::snprintf(timing, sizeof timing, "first token after %.0f ms; %zu tokens generated in %.0f ms",
                answer.ttft_ms, answer.tokens.size(), answer.generate_ms);
  return "prompt " + std::to_string(answer.prompt_tokens) +
         " tokens: " + std::to_string(answer.loaded_tokens) + " loaded" + from + ", " +
         std::to_string(answer.slot_tokens) + " in the context, " + std::to_string(answer.decoded_tokens) +
         " computed; " + timing;
}

}  // namespace terrace::llamacpp
