#include <algorithm>
#include <set>

#include "backends/remote/server_address.h"
#include "lib/base/status_macros.h"
#include "terrace/remote_backend.h"

namespace terrace {
namespace {

constexpr size_t kMaxServers = 256;
constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kMaxPemBytes = size_t{1} << 20;

template <typename T>
Status CheckBounds(std::string_view field, T value, T low, T high) {
  if (value >= low && value <= high) return OkStatus();
  return InvalidArgumentError(std::string(field) + " = " + std::to_string(value) + ", allowed " +
                              std::to_string(low) + ".." + std::to_string(high));
}

Status CheckDuration(std::string_view field, Duration value, Duration low, Duration high) {
  const auto ms = [](Duration d) { return std::chrono::duration_cast<std::chrono::milliseconds>(d).count(); };
  if (value >= low && value <= high) return OkStatus();
  return InvalidArgumentError(std::string(field) + " = " + std::to_string(ms(value)) + " ms, allowed " +
                              std::to_string(ms(low)) + ".." + std::to_string(ms(high)) + " ms");
}

Status CheckPem(std::string_view field, const std::string& text) {
  if (text.size() > kMaxPemBytes)
    return InvalidArgumentError(std::string(field) + " has " + std::to_string(text.size()) +
                                " bytes, allowed 1048576 at most");
  if (!text.empty() && text.find("-----BEGIN ") == std::string::npos)
    return InvalidArgumentError(std::string(field) + " is not a PEM text");
  return OkStatus();
}

Status CheckTls(const RemoteTls& tls) {
  TERRACE_RETURN_IF_ERROR(CheckPem("tls.roots", tls.roots));
  TERRACE_RETURN_IF_ERROR(CheckPem("tls.certificate", tls.certificate));
  TERRACE_RETURN_IF_ERROR(CheckPem("tls.private_key", tls.private_key));
  if (tls.certificate.empty() != tls.private_key.empty())
    return InvalidArgumentError("tls.certificate and tls.private_key: both or none are needed");
  if (tls.server_name.size() > 255 || tls.server_name.find('\0') != std::string::npos)
    return InvalidArgumentError("tls.server_name is not a host name");
  const bool is_set = !tls.roots.empty() || !tls.certificate.empty() || !tls.server_name.empty();
  if (is_set && !tls.use_tls)
    return InvalidArgumentError(
        "tls.use_tls = false, but other options of tls are set: they would be ignored");
  return OkStatus();
}

Status CheckToken(const RemoteOptions& options, const std::vector<remote::ServerAddress>& addresses) {
  if (options.token.empty()) return OkStatus();
  if (options.token.size() > kMaxTokenBytes)
    return InvalidArgumentError("token has " + std::to_string(options.token.size()) +
                                " bytes, allowed 4096 at most");
  // Anything else would end or forge a header line.
  const auto is_plain = [](char c) { return c > 0x20 && c < 0x7f; };
  if (!std::all_of(options.token.begin(), options.token.end(), is_plain))
    return InvalidArgumentError("token: visible ASCII characters only");
  if (options.tls.use_tls || options.allow_plaintext_token) return OkStatus();
  for (const remote::ServerAddress& address : addresses) {
    if (address.is_unix() || address.is_loopback()) continue;
    return InvalidArgumentError("token: would be sent to " + address.text +
                                " in the clear; set tls.use_tls or allow_plaintext_token");
  }
  if (!options.address_file.empty() || !options.dns_name.empty())
    return InvalidArgumentError(
        "token: address_file and dns_name may name servers beyond this host, which would get it in the "
        "clear; "
        "set tls.use_tls or allow_plaintext_token");
  return OkStatus();
}

Status CheckPath(const RemoteOptions& options, const std::vector<remote::ServerAddress>& addresses) {
  if (options.path > RemotePath::kSharedMemory)
    return InvalidArgumentError("path = " + std::to_string(static_cast<int>(options.path)) +
                                ", allowed kAuto, kStreams, kBulk, kSharedMemory");
  if (options.path != RemotePath::kSharedMemory) return OkStatus();
  for (const remote::ServerAddress& address : addresses) {
    if (!address.is_unix() && !address.is_loopback())
      return InvalidArgumentError("path = kSharedMemory, but " + address.text + " is not on this host");
  }
  return OkStatus();
}

}  // namespace

Status RemoteOptions::Validate() const {
  using std::chrono::hours;
  using std::chrono::milliseconds;
  if (addresses.empty() && address_file.empty() && dns_name.empty())
    return InvalidArgumentError(
        "addresses, address_file and dns_name are empty: one of them names the servers");
  if (addresses.size() > kMaxServers)
    return InvalidArgumentError("addresses has " + std::to_string(addresses.size()) +
                                " entries, allowed 1..256");
  std::vector<remote::ServerAddress> parsed;
  std::set<std::string> seen;
  for (const std::string& text : addresses) {
    Result<remote::ServerAddress> address = remote::ParseServerAddress(text);
    if (!address.ok()) return address.status().WithContext("addresses");
    if (!seen.insert(text).second) return InvalidArgumentError("addresses: " + text + " stands there twice");
    parsed.push_back(*std::move(address));
  }
  if (address_file.find('\0') != std::string::npos || address_file.size() > 4095)
    return InvalidArgumentError("address_file is not a path");
  if (!dns_name.empty()) {
    const Result<remote::ServerAddress> name = remote::ParseServerAddress(dns_name);
    if (!name.ok()) return name.status().WithContext("dns_name");
    if (name->is_unix()) return InvalidArgumentError("dns_name = " + dns_name + ", allowed name:port");
  }
  TERRACE_RETURN_IF_ERROR(CheckBounds<uint64_t>("replicas", replicas, 1, 3));
  TERRACE_RETURN_IF_ERROR(CheckDuration("membership_grace", membership_grace, Duration(0), hours(24 * 7)));
  TERRACE_RETURN_IF_ERROR(CheckTls(tls));
  TERRACE_RETURN_IF_ERROR(CheckToken(*this, parsed));
  TERRACE_RETURN_IF_ERROR(CheckPath(*this, parsed));
  TERRACE_RETURN_IF_ERROR(CheckBounds<uint64_t>("bulk_connections", bulk_connections, 1, 8));
  TERRACE_RETURN_IF_ERROR(
      CheckBounds<uint64_t>("inflight_bytes", inflight_bytes, uint64_t{1} << 20, uint64_t{1} << 40));
  TERRACE_RETURN_IF_ERROR(CheckDuration("connect_deadline", connect_deadline, milliseconds(10), hours(1)));
  TERRACE_RETURN_IF_ERROR(
      CheckDuration("operation_deadline", operation_deadline, milliseconds(10), hours(1)));
  TERRACE_RETURN_IF_ERROR(CheckBounds<uint64_t>("retries", retries, 0, 5));
  TERRACE_RETURN_IF_ERROR(CheckBounds<uint64_t>("breaker_failures", breaker_failures, 1, 1000));
  return CheckDuration("breaker_pause", breaker_pause, milliseconds(1), std::chrono::seconds(30));
}

}  // namespace terrace
