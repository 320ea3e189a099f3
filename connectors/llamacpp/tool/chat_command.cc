#include "connectors/llamacpp/tool/chat_command.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "connectors/llamacpp/tool/chat_session.h"
#include "connectors/llamacpp/tool/greedy_decoder.h"

namespace terrace::llamacpp {
namespace {

// One line of the user's; false at the end of the input or at /exit.
bool ReadLine(std::string* line) {
  while (true) {
    if (isatty(STDIN_FILENO) == 1) std::fputs("> ", stderr);
    if (!std::getline(std::cin, *line) || *line == "/exit") return false;
    if (line->find_first_not_of(" \t\r") != std::string::npos) return true;
  }
}

Status Converse(const ChatOptions& options, const LoadedModel& model, const KvStore& store) {
  Result<ChatSession> session = ChatSession::Open(options.session, model);
  if (!session.ok()) return session.status();
  if (!session->messages().empty()) {
    std::fprintf(stderr, "terrace-llama: going on with a conversation of %zu messages, %zu tokens\n",
                 session->messages().size(), session->tokens().size());
  } else if (!options.system.empty()) {
    session->AddSystem(options.system);
  }
  LlamaCacheOptions cache_options;
  UseStore(store, &cache_options);
  cache_options.salt = options.cache.salt;
  cache_options.check_logits = true;
  Result<std::unique_ptr<LlamaCache>> cache = CreateCache(model, options.model, cache_options);
  if (!cache.ok()) return cache.status();
  GreedyDecoder decoder(model, **cache, store);
  std::string line;
  while (ReadLine(&line)) {
    if (Status added = session->AddUser(model, line); !added.ok()) return added;
    Result<Answer> answer =
        decoder.Generate(session->tokens(), options.max_tokens, [](const std::string& piece) {
          std::fwrite(piece.data(), 1, piece.size(), stdout);
          std::fflush(stdout);
        });
    if (!answer.ok()) return answer.status();  // what was said before is in the file
    std::printf("\n");
    std::fflush(stdout);
    std::fprintf(stderr, "terrace-llama: %s\n", Summary(*answer).c_str());
    session->AddAssistant(answer->text, answer->tokens);
    if (Status written = session->Write(); !written.ok()) return written;
  }
  return OkStatus();
}

}  // namespace

int RunChat(const ChatOptions& options, const StoreOpener& opener) {
  auto [store, exit_code] = OpenStore(opener, options.cache);
  if (exit_code != 0) return exit_code;
  Result<std::unique_ptr<LoadedModel>> model = LoadedModel::Load(options.model);
  const Status done = model.ok() ? Converse(options, **model, store) : model.status();
  CloseStore(&store);
  return ExitCode(done);
}

}  // namespace terrace::llamacpp
