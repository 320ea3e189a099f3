#include "connectors/server/server_config.h"

#include <arpa/inet.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "connectors/server/listen_address.h"
#include "connectors/server/strict_json.h"

namespace terrace::server {
namespace {

using nlohmann::json;
using Form = ConfigField::Form;

const ConfigField* FindField(const std::vector<ConfigField>& fields, std::string_view key) {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return f.key == key; });
  return found == fields.end() ? nullptr : &*found;
}

void ReadFile(std::string_view text, const std::vector<ConfigField>& fields, ServerConfig& config,
              Mistakes& mistakes) {
  const Result<json> file = ParseStrictJson(text);
  if (!file.ok()) return mistakes.AddLine("--config", file.status().message());
  for (const auto& [key, value] : file->items()) {
    const ConfigField* field = FindField(fields, key);
    if (field == nullptr) {
      std::string known;
      for (const ConfigField& one : fields) known += (known.empty() ? "" : ", ") + one.key;
      mistakes.AddLine(key, "is no key of this file; there are: " + known);
      continue;
    }
    const std::string allowed = field->set(value, config);
    if (!allowed.empty()) mistakes.Add(key, ShowJson(value), allowed);
  }
}

void ReadFlag(const FlagValue& flag, const ConfigField& field, ServerConfig& config, Mistakes& mistakes) {
  if (field.form == Form::kValue && flag.values.size() != 1) {
    return mistakes.AddLine(field.flag(), "is given " + std::to_string(flag.values.size()) + " times");
  }
  const json value = field.form == Form::kFlag    ? json(true)
                     : field.form == Form::kValue ? json(flag.values.front())
                                                  : json(flag.values);
  const std::string allowed = field.set(value, config);
  if (!allowed.empty()) mistakes.Add(field.flag(), ShowJson(value), allowed);
}

bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  if (inet_pton(AF_INET6, host.c_str(), &v6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

// Two fields that are given together.
void CheckPair(const std::string& one, bool one_missing, const std::string& other, bool other_missing,
               Mistakes& mistakes) {
  if (one_missing == other_missing) return;
  const std::string& missing = one_missing ? one : other;
  if (mistakes.Names(missing)) return;
  mistakes.AddLine(missing, "is missing; " + one + " and " + other + " are given together");
}

void CheckExposed(const ServerConfig& config, Mistakes& mistakes) {
  for (const std::string& text : config.listen) {
    const std::optional<ListenAddress> address = ParseListenAddress(text);
    if (!address || address->is_loopback) continue;
    if (config.tls_cert.empty() && !config.allow_plaintext) {
      mistakes.Add(
          "listen", text,
          "beyond loopback only with tls_cert and tls_key, or with allow_plaintext (the network then "
          "sees tokens and KV)");
    }
    if (config.token_file.empty() && !config.allow_anyone) {
      mistakes.Add(
          "listen", text,
          "beyond loopback only with token_file, or with allow_anyone (who reaches the port may then "
          "read, write and clear)");
    }
  }
}

}  // namespace

std::optional<ListenAddress> ParseListenAddress(std::string_view text) {
  const std::string with_host = (text.starts_with(':') ? "127.0.0.1" : "") + std::string(text);
  Result<HostPort> parsed = ParseHostPort(with_host);
  if (!parsed.ok()) return std::nullopt;
  const std::string& host = parsed->host;
  const bool is_bracketed = with_host.front() == '[';
  in6_addr v6{};
  const auto is_of_names = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '-';
  };
  const bool is_host = is_bracketed ? inet_pton(AF_INET6, host.c_str(), &v6) == 1
                                    : std::all_of(host.begin(), host.end(), is_of_names);
  if (!is_host) return std::nullopt;
  return ListenAddress{host, parsed->port, IsLoopback(host)};
}

ServerConfig ReadServerConfig(std::string_view file_text, const std::vector<FlagValue>& flags,
                              Mistakes& mistakes) {
  const std::vector<ConfigField> fields = ServerConfigFields();
  ServerConfig config;
  if (!file_text.empty()) ReadFile(file_text, fields, config, mistakes);
  for (const FlagValue& flag : flags) {
    const ConfigField* field = FindField(fields, flag.key);
    if (field == nullptr) {
      mistakes.AddLine(flag.key, "is no flag of this command");
    } else {
      ReadFlag(flag, *field, config, mistakes);
    }
  }
  return config;
}

bool ListensBeyondLoopback(const ServerConfig& config) {
  return std::any_of(config.listen.begin(), config.listen.end(), [](const std::string& text) {
    const std::optional<ListenAddress> address = ParseListenAddress(text);
    return address && !address->is_loopback;
  });
}

void CheckTogether(const ServerConfig& config, Mistakes& mistakes) {
  if (config.listen.empty() && config.unix_path.empty()) {
    mistakes.Add("listen", "[]", "at least one address, or none together with unix");
  }
  std::set<std::string> seen;
  for (const std::string& address : config.listen) {
    const bool is_any_port = address.ends_with(":0");
    if (!seen.insert(address).second && !is_any_port) mistakes.Add("listen", address, "each address once");
  }
  CheckExposed(config, mistakes);
  CheckPair("nvme_dir", config.nvme_dir.empty(), "nvme_bytes", config.nvme_bytes == 0, mistakes);
  CheckPair("tls_cert", config.tls_cert.empty(), "tls_key", config.tls_key.empty(), mistakes);
  if (!config.nvme_key_file.empty() && config.nvme_dir.empty()) {
    mistakes.Add("nvme_key_file", config.nvme_key_file, "only together with nvme_dir");
  }
  if (!config.tls_client_ca.empty() && config.tls_cert.empty()) {
    mistakes.Add("tls_client_ca", config.tls_client_ca, "only together with tls_cert and tls_key");
  }
}

}  // namespace terrace::server
