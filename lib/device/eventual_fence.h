// FenceOf: the end of all that a copier enqueued in one direction, where a copy was refused of which a part
// may be running. A device may refuse even the event that says it; then the device is asked again until it
// can.
//
// Threads: from every thread, the event too; the copier outlives it.
#pragma once

#include <memory>

#include "lib/device/device_copier.h"
#include "terrace/device.h"

namespace terrace {

struct FenceEnd {
  std::shared_ptr<Event> event;
  bool is_marked = true;  // on the stream: others can wait for it. Else it is for buffers alone.
};

// Asked again after a shortage without limit, after another error some thousand times (a poller asks every 50
// us or so). One that does not pass is the device's end, and with it of what it was doing: the event's error.
FenceEnd FenceOf(DeviceCopier& copier, CopyDirection direction);

}  // namespace terrace
