// EngineFingerprint: what llama.cpp is set to, as far as it changes the bytes of a sequence's state. The
// engine has no getter for most of it, so it is taken from the parameters that make the context. Everything
// the parameter structs hold is either in the text, refused, or named here as without effect; a new field of
// the engine fails the build.
#pragma once

#include <cstdint>
#include <string>

#include "llama.h"
#include "terrace/kv_spec.h"
#include "terrace/status.h"

namespace terrace::llamacpp {

inline constexpr uint32_t kChunkTokens = 256;

// What the model allows.
struct ModelTraits {
  bool recurrent = false;  // purely: the state is of one position, and only of that
  bool hybrid = false;     // attention rows and recurrent state
  uint32_t window = 0;     // sliding window in tokens, 0 without
  // Rows stay as they were computed until they are removed: a sequence can be cut at any token, and saved
  // later.
  bool CanCut() const { return !recurrent && !hybrid && window == 0; }
};

// kUnimplemented with the reason for models that cannot be served (encoders, M-RoPE, ...).
Result<ModelTraits> CheckModel(const llama_model* model);

// KvSpec::engine_extras. kInvalidArgument or kUnimplemented with the field, its value and what is allowed.
// `model_params` may be null (the engine's defaults).
Result<std::string> EngineExtras(const llama_model* model, const llama_model_params* model_params,
                                 const llama_context_params& context_params, bool exact_only);

// The spec of one opaque group.
KvSpec MakeSpec(std::string model_id, std::string engine_extras, const ModelTraits& traits, bool exact_only);

}  // namespace terrace::llamacpp
