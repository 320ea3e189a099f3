// EventualFence: the end of all that a copier enqueued in one direction, from a device that could not record
// an event for it at once: asks again until it can. For buffers that may still be read or written; no stream
// can wait for it.
//
// Threads: the event from every thread; the copier outlives it.
#pragma once

#include <memory>

#include "lib/device/device_copier.h"
#include "terrace/device.h"

namespace terrace {

// A shortage is asked again without limit, another error some thousand times (a poller asks every 50 us or
// so). One that does not pass is the device's end, and with it of what it was doing: the event's error.
std::shared_ptr<Event> EventualFence(DeviceCopier& copier, CopyDirection direction);

}  // namespace terrace
