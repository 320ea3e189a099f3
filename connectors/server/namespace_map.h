// NamespaceMap: the namespaces of a server, each a StorageManager of its own with tiers of its own, so that
// nothing of one can be named, found, timed or evicted from another: a tenant's quota is the capacity of its
// tiers. The host tiers of all of them are allocated at start.
//
// Threads: every call from every thread. A namespace that SIGHUP takes away or gives another quota is drained
// and closed when its last user is gone; who holds it meanwhile sees kFailedPrecondition from its store.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "connectors/server/event_log.h"
#include "connectors/server/tenant_table.h"
#include "terrace/frame_store.h"
#include "terrace/storage_manager.h"

namespace terrace::server {

struct Namespace {
  NamespaceQuota quota;
  std::shared_ptr<EventLog> events;
  std::unique_ptr<StorageManager> manager;
  std::unique_ptr<FrameStore> store;
};
using NamespaceRef = std::shared_ptr<Namespace>;

// Opens what a namespace's manager stands on: given by the composition root, which knows the backends.
using OpenNamespace = std::function<Result<NamespaceRef>(const NamespaceQuota& quota)>;

class NamespaceMap {
 public:
  explicit NamespaceMap(OpenNamespace open) : open_(std::move(open)) {}
  // Opens what is new or has another quota, drops what is no longer named. On an error nothing is changed but
  // what had to be closed first: the message says which namespace is without a store now.
  Status Set(const std::vector<NamespaceQuota>& quotas);
  NamespaceRef Find(std::string_view name) const;
  std::vector<NamespaceRef> All() const;
  Status Close(TimePoint deadline);

 private:
  const OpenNamespace open_;
  mutable std::mutex mutex_;
  std::map<std::string, NamespaceRef, std::less<>> namespaces_;
};

}  // namespace terrace::server
