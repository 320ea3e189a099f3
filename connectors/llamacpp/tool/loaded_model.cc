#include "connectors/llamacpp/tool/loaded_model.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <thread>
#include <utility>

#include "connectors/llamacpp/tool/progress_line.h"

namespace terrace::llamacpp {
namespace {

constexpr uint32_t kStepTokens = 256;
constexpr uint32_t kMaxDefaultContext = 8192;

void LogErrorsOnly(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

// All parts of a split model, or the one file.
std::vector<std::string> Parts(const llama_model* model, const std::string& path) {
  char value[32] = "";
  int count = 0;
  const int length = llama_model_meta_val_str(model, "split.count", value, sizeof value);
  if (length > 0) std::from_chars(value, value + std::min<size_t>(length, sizeof value - 1), count);
  std::vector<char> prefix(path.size() + 1), part(path.size() + 32);
  if (count <= 1 || llama_split_prefix(prefix.data(), prefix.size(), path.c_str(), 0, count) <= 0)
    return {path};
  std::vector<std::string> parts;
  for (int i = 0; i < count; ++i) {
    llama_split_path(part.data(), part.size(), prefix.data(), i, count);
    parts.emplace_back(part.data());
  }
  return parts;
}

}  // namespace

LoadedModel::LoadedModel(llama_model* model, ModelIdentity identity)
    : model_(model), vocab_(llama_model_get_vocab(model)), identity_(std::move(identity)) {}

LoadedModel::~LoadedModel() { llama_model_free(model_); }

Result<std::unique_ptr<LoadedModel>> LoadedModel::Load(const ModelOptions& options) {
  llama_log_set(LogErrorsOnly, nullptr);
  llama_backend_init();
  llama_model_params params = llama_model_default_params();
  ProgressLine progress("loading the model");
  params.progress_callback = [](float fraction, void* line) {
    static_cast<ProgressLine*>(line)->SetFraction(fraction);
    return true;
  };
  params.progress_callback_user_data = &progress;
  llama_model* model = llama_model_load_from_file(options.path.c_str(), params);
  if (model == nullptr) {
    return InvalidArgumentError("--model: \"" + options.path + "\" is no model that this engine can load");
  }
  ModelIdentity identity;
  identity.gguf_paths = Parts(model, options.path);
  return std::unique_ptr<LoadedModel>(new LoadedModel(model, std::move(identity)));
}

std::string LoadedModel::Description() const {
  char text[256] = "";
  llama_model_desc(model_, text, sizeof text);
  return std::string(text) + ", " + std::to_string(llama_model_n_params(model_)) + " parameters, " +
         std::to_string(llama_vocab_n_tokens(vocab_)) + " tokens";
}

llama_context_params LoadedModel::ContextParams(const ModelOptions& options) const {
  llama_context_params params = llama_context_default_params();
  const int32_t trained = llama_model_n_ctx_train(model_);
  params.n_ctx = options.ctx != 0
                     ? options.ctx
                     : std::min(kMaxDefaultContext, trained > 0 ? static_cast<uint32_t>(trained) : 4096);
  params.n_batch = kStepTokens;
  params.n_ubatch = kStepTokens;
  params.flash_attn_type =
      options.flash_attn ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = options.kv_type;
  params.type_v = options.kv_type;
  const uint32_t threads =
      options.threads != 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  params.n_threads = static_cast<int32_t>(threads);
  params.n_threads_batch = static_cast<int32_t>(threads);
  return params;
}

Result<std::vector<llama_token>> LoadedModel::Tokenize(std::string_view text, bool begin) const {
  if (text.size() > size_t{1} << 30) return InvalidArgumentError("a text of more than 1 GiB");
  const auto length = static_cast<int32_t>(text.size());
  std::vector<llama_token> tokens(text.size() + 8);
  int32_t count =
      llama_tokenize(vocab_, text.data(), length, tokens.data(), static_cast<int32_t>(tokens.size()), begin,
                     /*parse_special=*/true);
  if (count < 0) {  // more tokens than bytes: the count that is needed, negated
    tokens.resize(static_cast<size_t>(-static_cast<int64_t>(count)));
    count = llama_tokenize(vocab_, text.data(), length, tokens.data(), static_cast<int32_t>(tokens.size()),
                           begin, true);
  }
  if (count < 0) return InternalError("the engine did not tokenize the text");
  tokens.resize(static_cast<size_t>(count));
  return tokens;
}

std::string LoadedModel::Piece(llama_token token) const {
  std::string piece(64, '\0');
  int32_t length =
      llama_token_to_piece(vocab_, token, piece.data(), static_cast<int32_t>(piece.size()), 0, false);
  if (length < 0) {
    piece.resize(static_cast<size_t>(-length));
    length = llama_token_to_piece(vocab_, token, piece.data(), static_cast<int32_t>(piece.size()), 0, false);
  }
  piece.resize(static_cast<size_t>(std::max(length, 0)));
  return piece;
}

bool LoadedModel::has_chat_template() const {
  return llama_model_chat_template(model_, nullptr) != nullptr && ApplyTemplate({{"user", "x"}}, true).ok();
}

Result<std::string> LoadedModel::ApplyTemplate(const std::vector<ChatMessage>& messages, bool open) const {
  const char* name = llama_model_chat_template(model_, nullptr);
  if (name == nullptr) return FailedPreconditionError("the model brings no chat template");
  std::vector<llama_chat_message> chat;
  size_t bytes = 256;
  for (const ChatMessage& message : messages) {
    chat.push_back({message.role.c_str(), message.content.c_str()});
    bytes += message.role.size() + message.content.size() + 64;
  }
  std::string text(bytes, '\0');
  int32_t length = llama_chat_apply_template(name, chat.data(), chat.size(), open, text.data(),
                                             static_cast<int32_t>(text.size()));
  if (length > static_cast<int32_t>(text.size())) {
    text.resize(static_cast<size_t>(length));
    length = llama_chat_apply_template(name, chat.data(), chat.size(), open, text.data(), length);
  }
  if (length < 0) return UnimplementedError("the engine does not know the model's chat template");
  text.resize(static_cast<size_t>(length));
  return text;
}

Result<std::unique_ptr<LlamaCache>> CreateCache(const LoadedModel& model, const ModelOptions& options,
                                                const LlamaCacheOptions& cache_options) {
  ProgressLine progress("preparing the context");
  return LlamaCache::Create(model.get(), model.identity(), model.ContextParams(options), cache_options);
}

}  // namespace terrace::llamacpp
