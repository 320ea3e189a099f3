#include "connectors/server/token_file.h"

#include <string.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "connectors/options/byte_size.h"
#include "connectors/options/private_file.h"
#include "connectors/server/strict_json.h"

namespace terrace::server {
namespace {

using nlohmann::json;

constexpr size_t kMaxFileBytes = size_t{4} << 20;
constexpr size_t kMaxTenants = 1000;
constexpr size_t kMaxTokens = 32;  // of one tenant: a rotation needs two
constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMinTokenBytes = 16;
constexpr size_t kMaxTokenBytes = 512;
constexpr uint64_t kMinHostBytes = uint64_t{16} << 20;
constexpr uint64_t kMinNvmeBytes = uint64_t{64} << 20;
constexpr uint64_t kUnit = uint64_t{1} << 20;  // of shares
constexpr std::string_view kHashPrefix = "sha256:";
constexpr char kNameText[] = "1 to 64 printable ASCII characters without space, \" and \\";
constexpr char kTokenText[] =
    "is not allowed (and not shown); allowed: \"sha256:\" with 64 hex digits, or the token itself, 16 to 512 "
    "printable ASCII characters without space";

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

bool IsName(const json& value) {
  if (!value.is_string()) return false;
  const auto& name = value.get_ref<const std::string&>();
  return !name.empty() && name.size() <= kMaxNameBytes && IsPrintable(name) &&
         name.find_first_of("\"\\") == std::string::npos;
}

std::optional<std::string> DigestOfHex(std::string_view hex) {
  if (hex.size() != 64) return std::nullopt;
  std::string digest;
  for (size_t i = 0; i < hex.size(); i += 2) {
    int byte = 0;
    for (const char c : hex.substr(i, 2)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return std::nullopt;
      byte = byte * 16 + digit;
    }
    digest += static_cast<char>(byte);
  }
  return digest;
}

std::optional<std::string> DigestOf(const json& value) {
  if (!value.is_string()) return std::nullopt;
  const std::string_view token = value.get_ref<const std::string&>();
  if (token.starts_with(kHashPrefix)) return DigestOfHex(token.substr(kHashPrefix.size()));
  if (token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes || !IsPrintable(token)) {
    return std::nullopt;
  }
  return TokenDigest(token);
}

std::optional<uint64_t> SizeOf(const json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (!value.is_string()) return std::nullopt;
  const Result<uint64_t> bytes = options::ParseByteSize(value.get_ref<const std::string&>());
  return bytes.ok() ? std::optional(*bytes) : std::nullopt;
}

// What one namespace was given, and by which tenant.
struct QuotaGiven {
  NamespaceQuota quota;
  bool is_given = false;
  std::string at;
};

// One reading of a file: what has been seen so far.
class Reader {
 public:
  Reader(const TierTotals& totals, Mistakes& mistakes) : totals_(totals), mistakes_(mistakes) {}

  TenantFile Read(const json& file) {
    CheckKeys("", file, {"tenants"});
    const auto tenants = file.find("tenants");
    if (tenants == file.end() || !tenants->is_array() || tenants->empty() || tenants->size() > kMaxTenants) {
      // Without entries everybody would be let in.
      mistakes_.AddLine("tenants", "is no list of 1 to 1000 tenants");
      return {};
    }
    for (size_t i = 0; i < tenants->size(); ++i)
      ReadTenant("tenants[" + std::to_string(i) + "]", (*tenants)[i]);
    TenantFile read;
    read.entries = std::move(entries_);
    read.quotas = Quotas();
    return read;
  }

 private:
  void CheckKeys(const std::string& at, const json& object, const std::set<std::string>& known) {
    std::string names;
    for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
    for (const auto& [key, value] : object.items()) {
      if (!known.contains(key)) {
        mistakes_.AddLine(at.empty() ? key : at + "." + key, "is no key of this file; there are: " + names);
      }
    }
  }

