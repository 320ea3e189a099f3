#include "connectors/llamacpp/tool/run_command.h"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "connectors/llamacpp/tool/greedy_decoder.h"

namespace terrace::llamacpp {
namespace {

// A prompt as tokens. The document and what the template puts before it are tokenized apart from the
// question, so that they are the same tokens whatever is asked.
struct PromptTokens {
  std::vector<llama_token> tokens;
  uint64_t document_tokens = 0;  // of them, up to the document's end
};

// What the template puts around the user's message.
struct Frame {
  std::string before, after;
};

Result<Frame> TemplateFrame(const LoadedModel& model, const RunOptions& options) {
  const bool known = model.has_chat_template();
  if (options.chat_template == true && !known) {
    return InvalidArgumentError(
        "--chat-template: \"on\" is not allowed for this model, which brings no template that the "
        "engine knows; allowed: off");
  }
  if (!options.chat_template.value_or(known)) {
    return Frame{options.system.empty() ? "" : options.system + "\n\n", ""};
  }
  static constexpr std::string_view kPlace = "@terrace-place@";
  std::vector<ChatMessage> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system});
  messages.push_back({"user", std::string(kPlace)});
  Result<std::string> text = model.ApplyTemplate(messages, /*open=*/true);
  if (!text.ok()) return text.status();
  const size_t at = text->rfind(kPlace);
  if (at == std::string::npos) return InternalError("the chat template leaves the message out");
  return Frame{text->substr(0, at), text->substr(at + kPlace.size())};
}

Result<PromptTokens> MakePrompt(const LoadedModel& model, const RunOptions& options, const Frame& frame,
                                const std::string& document, const std::string& prompt) {
  PromptTokens made;
  if (options.document.empty()) {
    Result<std::vector<llama_token>> tokens = model.Tokenize(frame.before + prompt + frame.after, true);
    if (!tokens.ok()) return tokens.status();
    made.tokens = *std::move(tokens);
    return made;
  }
  Result<std::vector<llama_token>> head = model.Tokenize(frame.before + document, true);
  if (!head.ok()) return head.status();
  if (options.document_tokens > head->size()) {
    return InvalidArgumentError("--document-tokens: \"" + std::to_string(options.document_tokens) +
                                "\" is not allowed; allowed: at most " + std::to_string(head->size()) +
                                ", what template and document have");
  }
  if (options.document_tokens > 0) head->resize(options.document_tokens);
  Result<std::vector<llama_token>> tail = model.Tokenize("\n\n" + prompt + frame.after, false);
  if (!tail.ok()) return tail.status();
  made.tokens = *std::move(head);
  made.document_tokens = made.tokens.size();
  made.tokens.insert(made.tokens.end(), tail->begin(), tail->end());
  return made;
}

void PrintJson(const Answer& answer, const PromptTokens& prompt) {
  nlohmann::ordered_json line = {{"prompt_tokens", answer.prompt_tokens},
                                 {"document_tokens", prompt.document_tokens},
                                 {"loaded_tokens", answer.loaded_tokens},
                                 {"slot_tokens", answer.slot_tokens},
                                 {"decoded_tokens", answer.decoded_tokens},
                                 {"host_objects", answer.host.objects},
                                 {"nvme_objects", answer.nvme.objects},
                                 {"remote_objects", answer.remote.objects},
                                 {"host_tokens", answer.host.tokens},
                                 {"nvme_tokens", answer.nvme.tokens},
                                 {"remote_tokens", answer.remote.tokens},
                                 {"loaded_bytes", answer.loaded_bytes},
                                 {"ttft_ms", answer.ttft_ms},
                                 {"remote_ms", answer.remote_ms},
                                 {"load_ms", answer.load_ms},
                                 {"set_data_ms", answer.set_data_ms},
                                 {"store_thread_ms", answer.store_thread_ms},
                                 {"generate_ms", answer.generate_ms},
                                 {"ended", answer.ended},
                                 {"answer_tokens", answer.tokens},
                                 {"answer", answer.text}};
  // A limit can cut a character in two.
  std::printf("%s\n", line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

Status AnswerAll(const RunOptions& options, const LoadedModel& model, const KvStore& store) {
  std::string document;
  if (!options.document.empty()) {
    std::ostringstream content;
    content << std::ifstream(options.document, std::ios::binary).rdbuf();
    document = content.str();
  }
  Result<Frame> frame = TemplateFrame(model, options);
  if (!frame.ok()) return frame.status();
  LlamaCacheOptions cache_options;
  UseStore(store, &cache_options);
  cache_options.salt = options.cache.salt;
  cache_options.exact_only = options.cache.exact;
  cache_options.check_logits = true;
  Result<std::unique_ptr<LlamaCache>> cache = CreateCache(model, options.model, cache_options);
  if (!cache.ok()) return cache.status();
  GreedyDecoder decoder(model, **cache, store);
  for (const std::string& text : options.prompts) {
    if (options.clear_slot) decoder.ClearSlot();
    Result<PromptTokens> prompt = MakePrompt(model, options, *frame, document, text);
    if (!prompt.ok()) return prompt.status();
    Result<Answer> answer =
        decoder.Generate(prompt->tokens, options.max_tokens, [&](const std::string& piece) {
          if (options.json) return;
          std::fwrite(piece.data(), 1, piece.size(), stdout);
          std::fflush(stdout);
        });
    if (!answer.ok()) return answer.status();
    if (options.json) {
      PrintJson(*answer, *prompt);
    } else {
      std::printf("\n");
      std::fflush(stdout);
    }
    std::fprintf(stderr, "terrace-llama: %s\n", Summary(*answer).c_str());
  }
  return OkStatus();
}

}  // namespace

int RunPrompts(const RunOptions& options, const StoreOpener& opener) {
  // The store first: a cache that is required and held by another process must not cost the loading of a
  // model.
  auto [store, exit_code] = OpenStore(opener, options.cache);
  if (exit_code != 0) return exit_code;
  Result<std::unique_ptr<LoadedModel>> model = LoadedModel::Load(options.model);
  const Status done = model.ok() ? AnswerAll(options, **model, store) : model.status();
  CloseStore(&store);
  return ExitCode(done);
}

}  // namespace terrace::llamacpp
