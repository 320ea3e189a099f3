#include "connectors/server/tenant_table.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <map>
#include <utility>

namespace terrace::server {
namespace {

Tenant Anybody() {
  Tenant tenant;
  tenant.name = tenant.name_space = "default";
  tenant.may_read = tenant.may_write = tenant.may_admin = true;
  return tenant;
}

}  // namespace

std::string TokenDigest(std::string_view token) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

TenantTable::TenantTable(std::vector<TenantEntry> entries)
    : anybody_(std::make_shared<const Tenant>(Anybody())),
      entries_(std::make_shared<const std::vector<Entry>>()) {
  Replace(std::move(entries));
}

void TenantTable::Replace(std::vector<TenantEntry> entries) {
  std::map<std::string, TenantRef> known;
  for (const Entry& entry : *Entries()) known[entry.tenant->name] = entry.tenant;
  auto replaced = std::make_shared<std::vector<Entry>>();
  for (TenantEntry& entry : entries) {
    const auto found = known.find(entry.tenant.name);
    TenantRef tenant = found != known.end() && *found->second == entry.tenant
                           ? found->second
                           : std::make_shared<const Tenant>(std::move(entry.tenant));
    replaced->push_back({std::move(tenant), std::move(entry.token_sha256)});
  }
  const std::lock_guard lock(mutex_);
  entries_ = std::move(replaced);
}

TenantRef TenantTable::Find(std::string_view token) const {
  const std::shared_ptr<const std::vector<Entry>> entries = Entries();
  if (entries->empty()) return anybody_;
  const std::string digest = TokenDigest(token);
  // Every digest is compared, whether one was equal already or not.
  const Entry* found = nullptr;
  for (const Entry& entry : *entries) {
    for (const std::string& known : entry.token_sha256) {
      const bool is_size = known.size() == digest.size();
      const bool is_equal = is_size && CRYPTO_memcmp(known.data(), digest.data(), digest.size()) == 0;
      found = is_equal ? &entry : found;
    }
  }
  return found == nullptr ? nullptr : found->tenant;
}

bool TenantTable::StillHas(const Tenant& tenant) const {
  const auto covers = [&tenant](const Tenant& now) {
    if (&now == &tenant) return true;  // it did not change: the usual case, and there may be many to look at
    return now.name == tenant.name && now.name_space == tenant.name_space &&
           now.may_read >= tenant.may_read && now.may_write >= tenant.may_write &&
           now.may_admin >= tenant.may_admin;
  };
  const std::shared_ptr<const std::vector<Entry>> entries = Entries();
  if (entries->empty()) return covers(*anybody_);
  return std::any_of(entries->begin(), entries->end(),
                     [&](const Entry& entry) { return covers(*entry.tenant); });
}

bool TenantTable::needs_token() const { return !Entries()->empty(); }

std::shared_ptr<const std::vector<TenantTable::Entry>> TenantTable::Entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

}  // namespace terrace::server
