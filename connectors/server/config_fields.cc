// The table of fields: what each takes, how it is written, what is allowed.
#include <unistd.h>

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "connectors/options/byte_size.h"
#include "connectors/server/listen_address.h"
#include "connectors/server/server_config.h"

namespace terrace::server {
namespace {

using nlohmann::json;
using Form = ConfigField::Form;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kMaxBytes = (uint64_t{1} << 63) - 1;
constexpr size_t kMaxListeners = 16;
constexpr size_t kMaxUsers = 64;
// sockaddr_un holds 108 bytes with the end; the server puts ".bulk" and ".shm" behind it.
constexpr size_t kMaxUnixPath = 102;
constexpr char kSwitchText[] = "on, off (in the file true and false as well)";

std::optional<uint64_t> WholeNumber(const json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<uint64_t> Size(const json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (!value.is_string()) return std::nullopt;
  const Result<uint64_t> bytes = options::ParseByteSize(value.get_ref<const std::string&>());
  return bytes.ok() ? std::optional(*bytes) : std::nullopt;
}

std::optional<bool> Switch(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value == "on") return true;
  if (value == "off") return false;
  return std::nullopt;
}

uint64_t MemoryBytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page) : kMaxBytes;
}

struct Range {
  uint64_t low;
  uint64_t high;
};

ConfigField SizeField(const char* key, uint64_t ServerConfig::*field, Range range, const char* help) {
  const auto set = [=](const json& value, ServerConfig& config) -> std::string {
    const std::optional<uint64_t> bytes = Size(value);
    if (!bytes || *bytes < range.low || *bytes > range.high) {
      return options::FormatByteSize(range.low) + " to " + options::FormatByteSize(range.high) + ", as " +
             std::string(options::kByteSizeSyntax);
    }
    config.*field = *bytes;
    return "";
  };
  return {key, Form::kValue, "SIZE", help, set};
}

ConfigField CountField(const char* key, uint32_t ServerConfig::*field, Range range, const char* help) {
  const auto set = [=](const json& value, ServerConfig& config) -> std::string {
    const std::optional<uint64_t> number = WholeNumber(value);
    if (!number || *number < range.low || *number > range.high) {
      return "a whole number from " + std::to_string(range.low) + " to " + std::to_string(range.high);
    }
    config.*field = static_cast<uint32_t>(*number);
    return "";
  };
  return {key, Form::kValue, "N", help, set};
}

ConfigField SwitchField(const char* key, bool ServerConfig::*field, Form form, const char* help) {
  const auto set = [=](const json& value, ServerConfig& config) -> std::string {
    const std::optional<bool> on = Switch(value);
    if (!on) return kSwitchText;
    config.*field = *on;
    return "";
  };
  return {key, form, "on|off", help, set};
}

ConfigField PathField(const char* key, std::string ServerConfig::*field, const char* type_name,
                      const char* help) {
  const auto set = [=](const json& value, ServerConfig& config) -> std::string {
    if (!value.is_string() || value == "") return "a path that is not empty";
    config.*field = value.get<std::string>();
    return "";
  };
  return {key, Form::kValue, type_name, help, set};
}

std::string SetListen(const json& value, ServerConfig& config) {
  constexpr char kAllowed[] =
      "up to 16 of HOST:PORT, [V6]:PORT or :PORT (loopback), such as 127.0.0.1:7420; port 0 is any free one";
  const json list = value.is_string() ? json::array({value}) : value;
  if (!list.is_array() || list.size() > kMaxListeners) return kAllowed;
  std::vector<std::string> listen;
  for (const json& one : list) {
    if (!one.is_string()) return kAllowed;
    const std::optional<ListenAddress> address = ParseListenAddress(one.get_ref<const std::string&>());
    if (!address) return kAllowed;
    listen.push_back(FormatHostPort(address->host, address->port));
  }
  config.listen = std::move(listen);
  return "";
}

std::string SetUnix(const json& value, ServerConfig& config) {
  const std::string path = value.is_string() ? value.get<std::string>() : "";
  if (path.empty() || path.front() != '/' || path.size() > kMaxUnixPath) {
    return "an absolute path of at most 102 bytes";
  }
  config.unix_path = path;
  return "";
}

std::string SetUsers(const json& value, ServerConfig& config) {
  constexpr char kAllowed[] = "a list of up to 64 numeric user ids";
  const json list = value.is_array() ? value : json::array({value});
  if (list.size() > kMaxUsers) return kAllowed;
  std::vector<uint32_t> users;
  for (const json& one : list) {
    const std::optional<uint64_t> user = WholeNumber(one);
    if (!user || *user >= UINT32_MAX) return kAllowed;
    users.push_back(static_cast<uint32_t>(*user));
  }
  config.shm_users = std::move(users);
  return "";
}

