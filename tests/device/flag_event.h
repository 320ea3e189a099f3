// FlagEvent: an event that the test ends.
#pragma once

#include <atomic>
#include <cstdint>

#include "terrace/device.h"

namespace terrace {

class FlagEvent final : public Event {
 public:
  Result<bool> Query() const override {
    ++num_queries;
    if (fails) return InternalError("the device is lost");
    return is_done.load();
  }
  void* native_handle() const override { return nullptr; }

  std::atomic<bool> is_done{false};
  std::atomic<bool> fails{false};
  mutable std::atomic<uint64_t> num_queries{0};
};

}  // namespace terrace
