#include "connectors/server/server_setup.h"

#include <utility>

#include "connectors/options/key_file.h"
#include "connectors/options/private_file.h"
#include "connectors/server/tls_files.h"

namespace terrace::server {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

}  // namespace

TenantFile ReadTenants(const ServerConfig& config, Mistakes& mistakes) {
  TierTotals totals{config.host_bytes, config.nvme_bytes};
  // Quotas are not measured against what was refused.
  if (mistakes.Names("host_bytes")) totals.host_bytes = INT64_MAX;
  if (mistakes.Names("nvme_bytes") || mistakes.Names("nvme_dir")) totals.nvme_bytes = INT64_MAX;
  if (config.token_file.empty()) return TenantsWithoutTokens(totals);
  return ReadTenantFile(config.token_file, totals, mistakes);
}

Result<ServerSetup> ReadServerSetup(const SetupSource& source) {
  Mistakes mistakes;
  for (const std::string& argument : source.unknown) {
    mistakes.AddLine(argument, "is no flag of this command; see terrace serve --help");
  }
  std::string text;
  if (!source.config_file.empty()) {
    const std::string name = "\"" + source.config_file + "\"";
    Result<std::string> file = options::ReadWholeFile(name, source.config_file, kMaxConfigBytes);
    if (!file.ok()) {
      mistakes.AddLine("--config", file.status().message());
    } else if (file->empty()) {
      mistakes.AddLine("--config", name + ": is empty; the least is {}");
    } else {
      text = *std::move(file);
    }
  }
  ServerSetup setup;
  setup.config = ReadServerConfig(text, source.flags, mistakes);
  CheckTogether(setup.config, mistakes);
  setup.tls =
      ReadTlsFiles({setup.config.tls_cert, setup.config.tls_key, setup.config.tls_client_ca}, mistakes);
  setup.tenants = ReadTenants(setup.config, mistakes);
  if (!setup.config.nvme_key_file.empty()) {
    Result<std::vector<EncryptionKey>> keys = options::ReadKeyFile(setup.config.nvme_key_file);
    if (keys.ok()) {
      setup.keys = *std::move(keys);
    } else {
      mistakes.AddLine("nvme_key_file", keys.status().message());
    }
  }
  if (!mistakes.empty()) return mistakes.ToStatus();
  return setup;
}

}  // namespace terrace::server