  void ReadTenant(const std::string& at, const json& value) {
    if (!value.is_object()) return mistakes_.AddLine(at, "is no object");
    CheckKeys(at, value, {"name", "namespace", "tokens", "rights", "quota", "limits"});
    TenantEntry entry;
    const auto name = value.find("name");
    if (name == value.end() || !IsName(*name)) {
      return mistakes_.Add(at + ".name", name == value.end() ? "nothing" : ShowJson(*name), kNameText);
    }
    entry.tenant.name = name->get<std::string>();
    const auto [other, is_new] = names_.emplace(entry.tenant.name, at);
    if (!is_new) mistakes_.AddLine(at + ".name", "is that of " + other->second);
    const json name_space = value.value("namespace", *name);
    if (IsName(name_space)) {
      entry.tenant.name_space = name_space.get<std::string>();
    } else {
      mistakes_.Add(at + ".namespace", ShowJson(name_space), kNameText);
    }
    ReadTokens(at + ".tokens", value.value("tokens", json()), entry);
    ReadRights(at + ".rights", value.value("rights", json()), entry.tenant);
    if (value.contains("limits")) ReadLimits(at + ".limits", value["limits"], entry.tenant.limits);
    ReadQuota(at + ".quota", value, entry.tenant.name_space);
    entries_.push_back(std::move(entry));
  }

  void ReadTokens(const std::string& at, const json& tokens, TenantEntry& entry) {
    if (!tokens.is_array() || tokens.size() > kMaxTokens) {
      return mistakes_.AddLine(at, "is no list of at most 32 tokens");
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string here = at + "[" + std::to_string(i) + "]";
      std::optional<std::string> digest = DigestOf(tokens[i]);
      if (!digest) {
        mistakes_.AddLine(here, kTokenText);
        continue;
      }
      const auto [other, is_new] = tokens_.emplace(*digest, here);
      if (!is_new) mistakes_.AddLine(here, "is the token of " + other->second);
      entry.token_sha256.push_back(*std::move(digest));
    }
  }

  void ReadRights(const std::string& at, const json& rights, Tenant& tenant) {
    constexpr char kAllowed[] = "a list of read, write, admin that is not empty";
    if (!rights.is_array() || rights.empty()) return mistakes_.Add(at, ShowJson(rights), kAllowed);
    for (const json& right : rights) {
      if (right == "read")
        tenant.may_read = true;
      else if (right == "write")
        tenant.may_write = true;
      else if (right == "admin")
        tenant.may_admin = true;
      else
        mistakes_.Add(at, ShowJson(right), kAllowed);
    }
  }

  void ReadLimits(const std::string& at, const json& limits, TenantLimits& read) {
    if (!limits.is_object()) return mistakes_.AddLine(at, "is no object");
    CheckKeys(at, limits,
              {"max_sessions", "max_streams", "max_inflight_bytes", "calls_per_second", "bytes_per_second"});
    ReadCount(at, limits, "max_sessions", 1, read.max_sessions);
    ReadCount(at, limits, "max_streams", 1, read.max_streams);
    ReadCount(at, limits, "calls_per_second", 0, read.calls_per_second);
    ReadSize(at, limits, "max_inflight_bytes", {kUnit, INT64_MAX}, read.max_inflight_bytes);
    ReadSize(at, limits, "bytes_per_second", {0, INT64_MAX}, read.bytes_per_second);
  }

  void ReadCount(const std::string& at, const json& object, const char* key, uint64_t low, uint32_t& read) {
    const auto value = object.find(key);
    if (value == object.end()) return;
    if (!value->is_number_unsigned() || *value < low || *value > UINT32_MAX) {
      mistakes_.Add(at + "." + key, ShowJson(*value),
                    "a whole number from " + std::to_string(low) + " to 4294967295");
      return;
    }
    read = value->get<uint32_t>();
  }

  void ReadSize(const std::string& at, const json& object, const char* key,
                std::pair<uint64_t, uint64_t> range, uint64_t& read) {
    const auto value = object.find(key);
    if (value == object.end()) return;
    const std::optional<uint64_t> bytes = SizeOf(*value);
    if (!bytes || *bytes < range.first || *bytes > range.second) {
      mistakes_.Add(at + "." + key, ShowJson(*value),
                    options::FormatByteSize(range.first) + " to " + options::FormatByteSize(range.second) +
                        ", as " + std::string(options::kByteSizeSyntax));
      return;
    }
    read = *bytes;
  }

