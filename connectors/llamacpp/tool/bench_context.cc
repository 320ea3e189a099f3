#include "connectors/llamacpp/tool/bench_context.h"

#include <algorithm>
#include <chrono>

#include "connectors/llamacpp/tool/progress_line.h"

namespace terrace::llamacpp {
namespace {

using std::chrono::steady_clock;

constexpr llama_seq_id kSlot = 0;

double MsSince(steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - start).count();
}

}  // namespace

Result<std::unique_ptr<BenchContext>> BenchContext::Make(const LoadedModel& model,
                                                         const ModelOptions& options, const KvStore& store,
                                                         const std::string& salt, Tokens warm_up) {
  LlamaCacheOptions cache_options;
  UseStore(store, &cache_options);
  cache_options.salt = salt;
  cache_options.exact_only = true;
  Result<std::unique_ptr<LlamaCache>> cache = CreateCache(model, options, cache_options);
  if (!cache.ok()) return cache.status();
  std::unique_ptr<BenchContext> context(new BenchContext(model, *std::move(cache), store.manager));
  for (int i = 0; i < 2; ++i) {
    context->ClearAll();
    if (Status warm = context->DecodeFrom(warm_up, 0, "warming up"); !warm.ok()) return warm;
  }
  context->ClearAll();
  return context;
}

void BenchContext::ClearAll() {
  llama_memory_clear(memory(), true);
  cache_->Forget(kSlot);
}

Status BenchContext::DecodeStep(const llama_token* tokens, uint32_t count) {
  llama_batch batch = llama_batch_get_one(const_cast<llama_token*>(tokens), static_cast<int32_t>(count));
  const int32_t code = llama_decode(cache_->context(), batch);
  if (code == 0) return OkStatus();
  return InternalError("the engine did not decode (code " + std::to_string(code) +
                       "); is --ctx large enough?");
}

Status BenchContext::DecodeFrom(Tokens prompt, uint64_t from, const std::string& label) {
  ProgressLine progress(label);
  for (uint64_t at = from; at < prompt.size();) {
    const uint32_t step = cache_->NextStep(at, prompt.size() - at);
    if (Status decoded = DecodeStep(prompt.data() + at, step); !decoded.ok()) return decoded;
    at += step;
    progress.SetFraction(static_cast<double>(at) / static_cast<double>(prompt.size()));
  }
  llama_synchronize(cache_->context());
  return OkStatus();
}

void BenchContext::TakeLogits(FirstToken* first) {
  const float* logits = llama_get_logits_ith(cache_->context(), -1);
  first->logits.assign(logits, logits + llama_vocab_n_tokens(model_.vocab()));
}

Result<FirstToken> BenchContext::Cold(Tokens prompt) {
  ClearAll();
  FirstToken first;
  const auto start = steady_clock::now();
  if (Status decoded = DecodeFrom(prompt, 0, "cold: computing the prompt"); !decoded.ok()) return decoded;
  TakeLogits(&first);
  first.ttft_ms = MsSince(start);
  first.decoded_tokens = prompt.size();
  return first;
}

Result<FirstToken> BenchContext::Slot(Tokens prompt, uint64_t prefix_tokens) {
  if (!llama_memory_seq_rm(memory(), kSlot, static_cast<llama_pos>(prefix_tokens), -1)) {
    ClearAll();
    const Status decoded = DecodeFrom(prompt.first(prefix_tokens), 0, "slot: computing the prefix");
    if (!decoded.ok()) return decoded;
  }
  if (llama_memory_seq_pos_max(memory(), kSlot) + 1 != static_cast<llama_pos>(prefix_tokens)) {
    return InternalError("the slot does not hold the prefix");
  }
  FirstToken first;
  const auto start = steady_clock::now();
  if (Status decoded = DecodeFrom(prompt, prefix_tokens, "slot"); !decoded.ok()) return decoded;
  TakeLogits(&first);
  first.ttft_ms = MsSince(start);
  first.decoded_tokens = prompt.size() - prefix_tokens;
  return first;
}

