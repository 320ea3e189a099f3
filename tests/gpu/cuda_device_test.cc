// CudaDevice's calls on a run-time that the test controls: what it asks of CUDA, what it makes of each
// answer, and that a thread is left with the context it came with.
#include "kernels/cuda/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lib/codec/paged_copy.h"
#include "lib/device/device_copier.h"
#include "tests/core/paged_layouts.h"
#include "tests/gpu/fake_cuda.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr size_t kPage = 4096;

class CudaDeviceCallsTest : public testing::Test {
 protected:
  void SetUp() override { cuda_.Reset(); }
  void TearDown() override {
    EXPECT_EQ(cuda_.wrong_contexts, 0u);
    EXPECT_THAT(cuda_.streams, IsEmpty());
    EXPECT_THAT(cuda_.events, IsEmpty());
    EXPECT_THAT(cuda_.allocated, IsEmpty());
    EXPECT_THAT(cuda_.registered, IsEmpty());
    EXPECT_EQ(FakeCuda::CurrentContext(), 0u);
  }
  static std::shared_ptr<CudaDevice> Open(int ordinal = 1, const CudaDeviceOptions& options = {}) {
    auto device = CudaDevice::Open(ordinal, options);
    EXPECT_TRUE(device.ok()) << device.status().ToString();
    return device.ok() ? *device : nullptr;
  }
  static std::string Message(const Status& status) { return std::string(status.message()); }

  FakeCuda& cuda_ = FakeCuda::Get();
};

// Host memory that may be registered.
struct PageMemory {
  explicit PageMemory(size_t bytes)
      : memory(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes)), &std::free) {
    span = {memory.get(), bytes};
    std::memset(memory.get(), 0, bytes);
  }
  std::unique_ptr<std::byte, void (*)(void*)> memory;
  MutableBytes span;
};

TEST_F(CudaDeviceCallsTest, NoDriverAndNoDeviceAreNoDevices) {
  cuda_.failures["cudaGetDeviceCount"] = cudaErrorInsufficientDriver;
  cuda_.driver_version = 0;
  EXPECT_EQ(CountCudaDevices(), 0);
  EXPECT_THAT(Message(MakeCudaDevice(0).status()),
              AllOf(HasSubstr("(35)"), HasSubstr("no driver is installed")));
  cuda_.driver_version = 12040;
  EXPECT_THAT(Message(MakeCudaDevice(0).status()), HasSubstr("the driver is for CUDA 12.4"));
  cuda_.failures["cudaGetDeviceCount"] = cudaErrorNoDevice;
  EXPECT_EQ(CountCudaDevices(), 0);
  EXPECT_EQ(MakeCudaDevice(0).status().code(), StatusCode::kUnavailable);
  cuda_.failures.clear();
  EXPECT_EQ(CountCudaDevices(), 2);
  EXPECT_THAT(Message(MakeCudaDevice(2).status()), HasSubstr("there are 2 devices"));
}

TEST_F(CudaDeviceCallsTest, EachCallOfOpenMayFail) {
  for (const char* call :
       {"cudaGetDriverEntryPointByVersion", "cudaSetDevice", "cudaFree", "cudaGetDeviceProperties",
        "cudaDeviceGetStreamPriorityRange", "cudaDriverGetVersion"}) {
    cuda_.failures = {{call, cudaErrorDevicesUnavailable}};
    const auto device = MakeCudaDevice(1);
    ASSERT_FALSE(device.ok()) << call;
    EXPECT_EQ(device.status().code(), StatusCode::kUnavailable) << call;
    EXPECT_THAT(Message(device.status()), HasSubstr("CUDA device 1"));
    EXPECT_EQ(FakeCuda::CurrentContext(), 0u) << call;
  }
}

TEST_F(CudaDeviceCallsTest, Properties) {
  const auto device = Open(1);
  EXPECT_EQ(device->properties().kind, DeviceKind::kCuda);
  EXPECT_EQ(device->properties().ordinal, 1);
  EXPECT_EQ(device->properties().name, "fake");
  EXPECT_EQ(device->properties().compute_capability, 90u);
  EXPECT_EQ(device->properties().numa_node, -1);
  EXPECT_TRUE(device->properties().has_kernels);
  EXPECT_TRUE(device->properties().has_batched_copy);
  EXPECT_TRUE(device->has_bulk_copy());
  EXPECT_FALSE(Open(1, {.use_bulk_copy = false})->has_bulk_copy());
  cuda_.compute_capability = 89;
  cuda_.driver_version = 12070;
  EXPECT_FALSE(Open(0)->has_bulk_copy());
  EXPECT_FALSE(Open(0)->properties().has_batched_copy);
  cuda_.failures["load vectors"] = cudaErrorNoKernelImageForDevice;
  const auto without = Open(0);
  EXPECT_FALSE(without->properties().has_kernels);
  EXPECT_EQ(without->Run(**without->MakeStream(), {}).code(), StatusCode::kUnimplemented);
}

