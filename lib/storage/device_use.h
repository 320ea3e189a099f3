// DeviceUse: while one is there, the manager's devices stay open; Close waits for it. Every store or load
// that copies on a device holds one, from before it asks for a copier until no copy of its is running any
// more. Also counts what is copied: terrace_device_copied_bytes_total, terrace_device_copy_errors_total (by
// device and direction), terrace_device_copies_in_flight.
//
// Threads: every call from every thread. Its end takes the manager's mutex.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "lib/device/device_set.h"
#include "terrace/device.h"
#include "terrace/metrics.h"
#include "terrace/status.h"

namespace terrace {

class ManagerCore;

// What is counted of the copies of a manager's devices, found once.
class DeviceMeters {
 public:
  DeviceMeters(MetricRegistry& metrics, const DeviceSet& devices);
  struct Way {
    Counter* copied_bytes = nullptr;
    Counter* errors = nullptr;
  };
  const Way& WayOf(const DeviceCopier& copier, CopyDirection direction) const;
  Gauge& in_flight() const { return *in_flight_; }

 private:
  std::map<std::pair<const DeviceCopier*, CopyDirection>, Way> ways_;
  Gauge* in_flight_;
};

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