  void ReadQuota(const std::string& at, const json& tenant, const std::string& name_space) {
    QuotaGiven& given = quotas_[name_space];
    given.quota.name = name_space;
    if (!tenant.contains("quota")) return;
    const json& value = tenant["quota"];
    if (!value.is_object()) return mistakes_.AddLine(at, "is no object");
    CheckKeys(at, value, {"host_bytes", "nvme_bytes"});
    if (!value.contains("host_bytes")) return mistakes_.AddLine(at + ".host_bytes", "is missing");
    NamespaceQuota quota;
    quota.name = name_space;
    ReadSize(at, value, "host_bytes", {kMinHostBytes, INT64_MAX}, quota.host_bytes);
    if (value.contains("nvme_bytes") && value["nvme_bytes"] != 0 && value["nvme_bytes"] != "0") {
      ReadSize(at, value, "nvme_bytes", {kMinNvmeBytes, INT64_MAX}, quota.nvme_bytes);
    }
    if (given.is_given && given.quota != quota) {
      return mistakes_.AddLine(at, "is not that of " + given.at + ", which gives the same namespace one");
    }
    given = {quota, true, at};
  }

  // Adds up without wrapping; false: more than `total`.
  static bool Take(uint64_t bytes, uint64_t& left) {
    if (bytes > left) return false;
    left -= bytes;
    return true;
  }

  std::vector<NamespaceQuota> Quotas() {
    TierTotals left = totals_;
    size_t num_sharing = 0;
    bool is_within = true;
    for (const auto& [name, given] : quotas_) {
      if (!given.is_given) ++num_sharing;
      is_within = Take(given.quota.host_bytes, left.host_bytes) && is_within;
      is_within = Take(given.quota.nvme_bytes, left.nvme_bytes) && is_within;
    }
    if (!is_within) {
      mistakes_.AddLine("tenants", "have quotas of together more than the server has: host_bytes " +
                                       options::FormatByteSize(totals_.host_bytes) + ", nvme_bytes " +
                                       options::FormatByteSize(totals_.nvme_bytes));
    }
    std::vector<NamespaceQuota> quotas;
    for (auto& [name, given] : quotas_) {
      if (!given.is_given) {
        given.quota.host_bytes = left.host_bytes / num_sharing / kUnit * kUnit;
        given.quota.nvme_bytes = left.nvme_bytes / num_sharing / kUnit * kUnit;
        if (is_within && given.quota.host_bytes < kMinHostBytes) {
          mistakes_.AddLine("tenants", "leave the namespace " + name + ", which has no quota, less than " +
                                           options::FormatByteSize(kMinHostBytes) + " of host_bytes");
        }
        if (given.quota.nvme_bytes < kMinNvmeBytes) given.quota.nvme_bytes = 0;
      }
      quotas.push_back(given.quota);
    }
    return quotas;
  }

  const TierTotals totals_;
  Mistakes& mistakes_;
  std::vector<TenantEntry> entries_;
  std::map<std::string, std::string> names_;   // of tenants: where they stand
  std::map<std::string, std::string> tokens_;  // by digest: where they stand
  std::map<std::string, QuotaGiven> quotas_;   // by namespace
};

}  // namespace

TenantFile ParseTenants(std::string_view text, const TierTotals& totals, Mistakes& mistakes) {
  const Result<json> file = ParseStrictJson(text);
  if (!file.ok()) {
    mistakes.AddLine("token_file", file.status().message());
    return {};
  }
  return Reader(totals, mistakes).Read(*file);
}

TenantFile ReadTenantFile(const std::string& path, const TierTotals& totals, Mistakes& mistakes) {
  Result<std::string> text = options::ReadPrivateFile("\"" + path + "\"", path, kMaxFileBytes);
  if (!text.ok()) {
    mistakes.AddLine("token_file", text.status().message());
    return {};
  }
  TenantFile file = ParseTenants(*text, totals, mistakes);
  explicit_bzero(text->data(), text->size());
  return file;
}

TenantFile TenantsWithoutTokens(const TierTotals& totals) {
  return {{}, {{"default", totals.host_bytes, totals.nvme_bytes}}};
}

}  // namespace terrace::server