TEST_F(CudaDeviceCallsTest, EveryCallLeavesTheThreadsContext) {
  const auto device = Open(1);
  PageMemory host(kPage);
  for (const uintptr_t before : {0, 1, 2}) {
    FakeCuda::SetCurrentContext(before);
    {
      const auto stream = *device->MakeStream();
      const auto memory = *device->Allocate(kPage);
      EXPECT_TRUE(device->RegisterHost(host.span).ok());
      EXPECT_TRUE(device->MappedAddress(host.span.data() + 7).ok());
      EXPECT_TRUE(
          device->Copy(*stream, CopyDirection::kToDevice, {memory.get(), host.span.data(), kPage}).ok());
      EXPECT_TRUE((*stream->Record())->Query().ok());
      device->UnregisterHost(host.span);
      EXPECT_EQ(FakeCuda::CurrentContext(), before);
    }
    EXPECT_EQ(FakeCuda::CurrentContext(), before);
  }
  FakeCuda::SetCurrentContext(0);
}

TEST_F(CudaDeviceCallsTest, StreamsOfItsOwnYield) {
  const auto device = Open();
  const auto stream = *device->MakeStream();
  EXPECT_EQ(cuda_.stream_flags, static_cast<unsigned>(cudaStreamNonBlocking));
  EXPECT_EQ(cuda_.stream_priority, 0) << "the least of -5 to 0";
  EXPECT_EQ(stream->device(), device);
}

TEST_F(CudaDeviceCallsTest, EventsAreQueriedAndUsedAgain) {
  const auto device = Open();
  const auto stream = *device->MakeStream();
  auto event = *stream->Record();
  EXPECT_EQ(cuda_.event_flags, static_cast<unsigned>(cudaEventDisableTiming));
  cuda_.held.insert(stream->native_handle());
  EXPECT_FALSE(*event->Query());
  cuda_.held.clear();
  EXPECT_TRUE(*event->Query());
  cuda_.failures["cudaEventQuery"] = cudaErrorIllegalAddress;
  const auto lost = event->Query();
  ASSERT_FALSE(lost.ok());
  EXPECT_THAT(Message(lost.status()), AllOf(HasSubstr("cudaEventQuery"), HasSubstr("(700)")));
  cuda_.failures.clear();
  void* const native = event->native_handle();
  event.reset();
  event = *stream->Record();
  EXPECT_EQ(event->native_handle(), native);
  EXPECT_EQ(cuda_.calls["cudaEventCreateWithFlags"], 1u);
  cuda_.failures["cudaEventRecord"] = cudaErrorIllegalAddress;
  EXPECT_FALSE(stream->Record().ok()) << "and its event is not lost (TearDown)";
}

TEST_F(CudaDeviceCallsTest, AGraphThatAnotherThreadCapturesEndsNoWaiting) {
  const auto device = Open(0);
  const auto stream = *device->MakeStream();
  const auto event = *stream->Record();
  cuda_.is_captured_globally = true;
  FakeCuda::SetCurrentContext(1);
  EXPECT_EQ(cudaEventQuery(static_cast<cudaEvent_t>(event->native_handle())),
            cudaErrorStreamCaptureUnsupported);
  FakeCuda::SetCurrentContext(0);
  EXPECT_TRUE(*event->Query());
  for (const cudaError_t error : {cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureWrongThread}) {
    cuda_.failures["cudaEventQuery"] = error;
    ASSERT_TRUE(event->Query().ok());
    EXPECT_FALSE(*event->Query()) << "not known to be done";
  }
}

