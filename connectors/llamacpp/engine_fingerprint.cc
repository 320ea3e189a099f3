#include "connectors/llamacpp/engine_fingerprint.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace terrace::llamacpp {
namespace {

// Lines of name=value. Values never hold a line break: text from outside goes through Text.
class ExtrasWriter {
 public:
  void Number(const char* name, int64_t value) { Line(name, std::to_string(value)); }
  void Float(const char* name, float value) { Line(name, Hex(std::bit_cast<uint32_t>(value))); }
  void Text(const char* name, std::string_view value) {
    std::string clean(value);
    for (char& c : clean) {
      if (c == '\n' || c == '\r') c = ' ';
    }
    Line(name, clean);
  }
  std::string Take() && { return std::move(text_); }

  static std::string Hex(uint64_t value) {
    char buffer[24];
    std::snprintf(buffer, sizeof(buffer), "0x%llx", static_cast<unsigned long long>(value));
    return buffer;
  }

 private:
  void Line(const char* name, const std::string& value) {
    text_.append(name).append("=").append(value).append("\n");
  }
  std::string text_;
};

Status Refuse(const char* field, const std::string& value, const char* allowed) {
  return UnimplementedError(std::string("llama.cpp: ") + field + " is " + value + "; allowed: " + allowed);
}

std::optional<std::string> MetaBySuffix(const llama_model* model, std::string_view suffix) {
  char key[256], value[256];
  const int32_t count = llama_model_meta_count(model);
  for (int32_t i = 0; i < count; ++i) {
    if (llama_model_meta_key_by_index(model, i, key, sizeof(key)) < 0) continue;
    if (!std::string_view(key).ends_with(suffix)) continue;
    if (llama_model_meta_val_str_by_index(model, i, value, sizeof(value)) >= 0) return std::string(value);
  }
  return std::nullopt;
}

// Above this context size the engine takes other rope factors (longrope).
bool AboveRopeContext(const llama_model* model, uint32_t n_ctx) {
  int64_t original = llama_model_n_ctx_train(model);
  if (const auto meta = MetaBySuffix(model, ".rope.scaling.original_context_length")) {
    original = std::atoll(meta->c_str());
  }
  return n_ctx != 0 ? n_ctx > original : llama_model_n_ctx_train(model) > original;
}

std::string OverrideText(const llama_model_kv_override* overrides) {
  std::string text;
  for (const llama_model_kv_override* o = overrides; o != nullptr && o->key[0] != 0; ++o) {
    const std::string key(o->key, strnlen(o->key, sizeof(o->key)));
    std::string value;
    switch (o->tag) {
      case LLAMA_KV_OVERRIDE_TYPE_INT:
        value = std::to_string(o->val_i64);
        break;
      case LLAMA_KV_OVERRIDE_TYPE_FLOAT:
        value = ExtrasWriter::Hex(std::bit_cast<uint64_t>(o->val_f64));
        break;
      case LLAMA_KV_OVERRIDE_TYPE_BOOL:
        value = o->val_bool ? "1" : "0";
        break;
      case LLAMA_KV_OVERRIDE_TYPE_STR:
        value.assign(o->val_str, strnlen(o->val_str, sizeof(o->val_str)));
        break;
    }
    text += std::to_string(key.size()) + ":" + key + ":" + std::to_string(o->tag) + ":" +
            std::to_string(value.size()) + ":" + value + ",";
  }
  return text;
}

// One name per field: a field that the engine adds fails to compile here, and somebody has to think about it.
Status DescribeModelParams(const llama_model_params& params, ExtrasWriter& extras) {
  const auto& [devices, tensor_buft_overrides, n_gpu_layers, split_mode, load_mode, lazy_mode, main_gpu,
               tensor_split, progress_callback, progress_callback_user_data, kv_overrides, vocab_only,
               check_tensors, use_extra_bufts, no_host, no_alloc, load_mtp] = params;
  // How the weights come into memory does not change them: load_mode, lazy_mode, check_tensors,
  // progress_callback.
  if (vocab_only) return Refuse("model_params.vocab_only", "true", "false");
  if (no_alloc) return Refuse("model_params.no_alloc", "true", "false");
  if (tensor_buft_overrides != nullptr && tensor_buft_overrides->pattern != nullptr) {
    return Refuse("model_params.tensor_buft_overrides", "set", "none");
  }
  std::string names;
  for (size_t i = 0; devices != nullptr && devices[i] != nullptr; ++i) {
    names += std::string(ggml_backend_dev_name(devices[i])) + ",";
  }
  extras.Text("devices", names);
  // The engine's own default is a list of zeros, which means the same as none.
  std::string split;
  for (size_t i = 0; tensor_split != nullptr && i < llama_max_devices(); ++i) {
    if (tensor_split[i] != 0.0f)
      split += std::to_string(i) + ":" + ExtrasWriter::Hex(std::bit_cast<uint32_t>(tensor_split[i])) + ",";
  }
  extras.Text("tensor_split", split);
  extras.Number("n_gpu_layers", n_gpu_layers);
  extras.Number("split_mode", split_mode);
  extras.Number("main_gpu", main_gpu);
  extras.Number("use_extra_bufts", use_extra_bufts);
  extras.Number("no_host", no_host);
  extras.Number("load_mtp", load_mtp);
  extras.Text("kv_overrides", OverrideText(kv_overrides));
  return OkStatus();
}

Status DescribeContextParams(const llama_model* model, const llama_context_params& params, bool exact_only,
                             ExtrasWriter& extras) {
  const auto& [n_ctx, n_batch, n_ubatch, n_seq_max, n_rs_seq, n_outputs_max, n_outputs_max_per_seq, n_threads,
               n_threads_batch, ctx_type, rope_scaling_type, pooling_type, attention_type, flash_attn_type,
               rope_freq_base, rope_freq_scale, yarn_ext_factor, yarn_attn_factor, yarn_beta_fast,
               yarn_beta_slow, yarn_orig_ctx, defrag_thold, cb_eval, cb_eval_user_data, type_k, type_v,
               abort_callback, abort_callback_data, embeddings, offload_kqv, no_perf, op_offload, swa_full,
               kv_unified, samplers, n_samplers, ctx_other] = params;
  // Without effect on the bytes: n_batch, n_seq_max, n_outputs_*, n_threads*, no_perf, defrag_thold (the
  // engine ignores it); n_ctx but for the rope factors; n_ubatch but for the order of summation, which only
  // exact_only promises.
  if (flash_attn_type != LLAMA_FLASH_ATTN_TYPE_DISABLED && flash_attn_type != LLAMA_FLASH_ATTN_TYPE_ENABLED) {
    return Refuse("flash_attn_type", "auto", "enabled or disabled (what auto became cannot be asked)");
  }
  if (ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT) return Refuse("ctx_type", std::to_string(ctx_type), "default");
  if (n_rs_seq != 0) return Refuse("n_rs_seq", std::to_string(n_rs_seq), "0");
  if (embeddings) return Refuse("embeddings", "true", "false");
  if (pooling_type != LLAMA_POOLING_TYPE_UNSPECIFIED && pooling_type != LLAMA_POOLING_TYPE_NONE) {
    return Refuse("pooling_type", std::to_string(pooling_type), "unspecified or none");
  }
  if (attention_type == LLAMA_ATTENTION_TYPE_NON_CAUSAL)
    return Refuse("attention_type", "non-causal", "causal");
  if (ctx_other != nullptr) return Refuse("ctx_other", "set", "null");
  if (cb_eval != nullptr || cb_eval_user_data != nullptr) return Refuse("cb_eval", "set", "null");
  if (abort_callback != nullptr || abort_callback_data != nullptr) {
    return Refuse("abort_callback", "set", "null (llama_set_abort_callback sets it on the context)");
  }
  if (samplers != nullptr || n_samplers != 0) return Refuse("samplers", "set", "none");
  if (exact_only &&
      (n_ubatch != kChunkTokens || n_batch < kChunkTokens || (n_ctx != 0 && n_ctx < kChunkTokens))) {
    return InvalidArgumentError("exact_only with n_ubatch " + std::to_string(n_ubatch) + ", n_batch " +
                                std::to_string(n_batch) + ", n_ctx " + std::to_string(n_ctx) +
                                "; allowed: n_ubatch 256, n_batch and n_ctx of at least 256");
  }
  (void)kv_unified;  // forced by the caller
  extras.Text("type_k", ggml_type_name(type_k));
  extras.Text("type_v", ggml_type_name(type_v));
  extras.Number("kv_unified", 1);
  extras.Number("flash_attn", flash_attn_type);
  extras.Number("attention_type", attention_type);
  extras.Number("rope_scaling_type", rope_scaling_type);
  extras.Float("rope_freq_base", rope_freq_base);
  extras.Float("rope_freq_scale", rope_freq_scale);
  extras.Float("yarn_ext_factor", yarn_ext_factor);
  extras.Float("yarn_attn_factor", yarn_attn_factor);
  extras.Float("yarn_beta_fast", yarn_beta_fast);
  extras.Float("yarn_beta_slow", yarn_beta_slow);
  extras.Number("yarn_orig_ctx", yarn_orig_ctx);
  extras.Number("n_ctx_train", llama_model_n_ctx_train(model));
  extras.Number("above_rope_ctx", AboveRopeContext(model, n_ctx));
  extras.Number("offload_kqv", offload_kqv);
  extras.Number("op_offload", op_offload);
  extras.Number("swa_full", swa_full);
  if (exact_only) extras.Number("n_ubatch", n_ubatch);
  return OkStatus();
}

}  // namespace

