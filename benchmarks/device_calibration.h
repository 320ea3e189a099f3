// What a manager would measure of the devices at Open: which strategy copies which pieces the fastest. For
// people to read.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lib/device/copy_calibration.h"
#include "terrace/device.h"
#include "terrace/status.h"

namespace terrace::bench {

// One line per direction, piece size and count: the strategies' GB/s, and which one is taken.
std::string CalibrationText(const CopyCalibration& calibration);

// Of one device: its name, and what is measured with a pool of host memory and staging memory of its own, as
// a manager has them.
Result<std::string> CalibrateDevice(const std::shared_ptr<Device>& device);

// Of the CUDA device `ordinal`, whose absence is an error then; without a value of each that is there, or a
// line that says that there is none, and why.
Result<std::string> CalibrateDevices(std::optional<int> ordinal);

}  // namespace terrace::bench