TEST_F(CudaDeviceCallsTest, TheEnginesHandlesStayTheEngines) {
  const auto device = Open(1), other = Open(0);
  const auto engine = *device->MakeStream();  // stands for one that an engine made
  const auto made = *engine->Record();
  {
    const auto stream = *device->AdoptStream(engine->native_handle());
    EXPECT_EQ(stream->native_handle(), engine->native_handle());
    const auto event = *device->AdoptEvent(made->native_handle());
    EXPECT_TRUE(*event->Query());
    EXPECT_TRUE(stream->WaitFor(*event).ok());
    EXPECT_THAT(cuda_.waits, ElementsAre(testing::Pair(engine->native_handle(), made->native_handle())));
    cuda_.captured.insert(engine->native_handle());
    EXPECT_EQ(stream->Record().status().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(stream->WaitFor(*event).code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(cuda_.streams.count(engine->native_handle()), 1u);
  EXPECT_EQ(cuda_.events.count(made->native_handle()), 1u);
  const auto foreign = other->AdoptStream(engine->native_handle());
  ASSERT_FALSE(foreign.ok());
  EXPECT_EQ(foreign.status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(device->AdoptStream(nullptr).ok());
  EXPECT_EQ(device->AdoptEvent(nullptr).status().code(), StatusCode::kInvalidArgument);
  const auto host = MakeHostDevice();
  EXPECT_EQ(engine->WaitFor(**(*host->MakeStream())->Record()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(other->Copy(*engine, CopyDirection::kToHost, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(other->CopyBatch(*engine, CopyDirection::kToHost, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(other->Run(*engine, {}).code(), StatusCode::kInvalidArgument);
}

TEST_F(CudaDeviceCallsTest, RegistrationIsSharedBetweenDevices) {
  const auto first = Open(0), second = Open(1);
  PageMemory host(4 * kPage);
  ASSERT_TRUE(first->RegisterHost(host.span).ok());
  ASSERT_TRUE(second->RegisterHost(host.span).ok());
  EXPECT_EQ(*second->MappedAddress(host.span.data() + 5), host.span.data() + 5);
  second->UnregisterHost(host.span);
  EXPECT_EQ(cuda_.registered.size(), 1u);
  first->UnregisterHost(host.span);
  EXPECT_EQ(first->MappedAddress(host.span.data()).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(CudaDeviceCallsTest, RefusalsOfTheSystem) {
  const auto device = Open();
  PageMemory host(4 * kPage);
  cuda_.failures["cudaHostRegister"] = cudaErrorMemoryAllocation;
  EXPECT_EQ(device->RegisterHost(host.span).code(), StatusCode::kUnavailable);
  EXPECT_EQ(device->RegisterHost({host.span.data() + 1, kPage}).code(), StatusCode::kInvalidArgument);
  // Half of it is somebody else's already: not to be used as if all of it were.
  cuda_.failures["cudaHostRegister"] = cudaErrorHostMemoryAlreadyRegistered;
  EXPECT_EQ(device->RegisterHost(host.span).code(), StatusCode::kUnavailable);
  cuda_.failures.clear();
  const auto memory = device->Allocate(cuda_.device_bytes + 1);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(memory.status()), HasSubstr("cudaMalloc"));
}

TEST_F(CudaDeviceCallsTest, MemoryThatIsFreedWhenTheProcessEndsIsNoError) {
  const auto device = Open();
  auto memory = *device->Allocate(100);
  std::byte* const address = memory.get();
  cuda_.failures["cudaFree"] = cudaErrorCudartUnloading;
  memory.reset();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  cuda_.failures.clear();
  EXPECT_EQ(cudaFree(address), cudaSuccess);
}

std::vector<CopyPiece> PiecesOf(std::byte* dst, const std::byte* src, size_t count, size_t bytes) {
  std::vector<CopyPiece> pieces;
  for (size_t i = 0; i < count; ++i) pieces.push_back({dst + i * bytes, src + i * bytes, bytes});
  return pieces;
}

class CudaBatchTest : public CudaDeviceCallsTest {
 protected:
  // Whether a batch of 20 pieces (an empty one between them) gets there.
  bool IsCopied(Stream& stream) {
    std::vector<std::byte> src(20 * 64), dst(20 * 64);
    std::mt19937_64 random(4);
    FillRandom(src, random);
    std::vector<CopyPiece> pieces = PiecesOf(dst.data(), src.data(), 20, 64);
    pieces.insert(pieces.begin() + 3, CopyPiece{dst.data(), src.data(), 0});
    const Status copied = device_->CopyBatch(stream, CopyDirection::kToDevice, pieces);
    EXPECT_TRUE(copied.ok()) << copied.ToString();
    return src == dst;
  }
  std::shared_ptr<CudaDevice> device_;
};

TEST_F(CudaBatchTest, IsOneCall) {
  device_ = Open();
  const auto stream = *device_->MakeStream();
  EXPECT_TRUE(IsCopied(*stream));
  EXPECT_THAT(cuda_.batches, ElementsAre(20));
  EXPECT_THAT(cuda_.copies, IsEmpty());
  EXPECT_TRUE(device_->CopyBatch(*stream, CopyDirection::kToHost, {}).ok());
  EXPECT_EQ(cuda_.batches.size(), 1u);
}

TEST_F(CudaBatchTest, OnTheLegacyStreamIsSingleCopies) {
  device_ = Open();
  EXPECT_TRUE(IsCopied(**device_->AdoptStream(nullptr)));
  EXPECT_TRUE(IsCopied(**device_->AdoptStream(cudaStreamLegacy)));
  EXPECT_EQ(cuda_.copies.size(), 40u);
  EXPECT_EQ(cuda_.calls["cudaMemcpyBatchAsync"], 0u);
}

TEST_F(CudaBatchTest, ThatIsRefusedIsSingleCopies) {
  device_ = Open();
  const auto stream = *device_->MakeStream();
  cuda_.failures["cudaMemcpyBatchAsync"] = cudaErrorInvalidValue;
  EXPECT_TRUE(IsCopied(*stream));
  EXPECT_TRUE(IsCopied(*stream));
  EXPECT_EQ(cuda_.calls["cudaMemcpyBatchAsync"], 2u) << "another batch may be taken";
  cuda_.failures["cudaMemcpyBatchAsync"] = cudaErrorNotSupported;
  EXPECT_TRUE(IsCopied(*stream));
  EXPECT_TRUE(IsCopied(*stream));
  EXPECT_EQ(cuda_.calls["cudaMemcpyBatchAsync"], 3u) << "asked once, then no more";
  cuda_.failures["cudaMemcpyAsync"] = cudaErrorIllegalAddress;
  const Status lost =
      device_->CopyBatch(*stream, CopyDirection::kToHost, std::vector<CopyPiece>{{nullptr, nullptr, 64}});
  EXPECT_THAT(Message(lost), AllOf(HasSubstr("cudaMemcpyAsync"), HasSubstr("(700)")));
}

TEST_F(CudaBatchTest, HasABound) {
  device_ = Open();
  const auto stream = *device_->MakeStream();
  std::vector<std::byte> src(20000), dst(20000);
  std::iota(reinterpret_cast<uint8_t*>(src.data()), reinterpret_cast<uint8_t*>(src.data()) + src.size(), 0);
  ASSERT_TRUE(
      device_->CopyBatch(*stream, CopyDirection::kToHost, PiecesOf(dst.data(), src.data(), src.size(), 1))
          .ok());
  EXPECT_THAT(cuda_.batches, ElementsAre(8192, 8192, 20000 - 2 * 8192));
  EXPECT_TRUE(src == dst);
}

// Through the copier: every strategy, every layout, on both kinds of kernels.
TEST_F(CudaDeviceCallsTest, CopiesOfEveryStrategyEqualTheReference) {
  const auto device = Open(1);
  PageMemory pool(size_t{2} << 20);
  for (const auto strategy :
       {CopyStrategy::kPlain, CopyStrategy::kBatched, CopyStrategy::kStaged, CopyStrategy::kMapped}) {
    CopierOptions options;
    options.device = {device, 256 << 10, strategy, strategy};
    options.pool = {pool.span};
    options.calibration_budget = Duration::zero();
    const auto copier = DeviceCopier::Open(std::move(options));
    ASSERT_TRUE(copier.ok()) << copier.status().ToString();
    std::mt19937_64 random(12);
    for (const Layout& layout : kLayouts) {
      Geometry g;
      g.heads = layout.latent ? 1 : 3;
      g.kv = layout.latent ? 1 : 2;
      g.head_bytes = layout.latent ? 2304 : 208;
      Pages pages(layout, g, {3, 1, 6, 0});
      pages.Fill(random);
      const TokenRange tokens = {35, 94};
      std::vector<std::byte> expected(pages.PayloadBytes(tokens));
      pages.ForEachRun(tokens, tokens, {0, 3}, [&](const Place& place, int64_t offset) {
        std::memcpy(expected.data() + offset,
                    pages.memory[static_cast<size_t>(place.allocation)].data() + place.offset,
                    static_cast<size_t>(g.head_bytes));
      });
      const auto kernel =
          MakeKernelCopy(pages.CopyOf(tokens), tokens, {0, 3}, CopyDirection::kToHost, pool.span.data());
      ASSERT_TRUE(kernel.ok());
      const auto done = (*copier)->Copy(kernel->args, nullptr);
      ASSERT_TRUE(done.ok()) << done.status().ToString();
      EXPECT_TRUE(*(*done)->Query());
      EXPECT_EQ(std::memcmp(pool.span.data(), expected.data(), expected.size()), 0)
          << CopyStrategyName(strategy) << " " << layout.name;
    }
  }
  EXPECT_THAT(cuda_.kernel_kinds, testing::Contains(static_cast<int>(PagedCopyKernelKind::kVector)));
  EXPECT_THAT(cuda_.kernel_kinds, testing::Contains(static_cast<int>(PagedCopyKernelKind::kBulk)));
  cuda_.failures["cudaLaunchKernel"] = cudaErrorLaunchOutOfResources;
  const PlaneArgs plane = {.base = pool.span.data() + kPage, .run_bytes = 64};
  const int64_t block = 0;
  PagedCopyArgs args;
  args.payload = pool.span.data();
  args.planes = &plane, args.num_planes = 1;
  args.blocks = &block, args.num_tokens = 1;
  EXPECT_THAT(Message(device->Run(**device->MakeStream(), args)), HasSubstr("cudaLaunchKernel"));
}

}  // namespace
}  // namespace terrace
