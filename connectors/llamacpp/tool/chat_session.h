// ChatSession: a conversation and the very tokens that stand for it, kept in a JSON file. The tokens are kept
// because text that was generated does not always tokenize to the tokens that were generated, and only those
// hit the cache.
//
//   {"format": "terrace-chat-1", "model": "...", "rendered": "...", "tokens": [...],
//    "messages": [{"role": "user", "content": "..."}, ...]}
#pragma once

#include <string>
#include <vector>

#include "connectors/llamacpp/tool/loaded_model.h"

namespace terrace::llamacpp {

class ChatSession {
 public:
  // Reads the file where there is one; an empty path is a conversation that is not kept. kDataLoss for a file
  // of another kind, which is left alone. Tokens of another model are dropped and made anew.
  static Result<ChatSession> Open(const std::string& path, const LoadedModel& model);

  const std::vector<ChatMessage>& messages() const { return messages_; }
  const std::vector<llama_token>& tokens() const { return tokens_; }

  void AddSystem(const std::string& text) { messages_.push_back({"system", text}); }
  // Adds the user's message. tokens() is then the prompt of the next answer.
  Status AddUser(const LoadedModel& model, const std::string& text);
  // Adds the answer: its tokens as they were generated.
  void AddAssistant(const std::string& text, const std::vector<llama_token>& tokens);
  // Replaces the file as a whole; readable by its owner only.
  Status Write() const;

 private:
  std::string path_;
  std::string model_;
  std::vector<ChatMessage> messages_;
  std::string rendered_;  // the text that tokens_ stand for
  std::vector<llama_token> tokens_;
};

}  // namespace terrace::llamacpp
