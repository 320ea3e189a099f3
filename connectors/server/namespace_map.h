// NamespaceMap: the namespaces of a server, each a StorageManager of its own with tiers of its own, so that
// nothing of one can be named, found, timed or evicted from another: a tenant's quota is the capacity of its
// tiers. The host tiers of all of them are allocated at start.
//
// Threads: every call from every thread. A namespace that SIGHUP takes away or gives another quota is drained
// and closed when its last user is gone; who holds it meanwhile sees kFailedPrecondition from its store.
#pragma once

#include <atomic>
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
  std::atomic<bool> is_closed{false};  // out of the map for good: its sessions end
};
using NamespaceRef = std::shared_ptr<Namespace>;

// Opens what a namespace's manager stands on: given by the composition root, which knows the backends.
using OpenNamespace = std::function<Result<NamespaceRef>(const NamespaceQuota& quota)>;

class NamespaceMap {
 public:
  explicit NamespaceMap(OpenNamespace open) : open_(std::move(open)) {}
  // Opens what is new or has another quota, drops what is no longer named. A namespace that gets another
  // quota is closed first (its memory and its directory are needed): it is absent meanwhile, its host tier is
  // cold afterwards, what its NVMe tier holds is kept. On an error everything is as before, but for closed
  // and reopened namespaces; the message says which one could not be reopened and is without a store now. One
  // Set at a time.
  Status Set(const std::vector<NamespaceQuota>& quotas);
  NamespaceRef Find(std::string_view name) const;
  std::vector<NamespaceRef> All() const;
  Status Close(TimePoint deadline);

 private:
  using Map = std::map<std::string, NamespaceRef, std::less<>>;

  NamespaceRef Take(const std::string& name);
  Status OpenOne(const NamespaceQuota& quota);

  const OpenNamespace open_;
  std::mutex set_mutex_;  // of one Set; taken before mutex_
  mutable std::mutex mutex_;
  Map namespaces_;
};

}  // namespace terrace::server
