#include "benchmarks/device_calibration.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <tuple>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "lib/device/device_copier.h"

namespace terrace::bench {
namespace {

constexpr uint64_t kPoolBytes = uint64_t{64} << 20;
constexpr uint64_t kStagingBytes = uint64_t{32} << 20;

class HostPool {
 public:
  HostPool() {
    void* mapped =
        mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    TERRACE_CHECK(mapped != MAP_FAILED);
    memory_ = {static_cast<std::byte*>(mapped), kPoolBytes};
  }
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;
  ~HostPool() { munmap(memory_.data(), memory_.size()); }
  MutableBytes memory() const { return memory_; }

 private:
  MutableBytes memory_;
};

}  // namespace

std::string CalibrationText(const CopyCalibration& calibration) {
  // By direction, size and count.
  std::map<std::tuple<CopyDirection, uint64_t, uint64_t>, std::string> speeds;
  uint32_t measured = 0;
  for (const CalibrationPoint& point : calibration.points()) {
    measured |= 1u << static_cast<uint32_t>(point.strategy);
    char speed[64];
    std::snprintf(speed, sizeof(speed), "  %s %.2f GB/s", CopyStrategyName(point.strategy),
                  point.bytes_per_second / 1e9);
    speeds[{point.direction, point.piece_bytes, point.num_pieces}] += speed;
  }
  std::string text;
  for (const auto& [place, speed] : speeds) {
    const auto [direction, piece_bytes, num_pieces] = place;
    text += direction == CopyDirection::kToHost ? "  to host    " : "  to device  ";
    text += std::to_string(num_pieces) + " x " + std::to_string(piece_bytes) + " B:" + speed + "  -> " +
            CopyStrategyName(calibration.Best(direction, piece_bytes, num_pieces, measured)) + "\n";
  }
  return text.empty() ? "  nothing to choose: copies are plain\n" : text;
}

Result<std::string> CalibrateDevice(const std::shared_ptr<Device>& device) {
  const HostPool pool;
  CopierOptions options;
  options.device = {.device = device, .staging_bytes = kStagingBytes};
  if (!device->properties().has_kernels) options.device.staging_bytes = 0;
  options.pool = {pool.memory()};
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceCopier> copier, DeviceCopier::Open(options));
  const DeviceProperties& properties = device->properties();
  std::string text = "device " + std::to_string(properties.ordinal) + ": " + properties.name + "\n";
  for (const std::string& warning : copier->warnings()) text += "  " + warning + "\n";
  return text + CalibrationText(copier->calibration());
}

Result<std::string> CalibrateDevices(std::optional<int> ordinal) {
  if (ordinal) {
    TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, MakeCudaDevice(*ordinal));
    return CalibrateDevice(device);
  }
  std::string text;
  const int count = CountCudaDevices();
  for (int i = 0; i < count; ++i) {
    TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, MakeCudaDevice(i));
    TERRACE_ASSIGN_OR_RETURN(const std::string one, CalibrateDevice(device));
    text += one;
  }
  if (count == 0) {
    text = "no device was measured: " + std::string(MakeCudaDevice(0).status().message()) + "\n";
  }
  return text;
}

}  // namespace terrace::bench
