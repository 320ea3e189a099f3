#include "connectors/server/pin_table.h"

namespace terrace::server {
namespace {

// Tenants may share a namespace; the length keeps "a" + "bc" apart from "ab" + "c".
std::string StoreName(const std::string& tenant, const std::string& name) {
  return std::to_string(tenant.size()) + ":" + tenant + ":" + name;
}

}  // namespace

Result<uint64_t> PinTable::Pin(const Tenant& tenant, const NamespaceRef& name_space, const std::string& name,
                               const PrefixQuery& query, Duration ttl) {
  const std::lock_guard lock(mutex_);
  const Name key{tenant.name, name};
  const bool is_new = !pins_.contains(key);
  if (is_new && counts_[tenant.name] >= kMaxPinsPerTenant) {
    return ResourceExhaustedError("the tenant has " + std::to_string(kMaxPinsPerTenant) + " pins");
  }
  const Result<uint64_t> tokens = name_space->store->Pin(StoreName(tenant.name, name), query);
  if (!tokens.ok()) return tokens.status();
  if (is_new) ++counts_[tenant.name];
  pins_[key] = {name_space, ttl > Duration::zero() ? Clock::Real()->Now() + ttl : kNoDeadline};
  return *tokens;
}

bool PinTable::Unpin(const Tenant& tenant, const NamespaceRef& name_space, const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (pins_.erase({tenant.name, name}) > 0) --counts_[tenant.name];
  return name_space->store->Unpin(StoreName(tenant.name, name));
}

void PinTable::Reap(TimePoint now) {
  const std::lock_guard lock(mutex_);
  for (auto pin = pins_.begin(); pin != pins_.end();) {
    const NamespaceRef name_space = pin->second.name_space.lock();
    if (name_space && pin->second.ends > now) {
      ++pin;
      continue;
    }
    if (name_space) name_space->store->Unpin(StoreName(pin->first.first, pin->first.second));
    --counts_[pin->first.first];
    pin = pins_.erase(pin);
  }
}

size_t PinTable::size() const {
  const std::lock_guard lock(mutex_);
  return pins_.size();
}

}  // namespace terrace::server
