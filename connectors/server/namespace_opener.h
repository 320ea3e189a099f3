// What a namespace's StorageManager stands on in `terrace serve`: a host tier, and an NVMe tier in a
// directory of its own below one that all namespaces share.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "connectors/server/namespace_map.h"
#include "terrace/executor.h"
#include "terrace/log_sink.h"
#include "terrace/nvme_backend.h"

namespace terrace::server {

struct NamespaceOpenerOptions {
  std::string nvme_dir;             // empty: no NVMe tier, whatever the quota says; made with mode 0700
  std::vector<EncryptionKey> keys;  // of the NVMe tiers
  bool share_pool = true;           // the pool can be handed to clients of this host
  std::shared_ptr<Executor> executor;
  std::shared_ptr<LogSink> log;
};

OpenNamespace MakeNamespaceOpener(NamespaceOpenerOptions options);

// The directory's name below nvme_dir: "ns-" and the name, in which every byte but a-z, 0-9, '_' and '-' is
// %XX. Different names give different directories, on file systems without case too, and none leads
// elsewhere.
std::string NamespaceDirectory(std::string_view name);

}  // namespace terrace::server
