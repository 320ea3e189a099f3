// DeviceSet: the devices that a manager was opened with, each with its copier, and the poller that tells when
// copies are done. Made by Open after the pool, closed after the last copy.
//
// Threads: every call from every thread.
#pragma once

#include <map>
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

// Whether the view names memory of a device, not of the host (no stream, or a HostDevice's).
bool IsOnDevice(const PagedKvView& view);

// kInvalidArgument: a null device, one that is there twice, a strategy that it cannot do.
Status ValidateDevices(std::span<const DeviceOptions> devices);

class DeviceSet {
 public:
  // `pool`: the regions of the buffer pool, registered with each device; nothing is stored in it yet. Devices
  // of one model and with the same options are measured once; simulated ones are not. ValidateDevices'
  // errors; the device's own otherwise.
  static Result<std::unique_ptr<DeviceSet>> Open(std::span<const DeviceOptions> devices,
                                                 std::span<const MutableBytes> pool);

  // Of the memory that the view names: null for host memory. kInvalidArgument: a device that is not of the
  // set.
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

// Where the views of one call are, and how far the engine's streams are. Used by the thread of the call,
// which may use the streams.
class ViewPlaces {
 public:
  struct Place {
    DeviceCopier* copier = nullptr;   // null: host memory
    std::shared_ptr<Event> enqueued;  // of a device's: behind what the engine had enqueued on the stream
  };
  // Null where no view is of a device.
  explicit ViewPlaces(const DeviceSet* devices) : devices_(devices) {}

  // Records one event per stream, whatever the number of its views. CopierOf's errors, or the stream's.
  Result<Place> PlaceOf(const PagedKvView& view);

 private:
  const DeviceSet* const devices_;
  std::map<const Stream*, std::shared_ptr<Event>> enqueued_;
};

}  // namespace terrace
