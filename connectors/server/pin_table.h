// PinTable: the pins of the tenants, which end by themselves after the time that was asked for. What they
// protect lies with the managers.
//
// Threads: every call from every thread.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "connectors/server/namespace_map.h"
#include "connectors/server/tenant_table.h"
#include "terrace/time.h"

namespace terrace::server {

class PinTable {
 public:
  static constexpr size_t kMaxPinsPerTenant = 4096;

  // Pins what is stored of the query under the tenant's name for it; `ttl` 0: until Unpin. The tokens.
  Result<uint64_t> Pin(const Tenant& tenant, const NamespaceRef& name_space, const std::string& name,
                       const PrefixQuery& query, Duration ttl);
  bool Unpin(const Tenant& tenant, const NamespaceRef& name_space, const std::string& name);
  // Ends those whose time is over.
  void Reap(TimePoint now);
  size_t size() const;

 private:
  using Name = std::pair<std::string, std::string>;  // tenant, name
  struct Held {
    std::weak_ptr<Namespace> name_space;
    TimePoint ends;
  };
  mutable std::mutex mutex_;
  std::map<Name, Held> pins_;
  std::map<std::string, size_t> counts_;
};

}  // namespace terrace::server
