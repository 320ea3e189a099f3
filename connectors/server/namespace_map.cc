#include "connectors/server/namespace_map.h"

#include <chrono>
#include <utility>

namespace terrace::server {
namespace {

// For what is on its way down when a namespace is closed to be opened anew.
constexpr std::chrono::seconds kReopenDrain(10);

Status CloseOne(Namespace& name_space, TimePoint deadline) {
  name_space.is_closed = true;
  if (name_space.manager == nullptr) return OkStatus();
  return name_space.manager->Close(deadline).WithContext("namespace " + name_space.quota.name);
}

// Its objects that were not written behind by the deadline are lost to a cache, which is no error.
void CloseToReopen(Namespace& name_space) {
  CloseOne(name_space, std::chrono::steady_clock::now() + kReopenDrain).IgnoreError();
}

}  // namespace

Status NamespaceMap::Set(const std::vector<NamespaceQuota>& quotas) {
  const std::lock_guard set_lock(set_mutex_);
  std::map<std::string, NamespaceQuota, std::less<>> wanted;
  for (const NamespaceQuota& quota : quotas) {
    if (!wanted.emplace(quota.name, quota).second) {
      return InvalidArgumentError("namespace " + quota.name + " is named twice");
    }
  }
  // Room first: what goes and what changes is closed before anything is opened.
  std::vector<NamespaceQuota> closed;
  for (const NamespaceRef& open : All()) {
    const auto found = wanted.find(open->quota.name);
    if (found != wanted.end() && found->second == open->quota) {
      wanted.erase(found);
      continue;
    }
    closed.push_back(open->quota);
    Take(open->quota.name);
    CloseToReopen(*open);
  }
  std::vector<std::string> opened;
  Status failed;
  for (const auto& [name, quota] : wanted) {
    failed = OpenOne(quota);
    if (!failed.ok()) break;
    opened.push_back(name);
  }
  if (failed.ok()) return OkStatus();
  for (const std::string& name : opened) CloseToReopen(*Take(name));
  for (const NamespaceQuota& quota : closed) {
    const Status reopened = OpenOne(quota);
    if (reopened.ok()) continue;
    failed = Status(failed.code(), std::string(failed.message()) +
                                       "; without a store now: " + std::string(reopened.message()));
  }
  return failed;
}

NamespaceRef NamespaceMap::Find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = namespaces_.find(name);
  return found == namespaces_.end() ? nullptr : found->second;
}

std::vector<NamespaceRef> NamespaceMap::All() const {
  const std::lock_guard lock(mutex_);
  std::vector<NamespaceRef> all;
  for (const auto& [name, name_space] : namespaces_) all.push_back(name_space);
  return all;
}

Status NamespaceMap::Close(TimePoint deadline) {
  const std::lock_guard set_lock(set_mutex_);
  Map closing;
  {
    const std::lock_guard lock(mutex_);
    closing.swap(namespaces_);
  }
  Status worst;
  for (const auto& [name, name_space] : closing) {
    Status closed = CloseOne(*name_space, deadline);
    if (worst.ok()) worst = std::move(closed);
  }
  return worst;
}

NamespaceRef NamespaceMap::Take(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = namespaces_.find(name);
  if (found == namespaces_.end()) return nullptr;
  NamespaceRef taken = std::move(found->second);
  namespaces_.erase(found);
  return taken;
}

Status NamespaceMap::OpenOne(const NamespaceQuota& quota) {
  Result<NamespaceRef> opened = open_(quota);
  if (!opened.ok()) return opened.status().WithContext("namespace " + quota.name);
  const std::lock_guard lock(mutex_);
  namespaces_[quota.name] = *std::move(opened);
  return OkStatus();
}

}  // namespace terrace::server
