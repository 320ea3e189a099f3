// LoadedModel: a GGUF model in memory, its tokenizer and its chat template.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "connectors/llamacpp/llama_cache.h"
#include "connectors/llamacpp/tool/command_line.h"
#include "llama.h"
#include "terrace/status.h"

namespace terrace::llamacpp {

struct ChatMessage {
  std::string role;  // system, user, assistant
  std::string content;
};

class LoadedModel {
 public:
  // kInvalidArgument for a file that is no model of the engine's. Shows progress.
  static Result<std::unique_ptr<LoadedModel>> Load(const ModelOptions& options);
  ~LoadedModel();
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  llama_model* get() const { return model_; }
  const llama_vocab* vocab() const { return vocab_; }
  // The parts of the file.
  const ModelIdentity& identity() const { return identity_; }
  // Which model, in words and numbers, for files that hold its tokens.
  std::string Description() const;
  // For this model and these options; chunks are computed as 256-token steps in one micro batch each.
  llama_context_params ContextParams(const ModelOptions& options) const;

  // `begin`: of a prompt, so that the model's own leading token is added. Special tokens in the text count.
  Result<std::vector<llama_token>> Tokenize(std::string_view text, bool begin) const;
  std::string Piece(llama_token token) const;
  bool EndsAnswer(llama_token token) const { return llama_vocab_is_eog(vocab_, token); }

  // True where the model brings a chat template that the engine knows.
  bool has_chat_template() const;
  // The conversation as text; `open` ends it where the assistant's answer begins.
  Result<std::string> ApplyTemplate(const std::vector<ChatMessage>& messages, bool open) const;

 private:
  LoadedModel(llama_model* model, ModelIdentity identity);

  llama_model* const model_;
  const llama_vocab* const vocab_;
  const ModelIdentity identity_;
};

// LlamaCache::Create with progress (it hashes the model's file the first time).
Result<std::unique_ptr<LlamaCache>> CreateCache(const LoadedModel& model, const ModelOptions& options,
                                                const LlamaCacheOptions& cache_options);

}  // namespace terrace::llamacpp
