#include "lib/device/eventual_fence.h"

#include <mutex>
#include <utility>

#include "lib/base/status_macros.h"

namespace terrace {
namespace {

class AskedFence final : public Event {
 public:
  AskedFence(DeviceCopier& copier, CopyDirection direction) : copier_(copier), direction_(direction) {}
  Result<bool> Query() const override {
    std::lock_guard lock(mutex_);
    if (!fence_) {
      Result<std::shared_ptr<Event>> fence = copier_.Fence(direction_);
      const StatusCode code = fence.ok() ? StatusCode::kOk : fence.status().code();
      if (code == StatusCode::kResourceExhausted) return false;
      if (code != StatusCode::kOk && ++num_refusals_ < kMaxRefusals) return false;
      TERRACE_RETURN_IF_ERROR(fence.status());
      fence_ = *std::move(fence);
    }
    return fence_->Query();
  }
  void* native_handle() const override { return nullptr; }

 private:
  static constexpr int kMaxRefusals = 4096;

  DeviceCopier& copier_;
  const CopyDirection direction_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<Event> fence_;  // guarded by mutex_
  mutable int num_refusals_ = 0;          // the same
};

}  // namespace

FenceEnd FenceOf(DeviceCopier& copier, CopyDirection direction) {
  Result<std::shared_ptr<Event>> fence = copier.Fence(direction);
  if (fence.ok()) return {*std::move(fence), true};
  return {std::make_shared<AskedFence>(copier, direction), false};
}

}  // namespace terrace
