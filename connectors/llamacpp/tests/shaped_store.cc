#include "connectors/llamacpp/tests/shaped_store.h"

#include <utility>

#include "terrace/host_backend.h"
#include "terrace/nvme_backend.h"

namespace terrace::llamacpp {
namespace {

Status AddTier(Result<std::unique_ptr<Backend>> backend, const WrapBackend& wrap, std::vector<Tier>* tiers) {
  if (!backend.ok()) return backend.status();
  tiers->push_back({.backend = wrap ? wrap(std::move(*backend)) : std::move(*backend), .policy = nullptr});
  return OkStatus();
}

}  // namespace

Result<std::shared_ptr<StorageManager>> OpenShaped(const StoreShape& shape) {
  StorageOptions options;
  options.pool_bytes = shape.pool_bytes;
  options.load_window_bytes = shape.load_window_bytes;
  options.huge_pages = false;
  options.log = MakeNullLogSink();
  std::vector<Tier> tiers;
  if (shape.host_bytes) {
    Status added = AddTier(MakeHostBackend({.capacity_bytes = *shape.host_bytes}), shape.wrap_host, &tiers);
    if (!added.ok()) return added;
  }
  if (!shape.directory.empty()) {
    NvmeOptions nvme;
    nvme.directory = shape.directory.string();
    nvme.capacity_bytes = shape.nvme_bytes;
    nvme.segment_bytes = uint64_t{16} << 20;
    Status added = AddTier(MakeNvmeBackend(nvme), shape.wrap_nvme, &tiers);
    if (!added.ok()) return added;
  }
  Result<std::unique_ptr<StorageManager>> store = StorageManager::Open(std::move(options), std::move(tiers));
  if (!store.ok()) return store.status();
  return std::shared_ptr<StorageManager>(std::move(*store));
}

void HeldBackend::HoldGets(size_t from) {
  std::lock_guard lock(mutex_);
  gets_to_pass_ = from;
}

void HeldBackend::HoldPuts() {
  std::lock_guard lock(mutex_);
  hold_puts_ = true;
}

void HeldBackend::Release() {
  std::vector<std::function<void()>> released;
  {
    std::lock_guard lock(mutex_);
    gets_to_pass_.reset();
    hold_puts_ = false;
    released.swap(held_);
  }
  for (const std::function<void()>& call : released) call();
}

size_t HeldBackend::held() const {
  std::lock_guard lock(mutex_);
  return held_.size();
}

Capabilities HeldBackend::DoCapabilities() const {
  Capabilities capabilities = BackendWrapper::DoCapabilities();
  capabilities.completes_inline = false;
  return capabilities;
}

void HeldBackend::DoGet(std::vector<GetOp> ops, GetDone done) {
  {
    std::lock_guard lock(mutex_);
    if (gets_to_pass_ == size_t{0}) {
      held_.push_back([this, ops = std::move(ops), done = std::move(done)] { base().Get(ops, done); });
      return;
    }
    if (gets_to_pass_) --*gets_to_pass_;
  }
  base().Get(std::move(ops), std::move(done));
}

void HeldBackend::DoPut(std::vector<PutOp> ops, PutDone done) {
  {
    std::lock_guard lock(mutex_);
    if (hold_puts_) {
      held_.push_back([this, ops = std::move(ops), done = std::move(done)] { base().Put(ops, done); });
      return;
    }
  }
  base().Put(std::move(ops), std::move(done));
}

Status HeldBackend::DoClose(TimePoint deadline) {
  Release();
  return BackendWrapper::DoClose(deadline);
}

}  // namespace terrace::llamacpp
