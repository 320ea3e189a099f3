// ServerConfig: what `terrace serve` is told, by a JSON file and by flags. One table of fields serves both:
// the key "host_bytes" of the file is the flag --host-bytes, and a flag overrides the file.
//
// Nothing here opens, listens or starts; files are read by ReadServerSetup (server_setup.h).
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "connectors/server/mistakes.h"
#include "terrace/log_sink.h"

namespace terrace::server {

inline constexpr uint16_t kDefaultPort = 7420;
inline constexpr uint16_t kDefaultMetricsPort = 7421;

struct ServerConfig {
  std::vector<std::string> listen = {"127.0.0.1:7420"};
  std::string unix_path;  // empty: none
  uint64_t host_bytes = uint64_t{1} << 30;
  std::string nvme_dir;  // empty: no NVMe tier
  uint64_t nvme_bytes = 0;
  std::string nvme_key_file;
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  std::string token_file;
  std::optional<uint16_t> metrics_port = kDefaultMetricsPort;  // absent: off; 0: any free one
  uint32_t drain_seconds = 20;
  bool bulk = true;
  uint32_t bulk_connections = 4;
  bool shm = true;
  uint64_t staging_bytes = uint64_t{64} << 20;
  std::vector<uint32_t> shm_users;
  uint32_t max_connections = 2048;
  uint64_t max_message_bytes = uint64_t{8} << 20;
  uint32_t max_sessions = 4096;
  uint32_t session_ttl_seconds = 60;
  LogLevel log_level = LogLevel::kInfo;
  bool allow_plaintext = false;  // a non-loopback address without TLS
  bool allow_anyone = false;     // a non-loopback address without tokens
};

// A field of the file, and its flag.
struct ConfigField {
  enum class Form : uint8_t {
    kValue,  // --flag VALUE
    kList,   // may be given more than once; in the file a list
    kFlag,   // --flag alone; in the file true or false
  };
  std::string key;
  Form form = Form::kValue;
  std::string type_name;  // of --help
  std::string help;
  // Sets it from the file's value (from a flag: strings, a list of strings, true). What is allowed instead;
  // empty: it was set.
  std::function<std::string(const nlohmann::json& value, ServerConfig& config)> set;

  std::string flag() const;  // "--host-bytes"
};

std::vector<ConfigField> ServerConfigFields();

// A flag as the command line has it: its values in their order, none for Form::kFlag.
struct FlagValue {
  std::string key;
  std::vector<std::string> values;
};

// The file's text first (empty: none), then the flags. What is wrong is added to `mistakes`.
ServerConfig ReadServerConfig(std::string_view file_text, const std::vector<FlagValue>& flags,
                              Mistakes& mistakes);

// What spans several fields.
void CheckTogether(const ServerConfig& config, Mistakes& mistakes);

// Whether others than this host reach an address.
bool ListensBeyondLoopback(const ServerConfig& config);

// "127.0.0.1:7420", "[::1]:7420", "localhost:0".
struct ListenAddress {
  std::string host;
  uint16_t port = 0;
  // Of the address itself; of names "localhost" alone.
  bool is_loopback = false;
};
std::optional<ListenAddress> ParseListenAddress(std::string_view text);

}  // namespace terrace::server
