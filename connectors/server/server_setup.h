// ServerSetup: everything that `terrace serve` is told, files included, judged as a whole before anything
// starts.
#pragma once

#include <string>
#include <vector>

#include "connectors/server/cache_server.h"
#include "connectors/server/server_config.h"
#include "connectors/server/token_file.h"
#include "terrace/nvme_backend.h"

namespace terrace::server {

struct ServerSetup {
  ServerConfig config;
  ServerTls tls;
  TenantFile tenants;
  std::vector<EncryptionKey> keys;
};

struct SetupSource {
  std::string config_file;  // empty: none
  std::vector<FlagValue> flags;
  std::vector<std::string> unknown;  // arguments that are no flag
};

// kInvalidArgument: every mistake in one message, a line each, with field, value and what is allowed.
Result<ServerSetup> ReadServerSetup(const SetupSource& source);

// Tenants and quotas of the configuration: at start, and again at SIGHUP. Those of a server without token
// file, where it names none.
TenantFile ReadTenants(const ServerConfig& config, Mistakes& mistakes);

}  // namespace terrace::server