Result<ModelTraits> CheckModel(const llama_model* model) {
  if (llama_model_has_encoder(model) || !llama_model_has_decoder(model)) {
    return UnimplementedError("llama.cpp: a model with an encoder; allowed: decoder-only models");
  }
  if (llama_model_is_diffusion(model))
    return UnimplementedError("llama.cpp: a diffusion model is not causal");
  if (MetaBySuffix(model, ".attention.causal").value_or("true") == "false") {
    return UnimplementedError("llama.cpp: the model's attention is not causal");
  }
  const llama_rope_type rope = llama_model_rope_type(model);
  if (rope == LLAMA_ROPE_TYPE_MROPE || rope == LLAMA_ROPE_TYPE_IMROPE || rope == LLAMA_ROPE_TYPE_VISION) {
    return UnimplementedError("llama.cpp: M-RoPE (rope type " + std::to_string(rope) +
                              "): one token has several positions; allowed: one position per token");
  }
  // Its compressed cache ends the process on a partial copy of a sequence.
  const std::string architecture = MetaBySuffix(model, "general.architecture").value_or("");
  if (architecture == "deepseek4")
    return UnimplementedError("llama.cpp: architecture deepseek4 cannot copy a part of a sequence");
  ModelTraits traits;
  traits.recurrent = llama_model_is_recurrent(model) && !llama_model_is_hybrid(model);
  traits.hybrid = llama_model_is_hybrid(model);
  traits.window = static_cast<uint32_t>(std::max(0, llama_model_n_swa(model)));
  return traits;
}

