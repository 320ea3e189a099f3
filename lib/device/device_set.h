// DeviceSet: the devices that a manager was opened with, each with its copier, and the poller that tells when
// copies are done. Made by Open after the pool, closed after the last copy.
//
// Threads: every call from every thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/device/device_copier.h"
#include "lib/device/event_poller.h"
#include "terrace/device.h"
#include "terrace/paged_kv_view.h"
#include "terrace/status.h"

namespace terrace {

class DeviceSet {
 public:
  // `pool`: the regions of the buffer pool, registered with each device; nothing is stored in it yet. Devices
  // of one model and with the same options are measured once; simulated ones are not. kInvalidArgument: a
  // null device, one that is there twice, a strategy that it cannot do; the device's own error otherwise.
  static Result<std::unique_ptr<DeviceSet>> Open(std::span<const DeviceOptions> devices,
                                                 std::span<const MutableBytes> pool);

  // Of the memory that the view names: null for host memory (no stream, or a HostDevice's).
  // kInvalidArgument: a device that is not of the set.
  Result<DeviceCopier*> CopierOf(const PagedKvView& view) const;
  // Copiers in the order of the options; of a HostDevice there is none.
  std::span<const std::unique_ptr<DeviceCopier>> copiers() const { return copiers_; }
  EventPoller& poller() { return *poller_; }  // only where there is a copier
  // What is to be logged of the opening.
  std::vector<std::string> warnings() const;

 private:
  std::vector<std::unique_ptr<DeviceCopier>> copiers_;
  std::unique_ptr<EventPoller> poller_;  // null without copiers: no thread then
};

}  // namespace terrace
