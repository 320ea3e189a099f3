// Stores of unusual shape, and a backend that keeps its host waiting.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "terrace/backend_wrapper.h"
#include "terrace/storage_manager.h"

namespace terrace::llamacpp {

using WrapBackend = std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)>;

struct StoreShape {
  uint64_t pool_bytes = uint64_t{64} << 20;
  uint64_t load_window_bytes = 0;      // as StorageOptions has it; 1: one chunk after another
  std::optional<uint64_t> host_bytes;  // no host tier without
  std::filesystem::path directory;     // empty: no NVMe tier
  uint64_t nvme_bytes = uint64_t{96} << 20;
  WrapBackend wrap_host;
  WrapBackend wrap_nvme;
};
// The first of making the backends and opening the manager that fails says why. Logs nothing.
Result<std::shared_ptr<StorageManager>> OpenShaped(const StoreShape& shape);

// Wraps in a `Wrapper` and tells where it is: it lives as long as the manager.
template <typename Wrapper, typename... Arguments>
WrapBackend WrapIn(Wrapper** where, Arguments... arguments) {
  return [=](std::unique_ptr<Backend> base) {
    auto wrapper = std::make_unique<Wrapper>(std::move(base), arguments...);
    *where = wrapper.get();
    return wrapper;
  };
}

// Keeps reads or writes back until Release.
class HeldBackend final : public BackendWrapper {
 public:
  explicit HeldBackend(std::unique_ptr<Backend> base) : BackendWrapper(std::move(base)) {}

  // Reads from the `from`-th on (0: the next one).
  void HoldGets(size_t from = 0);
  void HoldPuts();
  // Nothing is held any longer.
  void Release();
  size_t held() const;

 protected:
  Capabilities DoCapabilities() const override;
  void DoGet(std::vector<GetOp> ops, GetDone done) override;
  void DoPut(std::vector<PutOp> ops, PutDone done) override;
  Status DoClose(TimePoint deadline) override;

 private:
  mutable std::mutex mutex_;
  std::optional<size_t> gets_to_pass_;
  bool hold_puts_ = false;
  std::vector<std::function<void()>> held_;
};

}  // namespace terrace::llamacpp