Result<std::string> EngineExtras(const llama_model* model, const llama_model_params* model_params,
                                 const llama_context_params& context_params, bool exact_only) {
  ExtrasWriter extras;
  extras.Text("engine", TERRACE_ENGINE_BUILD);
  // Instruction sets choose kernels, and kernels the order of summation.
  extras.Text("system", llama_print_system_info());
  for (const char* name : {"LLAMA_ATTN_ROT_DISABLE", "GGML_CPU_DISABLE_FUSION"}) {
    const char* value = std::getenv(name);
    extras.Text(name, value != nullptr ? value : "");
  }
  const llama_model_params defaults = llama_model_default_params();
  if (Status s = DescribeModelParams(model_params != nullptr ? *model_params : defaults, extras); !s.ok())
    return s;
  if (Status s = DescribeContextParams(model, context_params, exact_only, extras); !s.ok()) return s;
  extras.Number("exact_only", exact_only);
  return std::move(extras).Take();
}

KvSpec MakeSpec(std::string model_id, std::string engine_extras, const ModelTraits& traits, bool exact_only) {
  KvSpec spec;
  spec.model_id = std::move(model_id);
  spec.payload_form = PayloadForm::kOpaque;
  spec.payload_version = 1;
  spec.tokens_per_chunk = kChunkTokens;
  spec.cut = traits.CanCut() && !exact_only ? Cut::kWhole : Cut::kNone;
  spec.groups = {GroupSpec{traits.recurrent ? Retention::kState : Retention::kFull, 0}};
  spec.engine_extras = std::move(engine_extras);
  return spec;
}

}  // namespace terrace::llamacpp
