// Token file: the tenants of a server, with tokens, rights, limits and quotas. JSON, its owner's alone (mode
// 0600):
//
//   { "tenants": [
//     { "name": "team-a",                     of metrics and logs
//       "namespace": "team-a",                absent: the name. Two tenants that name one share what lies in
//       it "tokens": ["sha256:HEX", "..."],      SHA-256 in hex, or the token itself (16..512 printable
//       characters);
//                                             []: nobody can be this tenant now, its namespace is kept
//       "rights": ["read", "write", "admin"],
//       "quota": { "host_bytes": "8GiB", "nvme_bytes": "100GiB" },
//       "limits": { "max_sessions": 256, "max_streams": 256, "max_inflight_bytes": "1GiB",
//                   "calls_per_second": 0, "bytes_per_second": 0 } } ] }       0: no limit
//
// A namespace's quota stands at one of its tenants, or alike at several. Namespaces without one share equally
// what the others leave of the server's bytes.
//
// No message shows a token, and only digests are kept.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "connectors/server/mistakes.h"
#include "connectors/server/tenant_table.h"
#include "terrace/status.h"

namespace terrace::server {

// What the server has on each tier, for all namespaces together.
struct TierTotals {
  uint64_t host_bytes = 0;
  uint64_t nvme_bytes = 0;
};

struct TenantFile {
  std::vector<TenantEntry> entries;
  std::vector<NamespaceQuota> quotas;  // each namespace once
};

// What is wrong is added to `mistakes`; the answer is of use only where there was nothing.
TenantFile ParseTenants(std::string_view text, const TierTotals& totals, Mistakes& mistakes);

// The same out of a file. The text is wiped.
TenantFile ReadTenantFile(const std::string& path, const TierTotals& totals, Mistakes& mistakes);

// A server without token file: one namespace, which has everything.
TenantFile TenantsWithoutTokens(const TierTotals& totals);

}  // namespace terrace::server
