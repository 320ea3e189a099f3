// What a library that was built without CUDA says of its devices.
#include <string>

#include "terrace/device.h"

namespace terrace {

int CountCudaDevices() { return 0; }

Result<std::shared_ptr<Device>> MakeCudaDevice(int ordinal) {
  return UnavailableError("CUDA device " + std::to_string(ordinal) +
                          ": this build of Terrace lacks CUDA (TERRACE_CUDA=OFF, or no nvcc was found)");
}

}  // namespace terrace
