// What a program meets on a machine without a device: this build, with CUDA or without, says so and goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "kernels/cuda/pci_device.h"
#include "terrace/device.h"
#include "tests/support/temporary_directory.h"

#ifdef TERRACE_HAVE_CUDA
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_status.h"
#endif

namespace terrace {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

TEST(NoDeviceTest, ThereAreNoneAndTheReasonIsNamed) {
  if (CountCudaDevices() > 0) GTEST_SKIP() << "there is a device here";
  EXPECT_EQ(CountCudaDevices(), 0);
  const Result<std::shared_ptr<Device>> device = MakeCudaDevice(0);
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), StatusCode::kUnavailable);
#ifdef TERRACE_HAVE_CUDA
  EXPECT_THAT(
      std::string(device.status().message()),
      AllOf(HasSubstr("CUDA device 0"), HasSubstr("cudaGetDeviceCount"),
            AnyOf(HasSubstr("cudaErrorInsufficientDriver (35)"), HasSubstr("cudaErrorNoDevice (100)"))));
#else
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("lacks CUDA"));
#endif
}

TEST(NoDeviceTest, AskingAgainGivesTheSameAnswer) {
  if (CountCudaDevices() > 0) GTEST_SKIP() << "there is a device here";
  for (const int ordinal : {-1, 0, 1, 1000}) {
    const auto first = MakeCudaDevice(ordinal), second = MakeCudaDevice(ordinal);
    ASSERT_FALSE(first.ok());
    EXPECT_EQ(first.status().code(), StatusCode::kUnavailable);
    EXPECT_EQ(first.status().ToString(), second.status().ToString());
  }
}

TEST(PciDeviceTest, NumaNodeIsWhatTheSystemSays) {
  const TemporaryDirectory root;
  const auto say = [&](const std::string& device, const std::string& text) {
    std::filesystem::create_directories(root.path() / device);
    std::ofstream(root.path() / device / "numa_node") << text;
  };
  say("0000:3b:00.0", "1\n");
  say("0000:5e:00.0", "-1\n");
  say("0000:5f:00.0", "nonsense\n");
  const std::string at = root.path().string();
  EXPECT_EQ(NumaNodeOfPciDevice("0000:3B:00.0", at), 1);
  EXPECT_EQ(NumaNodeOfPciDevice("0000:5E:00.0", at), -1);
  EXPECT_EQ(NumaNodeOfPciDevice("0000:5F:00.0", at), -1);
  EXPECT_EQ(NumaNodeOfPciDevice("0000:77:00.0", at), -1);
  EXPECT_EQ(NumaNodeOfPciDevice("../0000:3b:00.0/x", at), -1);
}

#ifdef TERRACE_HAVE_CUDA
TEST(CudaStatusTest, NamesErrorNumberAndCall) {
  EXPECT_TRUE(CudaStatus(cudaSuccess, "cudaMalloc").ok());
  const Status status = CudaStatus(cudaErrorMemoryAllocation, "cudaMalloc(&memory, bytes)");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(status.message()), "cudaMalloc: cudaErrorMemoryAllocation (2): out of memory");
}

TEST(CudaStatusTest, CodesSayWhatCanBeDone) {
  EXPECT_EQ(CudaStatus(cudaErrorInvalidValue, "f").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CudaStatus(cudaErrorInvalidResourceHandle, "f").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CudaStatus(cudaErrorNotSupported, "f").code(), StatusCode::kUnimplemented);
  EXPECT_EQ(CudaStatus(cudaErrorCapturedEvent, "f").code(), StatusCode::kFailedPrecondition);
  for (const cudaError_t lost : {cudaErrorIllegalAddress, cudaErrorECCUncorrectable,
                                 cudaErrorInsufficientDriver, cudaErrorNoDevice, cudaErrorCudartUnloading}) {
    EXPECT_EQ(CudaStatus(lost, "f").code(), StatusCode::kUnavailable) << lost;
  }
  EXPECT_TRUE(IsWithoutDevice(cudaErrorInsufficientDriver));
  EXPECT_TRUE(IsWithoutDevice(cudaErrorNoDevice));
  EXPECT_FALSE(IsWithoutDevice(cudaErrorIllegalAddress));
}

TEST(CudaDeviceTest, AGridThatNoDeviceHasIsRefused) {
  for (const PagedCopyGrid grid :
       {PagedCopyGrid{0, 1024}, PagedCopyGrid{4, 0}, PagedCopyGrid{4, 48}, PagedCopyGrid{4, 2048}}) {
    const auto device = CudaDevice::Open(0, {.grid = grid});
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(device.status().message()), HasSubstr("grid"));
  }
}
#endif

}  // namespace
}  // namespace terrace
