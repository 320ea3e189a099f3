// MeasureCopies: makes a CopyCalibration by copying, on the device and the streams that are to be used.
//
// Pieces of 2, 8, 32 and 128 KiB and such that all the memory is used, 16 and 256 of them, by each strategy
// in each direction; what counts is the time from the call to the event's end. Each strategy is run once
// unmeasured before (kernels are loaded by their first launch).
//
// Threads: the caller's; nobody else uses the memory or the streams meanwhile.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/paged_copy_args.h"
#include "lib/device/copy_calibration.h"
#include "terrace/bytes.h"
#include "terrace/device.h"
#include "terrace/status.h"
#include "terrace/time.h"

namespace terrace {

// What is ever used of either memory.
inline constexpr uint64_t kProbeBytes = uint64_t{32} << 20;

struct CopyProbe {
  // By direction, to the host first: the device's memory (overwritten), and the strategies as a mask of
  // 1 << strategy; 0 = the direction is not measured.
  std::array<MutableBytes, 2> pages;
  std::array<uint32_t, 2> strategies{};
  MutableBytes host;  // overwritten
  // After it no copy is begun; points that lack one of the strategies by then are left out.
  Duration budget{};
  // Enqueues a copy. After an error nothing of it is running any more.
  std::function<Result<std::shared_ptr<Event>>(const PagedCopyArgs&, CopyStrategy)> copy;
};

// An error of the device's. When it returns nothing is running any more.
Result<CopyCalibration> MeasureCopies(const CopyProbe& probe);

// Until it is done or in error, asking without a break: the pauses of Event::Wait are as long as what is
// measured. Without a deadline: the memory of what may still run cannot be given back.
Status SpinUntilDone(const Event& event);

}  // namespace terrace
