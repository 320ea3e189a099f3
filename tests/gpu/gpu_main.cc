// Tests that need a device of CUDA. Without one the program says why and ends with 77, which CTest counts as
// skipped.
#include <gtest/gtest.h>

#include <cstdio>

#include "terrace/device.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (terrace::CountCudaDevices() == 0 && !GTEST_FLAG_GET(list_tests)) {
    std::printf("skipped: %s\n", terrace::MakeCudaDevice(0).status().ToString().c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
