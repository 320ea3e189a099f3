#include "connectors/server/namespace_opener.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "terrace/host_backend.h"

namespace terrace::server {
namespace {

constexpr uint64_t kSegmentUnit = uint64_t{1} << 20;

// Log lines of a namespace's manager, which does not know its name.
class NamedLogSink final : public LogSink {
 public:
  NamedLogSink(std::string name, std::shared_ptr<LogSink> log)
      : name_(std::move(name)), log_(std::move(log)) {}
  void Log(LogLevel level, std::string_view component, std::string_view message) override {
    log_->Log(level, component, "namespace " + name_ + ": " + std::string(message));
  }

 private:
  const std::string name_;
  const std::shared_ptr<LogSink> log_;
};

Result<std::unique_ptr<Backend>> OpenNvme(const NamespaceOpenerOptions& options,
                                          const NamespaceQuota& quota) {
  if (mkdir(options.nvme_dir.c_str(), 0700) != 0 && errno != EEXIST) {
    return UnavailableError("nvme_dir \"" + options.nvme_dir + "\" cannot be made: " + std::strerror(errno));
  }
  NvmeOptions nvme;
  nvme.directory = options.nvme_dir + "/" + NamespaceDirectory(quota.name);
  nvme.capacity_bytes = quota.nvme_bytes;
  // At least eight segments where the capacity allows it, so that the limit is used up to a small rest.
  nvme.segment_bytes =
      std::clamp(quota.nvme_bytes / 8 / kSegmentUnit * kSegmentUnit, 16 * kSegmentUnit, 1024 * kSegmentUnit);
  nvme.keys = options.keys;
  return MakeNvmeBackend(nvme);
}

Result<NamespaceRef> Open(const NamespaceOpenerOptions& options, const NamespaceQuota& quota) {
  auto opened = std::make_shared<Namespace>();
  opened->quota = quota;
  opened->events = std::make_shared<EventLog>();
  std::vector<Tier> tiers;
  Result<std::unique_ptr<Backend>> host = MakeHostBackend({quota.host_bytes});
  if (!host.ok()) return host.status();
  tiers.push_back({*std::move(host), nullptr});
  if (!options.nvme_dir.empty() && quota.nvme_bytes > 0) {
    Result<std::unique_ptr<Backend>> nvme = OpenNvme(options, quota);
    if (!nvme.ok()) return nvme.status();
    tiers.push_back({*std::move(nvme), nullptr});
  }
  StorageOptions storage;
  storage.pool_bytes = quota.host_bytes;
  storage.share_pool = options.share_pool;
  storage.runs_stand_alone = true;
  storage.executor = options.executor;
  storage.log = std::make_shared<NamedLogSink>(quota.name, options.log);
  storage.events = opened->events;
  Result<std::unique_ptr<StorageManager>> manager =
      StorageManager::Open(std::move(storage), std::move(tiers));
  if (!manager.ok()) return manager.status();
  opened->manager = *std::move(manager);
  opened->store = std::make_unique<FrameStore>(*opened->manager);
  return opened;
}

}  // namespace

OpenNamespace MakeNamespaceOpener(NamespaceOpenerOptions options) {
  if (options.log == nullptr) options.log = MakeNullLogSink();
  return [options = std::move(options)](const NamespaceQuota& quota) { return Open(options, quota); };
}

std::string NamespaceDirectory(std::string_view name) {
  std::string directory = "ns-";
  for (const char c : name) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    if (is_plain) {
      directory += c;
      continue;
    }
    char code[4];
    std::snprintf(code, sizeof(code), "%%%02X", static_cast<unsigned char>(c));
    directory += code;
  }
  return directory;
}

}  // namespace terrace::server
