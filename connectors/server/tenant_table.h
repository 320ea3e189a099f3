// TenantTable: which token belongs to which tenant, and what each may do. Read once at start and again at
// SIGHUP; calls in flight keep what they were given.
//
// Threads: every call from every thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/status.h"

namespace terrace::server {

struct TenantLimits {
  uint32_t max_sessions = 256;
  uint32_t max_streams = 256;                       // calls in flight at once
  uint64_t max_inflight_bytes = uint64_t{1} << 30;  // of transfers and gets
  uint32_t calls_per_second = 0;                    // 0: no limit
  uint64_t bytes_per_second = 0;                    // the same
  friend bool operator==(const TenantLimits&, const TenantLimits&) = default;
};

struct Tenant {
  std::string name;        // of metrics and logs
  std::string name_space;  // = name, unless the operator lets named tenants share one
  bool may_read = false;   // Lookup, Get, Have, Scan, Watch, Stats
  bool may_write = false;  // Put, Erase, Pin
  bool may_admin = false;  // Clear, Flush
  TenantLimits limits;
  friend bool operator==(const Tenant&, const Tenant&) = default;
};
using TenantRef = std::shared_ptr<const Tenant>;

// What a namespace may have on each tier; its tenants share it.
struct NamespaceQuota {
  std::string name;
  uint64_t host_bytes = 0;
  uint64_t nvme_bytes = 0;  // 0: no NVMe tier
  friend bool operator==(const NamespaceQuota&, const NamespaceQuota&) = default;
};

// SHA-256, 32 bytes. All that is kept of a token.
std::string TokenDigest(std::string_view token);

struct TenantEntry {
  Tenant tenant;
  std::vector<std::string> token_sha256;  // 32 bytes each; tokens themselves are not kept
};

class TenantTable {
 public:
  // Without entries everybody is the tenant "default" with every right: a server on loopback without tokens.
  explicit TenantTable(std::vector<TenantEntry> entries);
  // Tenants that did not change stay the very objects that they were.
  void Replace(std::vector<TenantEntry> entries);
  // By a bearer token, compared in a time that depends on nothing but the number of entries. Null: unknown.
  TenantRef Find(std::string_view token) const;
  bool needs_token() const;
  // Whether a tenant that was found before is one still: of the same namespace, with no right taken away.
  bool StillHas(const Tenant& tenant) const;

 private:
  struct Entry {
    TenantRef tenant;
    std::vector<std::string> token_sha256;
  };
  std::shared_ptr<const std::vector<Entry>> Entries() const;

  const TenantRef anybody_;  // who it is without entries
  mutable std::mutex mutex_;
  std::shared_ptr<const std::vector<Entry>> entries_;
};

}  // namespace terrace::server
