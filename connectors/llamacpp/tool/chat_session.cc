#include "connectors/llamacpp/tool/chat_session.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace terrace::llamacpp {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "terrace-chat-1";

Status FileError(const std::string& path, const std::string& what) {
  return UnavailableError("--session: \"" + path + "\" " + what + ": " + std::strerror(errno));
}

// Without a template: plain text with names.
Result<std::string> Render(const LoadedModel& model, const std::vector<ChatMessage>& messages) {
  if (model.has_chat_template()) return model.ApplyTemplate(messages, /*open=*/true);
  std::string text;
  for (const ChatMessage& message : messages) text += message.role + ": " + message.content + "\n";
  return text + "assistant:";
}

}  // namespace

Result<ChatSession> ChatSession::Open(const std::string& path, const LoadedModel& model) {
  ChatSession session;
  session.path_ = path;
  session.model_ = model.Description();
  struct stat status;
  if (path.empty()) return session;
  if (stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return session;
    return FileError(path, "cannot be read");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return FileError(path, "cannot be read");
  try {
    const Json json = Json::parse(file);
    if (json.at("format").get<std::string>() != kFormat) {
      return DataLossError("--session: \"" + path +
                           "\" has another format; allowed: a file that this program wrote");
    }
    for (const Json& message : json.at("messages")) {
      session.messages_.push_back(
          {message.at("role").get<std::string>(), message.at("content").get<std::string>()});
    }
    if (json.at("model").get<std::string>() == session.model_) {
      session.rendered_ = json.at("rendered").get<std::string>();
      session.tokens_ = json.at("tokens").get<std::vector<llama_token>>();
    }
  } catch (const nlohmann::json::exception& error) {
    return DataLossError("--session: \"" + path +
                         "\" is no conversation; allowed: a file that this program wrote (" + error.what() +
                         ")");
  }
  const llama_token limit = llama_vocab_n_tokens(model.vocab());
  for (llama_token token : session.tokens_) {
    if (token < 0 || token >= limit)
      return DataLossError("--session: \"" + path + "\" holds tokens of no model");
  }
  return session;
}

Status ChatSession::AddUser(const LoadedModel& model, const std::string& text) {
  messages_.push_back({"user", text});
  Result<std::string> whole = Render(model, messages_);
  if (!whole.ok()) return whole.status();
  // A template that changes what was said before (some trim it) leaves nothing to extend: all is tokenized
  // anew.
  const bool extends = !tokens_.empty() && whole->compare(0, rendered_.size(), rendered_) == 0;
  Result<std::vector<llama_token>> more = model.Tokenize(
      extends ? std::string_view(*whole).substr(rendered_.size()) : *whole, /*begin=*/!extends);
  if (!more.ok()) return more.status();
  if (!extends) tokens_.clear();
  tokens_.insert(tokens_.end(), more->begin(), more->end());
  rendered_ = *std::move(whole);
  return OkStatus();
}

void ChatSession::AddAssistant(const std::string& text, const std::vector<llama_token>& tokens) {
  messages_.push_back({"assistant", text});
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  rendered_ += text;
}

Status ChatSession::Write() const {
  if (path_.empty()) return OkStatus();
  Json json = {{"format", kFormat}, {"model", model_}, {"rendered", rendered_}, {"tokens", tokens_}};
  json["messages"] = Json::array();
  for (const ChatMessage& message : messages_) {
    json["messages"].push_back({{"role", message.role}, {"content", message.content}});
  }
  // An answer that the limit cut inside a character is kept with a replacement character.
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  const std::string temporary = path_ + ".new";
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return FileError(temporary, "cannot be written");
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(file, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    written += static_cast<size_t>(count);
  }
  const bool whole = written == text.size() && fsync(file) == 0;
  const int reason = errno;
  close(file);
  errno = reason;
  if (!whole || rename(temporary.c_str(), path_.c_str()) != 0) {
    const Status error = FileError(path_, "cannot be written");
    unlink(temporary.c_str());
    return error;
  }
  return OkStatus();
}

}  // namespace terrace::llamacpp