Result<StoreRun> BenchContext::Store(const std::vector<llama_token>& prompt, uint64_t prefix_tokens) {
  ClearAll();
  StoreRun run;
  const FetchResult fetched = cache_->Fetch(kSlot, prompt);
  if (fetched.ready_tokens != 0) return InternalError("the store holds the prefix already");
  const auto start = steady_clock::now();
  {
    ProgressLine progress("store: computing and saving the prefix");
    std::vector<llama_token> held;
    while (held.size() < prefix_tokens) {
      const uint32_t step = cache_->NextStep(held.size(), prefix_tokens - held.size());
      const llama_token* tokens = prompt.data() + held.size();
      if (Status decoded = DecodeStep(tokens, step); !decoded.ok()) return decoded;
      llama_synchronize(cache_->context());  // else Save would be charged with the end of the decode
      held.insert(held.end(), tokens, tokens + step);
      const SaveResult saved = cache_->Save(kSlot, held);
      if (!saved.reason.ok()) return saved.reason.WithContext("saving the prefix");
      run.store_thread_ms += saved.thread_ms;
      run.stored_objects += saved.stored_objects;
      run.stored_bytes += saved.stored_bytes;
      progress.SetFraction(static_cast<double>(held.size()) / static_cast<double>(prefix_tokens));
    }
  }
  const double prefix_ms = MsSince(start);
  const auto flush = steady_clock::now();
  if (Status flushed = manager_->Flush(); !flushed.ok()) return flushed;
  run.store_ms = run.store_thread_ms + MsSince(flush);
  const auto suffix = steady_clock::now();
  if (Status decoded = DecodeFrom(prompt, prefix_tokens, "store: suffix"); !decoded.ok()) return decoded;
  TakeLogits(&run.first);
  run.first.ttft_ms = prefix_ms + MsSince(suffix);
  run.first.decoded_tokens = prompt.size();
  return run;
}

Result<FirstToken> BenchContext::Loaded(const std::vector<llama_token>& prompt) {
  ClearAll();
  FirstToken first;
  const auto start = steady_clock::now();
  const FetchResult fetched = cache_->Fetch(kSlot, prompt);
  if (Status decoded = DecodeFrom(prompt, fetched.ready_tokens, "computing what was not loaded");
      !decoded.ok()) {
    return decoded;
  }
  TakeLogits(&first);
  first.ttft_ms = MsSince(start);
  first.loaded_tokens = fetched.loaded_tokens;
  first.decoded_tokens = prompt.size() - fetched.ready_tokens;
  first.load_ms = fetched.remote_ms + fetched.load_ms;
  if (!fetched.reason.ok()) return fetched.reason.WithContext("loading the prefix");
  return first;
}

Result<BenchContext::Blobs> BenchContext::TakeBlobs(uint64_t end) {
  llama_context* const context = cache_->context();
  const llama_seq_id scratch = cache_->scratch_sequence();
  const llama_model* const model = model_.get();
  const bool ranges =
      llama_model_n_swa(model) == 0 && !llama_model_is_recurrent(model) && !llama_model_is_hybrid(model);
  const uint64_t step = ranges ? cache_->tokens_per_chunk() : end;
  Blobs blobs;
  for (uint64_t begin = 0; begin < end; begin += step) {
    const auto p0 = ranges ? static_cast<llama_pos>(begin) : -1;
    const auto p1 = ranges ? static_cast<llama_pos>(std::min(begin + step, end)) : -1;
    llama_memory_seq_cp(memory(), kSlot, scratch, p0, p1);
    std::vector<uint8_t> blob(llama_state_seq_get_size(context, scratch));
    const size_t bytes = llama_state_seq_get_data(context, blob.data(), blob.size(), scratch);
    llama_memory_seq_rm(memory(), scratch, -1, -1);
    if (bytes == 0) return InternalError("the engine did not give its state");
    blob.resize(bytes);
    blobs.push_back(std::move(blob));
  }
  return blobs;
}

Result<double> BenchContext::BareSetDataMs(const Blobs& blobs) {
  ClearAll();
  const llama_seq_id scratch = cache_->scratch_sequence();
  double total_ms = 0;
  for (const std::vector<uint8_t>& blob : blobs) {
    const auto start = steady_clock::now();
    const size_t bytes = llama_state_seq_set_data(cache_->context(), blob.data(), blob.size(), scratch);
    total_ms += MsSince(start);
    if (bytes == 0) return InternalError("the engine did not take its own state");
    llama_memory_seq_cp(memory(), scratch, kSlot, -1, -1);
    llama_memory_seq_rm(memory(), scratch, -1, -1);
  }
  ClearAll();
  return total_ms;
}

}  // namespace terrace::llamacpp