std::string SetMetricsPort(const json& value, ServerConfig& config) {
  if (value == "off") {
    config.metrics_port.reset();
    return "";
  }
  const std::optional<uint64_t> port = WholeNumber(value);
  if (!port || *port > UINT16_MAX) return "a port from 0 (any free one) to 65535, or off";
  config.metrics_port = static_cast<uint16_t>(*port);
  return "";
}

std::string SetLogLevel(const json& value, ServerConfig& config) {
  const std::map<std::string, LogLevel> levels = {{"debug", LogLevel::kDebug},
                                                  {"info", LogLevel::kInfo},
                                                  {"warning", LogLevel::kWarning},
                                                  {"error", LogLevel::kError}};
  const auto level = levels.find(value.is_string() ? value.get<std::string>() : "");
  if (level == levels.end()) return "debug, info, warning, error";
  config.log_level = level->second;
  return "";
}

}  // namespace

std::string ConfigField::flag() const {
  std::string text = "--" + key;
  for (char& c : text) {
    if (c == '_') c = '-';
  }
  return text;
}

std::vector<ConfigField> ServerConfigFields() {
  using C = ServerConfig;
  return {
      {"listen", Form::kList, "HOST:PORT", "Address of gRPC (127.0.0.1:7420); may be repeated", SetListen},
      {"unix", Form::kValue, "PATH", "Unix socket for clients of this host; needed for shared memory",
       SetUnix},
      SizeField("host_bytes", &C::host_bytes, {16 * kMiB, MemoryBytes()},
                "Host memory, all namespaces (1GiB)"),
      PathField("nvme_dir", &C::nvme_dir, "DIR", "Directory of the NVMe tiers, one below it per namespace"),
      SizeField("nvme_bytes", &C::nvme_bytes, {64 * kMiB, kMaxBytes}, "Limit of the NVMe tiers together"),
      PathField("nvme_key_file", &C::nvme_key_file, "FILE",
                "Encrypt the NVMe tiers: lines of an id and 64 hex digits, mode 600"),
      PathField("tls_cert", &C::tls_cert, "FILE", "Certificate chain (PEM); with --tls-key"),
      PathField("tls_key", &C::tls_key, "FILE", "Private key (PEM, mode 600)"),
      PathField("tls_client_ca", &C::tls_client_ca, "FILE", "Clients must show a certificate of these (PEM)"),
      PathField("token_file", &C::token_file, "FILE",
                "Tenants with tokens, rights and quotas (JSON, mode 600)"),
      {"metrics_port", Form::kValue, "PORT|off", "Loopback port of /metrics and /healthz (7421); 0: any",
       SetMetricsPort},
      CountField("drain_seconds", &C::drain_seconds, {0, 3600},
                 "Calls in flight may take so long at the end (20)"),
      SwitchField("bulk", &C::bulk, Form::kValue, "Offer plain sockets for the bytes (on)"),
      CountField("bulk_connections", &C::bulk_connections, {1, 8}, "Of these sockets per session (4)"),
      SwitchField("shm", &C::shm, Form::kValue, "Offer shared memory on the Unix socket (on)"),
      SizeField("staging_bytes", &C::staging_bytes, {kMiB, 16 * kGiB},
                "Shared memory for one client's puts (64MiB)"),
      {"shm_users", Form::kList, "UID", "Users beside the server's own that may map memory; may be repeated",
       SetUsers},
      CountField("max_connections", &C::max_connections, {1, 65536}, "Connections at once (2048)"),
      SizeField("max_message_bytes", &C::max_message_bytes, {4 * kMiB, 64 * kMiB}, "One gRPC message (8MiB)"),
      CountField("max_sessions", &C::max_sessions, {1, 1 << 20}, "Sessions of all tenants (4096)"),
      CountField("session_ttl_seconds", &C::session_ttl_seconds, {5, 3600},
                 "A silent session ends after (60)"),
      {"log_level", Form::kValue, "LEVEL", "debug, info, warning or error (info)", SetLogLevel},
      SwitchField("allow_plaintext", &C::allow_plaintext, Form::kFlag,
                  "Listen beyond loopback without TLS: the network sees tokens and KV"),
      SwitchField("allow_anyone", &C::allow_anyone, Form::kFlag,
                  "Listen beyond loopback without tokens: who reaches the port may read, write and clear"),
  };
}

}  // namespace terrace::server
