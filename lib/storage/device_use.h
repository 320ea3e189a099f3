// DeviceUse: while one is there, the manager's devices stay open; Close waits for it. Every store or load
// that copies on a device holds one, from before it asks for a copier until no copy of its is running any
// more. Also counts what is copied: terrace_device_copied_bytes_total, terrace_device_copy_errors_total (by
// device and direction), terrace_device_copies_in_flight.
//
// Threads: every call from every thread. Its end takes the manager's mutex.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "lib/device/device_set.h"
#include "terrace/device.h"
#include "terrace/status.h"

namespace terrace {

class ManagerCore;

class DeviceUse {
 public:
  // Of ManagerCore::UseDevices alone, which has counted it.
  explicit DeviceUse(std::shared_ptr<ManagerCore> core);
  ~DeviceUse();
  DeviceUse(const DeviceUse&) = delete;
  DeviceUse& operator=(const DeviceUse&) = delete;

  DeviceSet& devices() const;
  // Of a copy that was enqueued on `copier`: counts it, and calls `done` once, on the poller's thread, when
  // the device is done with it: OK, or the device's error. `done` posts work and returns.
  void Await(DeviceCopier& copier, CopyDirection direction, uint64_t bytes, std::shared_ptr<Event> event,
             std::function<void(const Status&)> done) const;
  // One that could not be enqueued.
  void CountRefused(DeviceCopier& copier, CopyDirection direction) const;

 private:
  const std::shared_ptr<ManagerCore> core_;
};

}  // namespace terrace
