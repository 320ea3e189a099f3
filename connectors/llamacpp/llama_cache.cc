#include "connectors/llamacpp/llama_cache.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <string>
#include <utility>

#include "connectors/llamacpp/cache_state.h"
#include "connectors/llamacpp/engine_fingerprint.h"

namespace terrace::llamacpp {
namespace {

Status ExceptionStatus(const char* where) {
  try {
    throw;
  } catch (const std::exception& error) {
    return InternalError(std::string(where) + ": " + error.what());
  } catch (...) {
    return InternalError(std::string(where) + ": unknown exception");
  }
}

Result<std::string> ModelId(const ModelIdentity& identity, ModelDigests& digests) {
  if (identity.gguf_paths.empty() == identity.id.empty()) {
    return InvalidArgumentError("ModelIdentity: exactly one of gguf_paths and id is given");
  }
  if (!identity.id.empty()) return "id:" + identity.id;
  Result<std::string> digest = digests.OfParts(identity.gguf_paths);
  if (!digest.ok()) return digest.status();
  return "gguf:" + *digest;
}

Status CheckOptions(const llama_model* model, const LlamaCacheOptions& options) {
  if (model == nullptr) return InvalidArgumentError("model is null");
  const auto most = static_cast<int64_t>(llama_max_parallel_sequences()) - 1;
  if (options.slots < 1 || options.slots > most) {
    return InvalidArgumentError("slots is " + std::to_string(options.slots) + "; allowed: 1 to " +
                                std::to_string(most));
  }
  if (options.load_deadline <= Duration::zero())
    return InvalidArgumentError("load_deadline must be above zero");
  return OkStatus();
}

Result<ContextPtr> MakeContext(llama_model* model, llama_context_params params,
                               const LlamaCacheOptions& options) {
  params.kv_unified = true;
  params.n_seq_max = static_cast<uint32_t>(options.slots) + 1;
  ContextPtr context(llama_init_from_model(model, params));
  if (!context) {
    return InvalidArgumentError(
        std::string("the engine refuses the context (type_k ") + ggml_type_name(params.type_k) + ", type_v " +
        ggml_type_name(params.type_v) + ", flash attention " + std::to_string(params.flash_attn_type) +
        "; a quantised V cache needs flash attention, and heads that its blocks divide); its log says why");
  }
  if (llama_get_memory(context.get()) == nullptr)
    return UnimplementedError("llama.cpp: the model keeps no KV");
  if (llama_pooling_type(context.get()) != LLAMA_POOLING_TYPE_NONE) {
    return UnimplementedError("llama.cpp: an embedding model (pooling); allowed: text generation");
  }
  if (llama_n_seq_max(context.get()) != params.n_seq_max || llama_n_rs_seq(context.get()) != 0) {
    return UnimplementedError("llama.cpp: the engine did not take n_seq_max and n_rs_seq as given");
  }
  if (options.exact_only &&
      (llama_n_ubatch(context.get()) != kChunkTokens || llama_n_batch(context.get()) < kChunkTokens)) {
    return InvalidArgumentError("exact_only: the engine took n_ubatch " +
                                std::to_string(llama_n_ubatch(context.get())) + "; needed: 256");
  }
  return context;
}

}  // namespace

LlamaCache::State::State(ContextPtr made_context, const ModelTraits& model_traits,
                         LlamaCacheOptions cache_options, KvSpec kv_spec)
    : context(std::move(made_context)),
      traits(model_traits),
      options(std::move(cache_options)),
      digests(options.digests != nullptr ? options.digests : std::make_shared<ModelDigests>()),
      spec(std::move(kv_spec)),
      scratch(context.get(), options.slots, traits),
      slots(static_cast<size_t>(options.slots)) {}

Status LlamaCache::State::CheckCall(llama_seq_id slot, const Prompt& prompt) const {
  if (slot < 0 || slot >= options.slots) {
    return InvalidArgumentError("slot " + std::to_string(slot) + "; allowed: 0 to " +
                                std::to_string(options.slots - 1));
  }
  return ViewOf(prompt).Validate();
}

Status LlamaCache::State::MakeRoot(std::span<const Adapter> adapters) {
  const Result<RootRecord> record = ComputeRoot(spec, adapters, options.salt);
  if (!record.ok()) return record.status();
  root = record->root;
  root_status = OkStatus();
  if (options.manager == nullptr) return OkStatus();
  const Result<ChunkKey> made = options.manager->Root(spec, adapters, options.salt);
  if (!made.ok()) {
    root_status = made.status();  // everything is computed
  } else if (*made != root) {
    return InternalError("the store made another root than its spec says");
  }
  return OkStatus();
}

void LlamaCache::State::ClearSlot(llama_seq_id slot) {
  scratch.Cut(slot, 0);
  slots[static_cast<size_t>(slot)].Reset(true);
}

void LlamaCache::State::Forget(llama_seq_id slot) {
  if (slot < 0 || slot >= options.slots) return;
  slots[static_cast<size_t>(slot)].Reset(scratch.TokensIn(slot) == 0);
}

bool LlamaCache::State::AnyUnreported() const {
  return std::any_of(slots.begin(), slots.end(),
                     [](const SlotRecord& slot) { return !slot.unreported.empty(); });
}

Status LlamaCache::State::SetAdapters(const std::vector<ActiveAdapter>& adapters) {
  std::vector<Adapter> identities;
  std::vector<llama_adapter_lora*> handles;
  std::vector<float> scales;
  for (const ActiveAdapter& active : adapters) {
    if (active.adapter == nullptr) return InvalidArgumentError("adapter is null");
    if (active.path.empty() == active.id.empty()) {
      return InvalidArgumentError("ActiveAdapter: exactly one of path and id is given");
    }
    if (!std::isfinite(active.scale)) return InvalidArgumentError("adapter scale is not finite");
    if (llama_adapter_get_alora_n_invocation_tokens(active.adapter) != 0) {
      return UnimplementedError(
          "an adapter that invocation tokens switch on; allowed: LoRA that is always on");
    }
    const Result<Digest> digest =
        active.path.empty() ? DigestOfText("terrace-adapter-id-1", active.id) : digests->OfFile(active.path);
    if (!digest.ok()) return digest.status();
    if (active.scale == 0.0f) continue;  // without effect, and not in the root
    identities.push_back({*digest, active.scale});
    handles.push_back(active.adapter);
    scales.push_back(active.scale);
  }
  // What the slots hold was computed with other weights. Until this returns OK nothing is looked up or
  // stored.
  for (llama_seq_id slot = 0; slot < options.slots; ++slot) ClearSlot(slot);
  root_status = FailedPreconditionError("the adapters could not be set");
  if (llama_set_adapters_lora(context.get(), handles.data(), handles.size(), scales.data()) != 0) {
    return InternalError("the engine refuses the adapters");
  }
  return MakeRoot(identities);
}

bool LlamaCache::State::ReportLogits(llama_seq_id slot, std::span<const float> logits) {
  if (!options.check_logits || slot < 0 || slot >= options.slots || !AnyUnreported()) return true;
  if (std::all_of(logits.begin(), logits.end(), [](float value) { return std::isfinite(value); })) {
    slots[static_cast<size_t>(slot)].unreported.clear();
    if (!AnyUnreported()) stored_unreported.clear();
    return true;
  }
  ++counters.poisoned;
  std::vector<ChunkKey> keys = std::move(stored_unreported);
  stored_unreported.clear();
  for (SlotRecord& record : slots) {
    keys.insert(keys.end(), record.unreported.begin(), record.unreported.end());
    record.unreported.clear();
    record.Reset(false);
  }
  // A key that stays is found again, injected again and reported again: the answer is right all the same.
  if (options.manager != nullptr) options.manager->Erase(keys).status().IgnoreError();
  return false;
}

LlamaCache::LlamaCache(std::unique_ptr<State> state) : state_(std::move(state)) {}
LlamaCache::~LlamaCache() = default;

Result<std::unique_ptr<LlamaCache>> LlamaCache::Create(llama_model* model, const ModelIdentity& identity,
                                                       const llama_context_params& params,
                                                       const LlamaCacheOptions& options) try {
  if (Status checked = CheckOptions(model, options); !checked.ok()) return checked;
  const Result<ModelTraits> traits = CheckModel(model);
  if (!traits.ok()) return traits.status();
  Result<std::string> extras = EngineExtras(model, identity.model_params, params, options.exact_only);
  if (!extras.ok()) return extras.status();
  LlamaCacheOptions owned = options;
  if (owned.digests == nullptr) owned.digests = std::make_shared<ModelDigests>();
  Result<std::string> model_id = ModelId(identity, *owned.digests);
  if (!model_id.ok()) return model_id.status();
  Result<ContextPtr> context = MakeContext(model, params, options);
  if (!context.ok()) return context.status();
  KvSpec spec = MakeSpec(*std::move(model_id), *std::move(extras), *traits, options.exact_only);
  auto state = std::make_unique<State>(*std::move(context), *traits, std::move(owned), std::move(spec));
  if (Status made = state->MakeRoot({}); !made.ok()) return made;
  return std::unique_ptr<LlamaCache>(new LlamaCache(std::move(state)));
} catch (...) {
  return ExceptionStatus("LlamaCache::Create");
}

llama_context* LlamaCache::context() const { return state_->context.get(); }
llama_seq_id LlamaCache::scratch_sequence() const { return state_->scratch.sequence(); }
const KvSpec& LlamaCache::spec() const { return state_->spec; }
const ChunkKey& LlamaCache::root() const { return state_->root; }
uint32_t LlamaCache::tokens_per_chunk() const { return kChunkTokens; }
const LlamaCacheCounters& LlamaCache::counters() const { return state_->counters; }

FetchResult LlamaCache::Fetch(llama_seq_id slot, const Prompt& prompt) try {
  return state_->Fetch(slot, prompt);
} catch (...) {
  state_->scratch.Drop();
  if (slot >= 0 && slot < state_->options.slots) state_->ClearSlot(slot);
  FetchResult result;
  result.reason = ExceptionStatus("Fetch");
  return result;
}

SaveResult LlamaCache::Save(llama_seq_id slot, const Prompt& prompt) try {
  return state_->Save(slot, prompt, false);
} catch (...) {
  state_->scratch.Drop();
  SaveResult result;
  result.reason = ExceptionStatus("Save");
  return result;
}

SaveResult LlamaCache::SaveTail(llama_seq_id slot, const Prompt& prompt) try {
  return state_->Save(slot, prompt, true);
} catch (...) {
  state_->scratch.Drop();
  SaveResult result;
  result.reason = ExceptionStatus("SaveTail");
  return result;
}

void LlamaCache::Forget(llama_seq_id slot) { state_->Forget(slot); }

uint32_t LlamaCache::NextStep(uint64_t position, uint64_t remaining) const {
  const uint64_t to_boundary = kChunkTokens - position % kChunkTokens;
  return static_cast<uint32_t>(std::min({remaining, to_boundary, uint64_t{llama_n_batch(context())}}));
}

Status LlamaCache::SetAdapters(const std::vector<ActiveAdapter>& adapters) try {
  return state_->SetAdapters(adapters);
} catch (...) {
  return ExceptionStatus("SetAdapters");
}

bool LlamaCache::ReportLogits(llama_seq_id slot, std::span<const float> logits) try {
  return state_->ReportLogits(slot, logits);
} catch (...) {
  // The keys could not be erased for want of memory; whether the logits are finite is the host's to see.
  return std::all_of(logits.begin(), logits.end(), [](float value) { return std::isfinite(value); });
}

}  // namespace terrace::llamacpp
