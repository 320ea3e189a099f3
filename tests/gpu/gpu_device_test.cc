// CudaDevice's calls on a device: properties, streams and events of the engine, pinned memory, plain and
// batched copies, and that threads are left as they came.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/gpu_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class GpuDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    device_ = OpenDevice();
    ASSERT_NE(device_, nullptr);
  }
  std::shared_ptr<CudaDevice> device_;
};

// Holds a stream until it is released.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    EXPECT_EQ(cudaLaunchHostFunc(stream, &Gate::Wait, this), cudaSuccess);
  }
  ~Gate() { Open(); }
  void Open() {
    if (!is_open_.exchange(true)) open_.set_value();
  }

 private:
  static void Wait(void* self) { static_cast<Gate*>(self)->opened_.wait_for(std::chrono::seconds(60)); }
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
  std::atomic<bool> is_open_{false};
};

TEST_F(GpuDeviceTest, Properties) {
  const DeviceProperties& properties = device_->properties();
  EXPECT_EQ(properties.kind, DeviceKind::kCuda);
  EXPECT_EQ(properties.ordinal, 0);
  EXPECT_FALSE(properties.name.empty());
  EXPECT_GT(properties.memory_bytes, uint64_t{1} << 30);
  EXPECT_GE(properties.compute_capability, 75u);
  EXPECT_TRUE(properties.has_kernels);
  EXPECT_EQ(device_->has_bulk_copy(), properties.compute_capability >= 90);
  EXPECT_GE(properties.numa_node, -1);
  std::printf("device: %s, sm_%u, %.1f GiB, NUMA node %d, batched copies: %d, bulk engine: %d\n",
              properties.name.c_str(), properties.compute_capability,
              static_cast<double>(properties.memory_bytes) / (1u << 30), properties.numa_node,
              properties.has_batched_copy, device_->has_bulk_copy());
}

TEST_F(GpuDeviceTest, ThereIsNoDeviceOfThisNumber) {
  for (const int ordinal : {-1, CountCudaDevices()}) {
    const auto device = MakeCudaDevice(ordinal);
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(std::string(device.status().message()), HasSubstr("counted from 0"));
  }
}

TEST_F(GpuDeviceTest, WaitsForTheEnginesStreamAndEvent) {
  EngineStream engine;
  const auto adopted = device_->AdoptStream(engine.get());
  ASSERT_TRUE(adopted.ok()) << adopted.status().ToString();
  EXPECT_EQ((*adopted)->native_handle(), engine.get());
  auto own = device_->MakeStream();
  ASSERT_TRUE(own.ok());
  PinnedMemory pinned(device_, 1 << 20);
  auto memory = *device_->Allocate(1 << 20);
  Gate gate(engine.get());
  ASSERT_EQ(cudaMemsetAsync(memory.get(), 0x3c, 1 << 20, engine.get()), cudaSuccess);
  cudaEvent_t native = nullptr;
  ASSERT_EQ(cudaEventCreate(&native), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(native, engine.get()), cudaSuccess);
  const auto computed = device_->AdoptEvent(native);
  ASSERT_TRUE(computed.ok());
  EXPECT_EQ((*computed)->native_handle(), native);

  ASSERT_TRUE((*own)->WaitFor(**computed).ok());
  ASSERT_TRUE(device_->Copy(**own, CopyDirection::kToHost, {pinned.data(), memory.get(), 1 << 20}).ok());
  const auto copied = *(*own)->Record();
  const auto asked = copied->Query();
  ASSERT_TRUE(asked.ok());
  EXPECT_FALSE(*asked) << "the copy ran ahead of the engine";
  EXPECT_EQ(pinned.data()[7], kUntouched);
  EXPECT_EQ(copied->Wait(std::chrono::steady_clock::now()).code(), StatusCode::kDeadlineExceeded);
  gate.Open();
  ASSERT_TRUE(copied->Wait(Soon()).ok());
  for (size_t i = 0; i < size_t{1} << 20; i += 4095) ASSERT_EQ(pinned.data()[i], std::byte{0x3c});
  ASSERT_EQ(cudaEventDestroy(native), cudaSuccess) << "adopted events stay the engine's";
}

TEST_F(GpuDeviceTest, TheEnginesStreamWaitsForACopy) {
  EngineStream engine;
  const auto adopted = *device_->AdoptStream(engine.get());
  const auto own = *device_->MakeStream();
  auto* native = static_cast<cudaStream_t>(own->native_handle());
  Gate gate(native);
  const auto loaded = *own->Record();
  ASSERT_TRUE(adopted->WaitFor(*loaded).ok());
  const auto after = *adopted->Record();
  EXPECT_FALSE(*after->Query());
  gate.Open();
  EXPECT_TRUE(after->Wait(Soon()).ok());
}

TEST_F(GpuDeviceTest, EventsOfOtherDevicesAreRefused) {
  const auto own = *device_->MakeStream();
  const auto host = MakeHostDevice();
  const auto host_stream = *host->MakeStream();
  EXPECT_EQ(own->WaitFor(**host_stream->Record()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(device_->Copy(*host_stream, CopyDirection::kToHost, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(device_->AdoptEvent(nullptr).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(GpuDeviceTest, TheLegacyDefaultStream) {
  const auto legacy = device_->AdoptStream(nullptr);
  ASSERT_TRUE(legacy.ok());
  PinnedMemory pinned(device_, 8192);
  auto memory = *device_->Allocate(8192);
  std::vector<CopyPiece> pieces;
  for (size_t i = 0; i < 8; ++i) pieces.push_back({memory.get() + i * 1024, pinned.data() + i * 1024, 1024});
  ASSERT_TRUE(device_->CopyBatch(**legacy, CopyDirection::kToDevice, pieces).ok()) << "as single copies";
  std::vector<std::byte> back(8192);
  ASSERT_TRUE(device_->Copy(**legacy, CopyDirection::kToHost, {back.data(), memory.get(), back.size()}).ok());
  WaitFor(**legacy);
  EXPECT_EQ(std::memcmp(back.data(), pinned.data(), back.size()), 0);
}

TEST_F(GpuDeviceTest, AStreamThatIsCapturedIsRefused) {
  EngineStream engine;
  const auto adopted = *device_->AdoptStream(engine.get());
  const auto own = *device_->MakeStream();
  const auto event = *own->Record();
  ASSERT_EQ(cudaStreamBeginCapture(engine.get(), cudaStreamCaptureModeRelaxed), cudaSuccess);
  EXPECT_EQ(adopted->Record().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(adopted->WaitFor(*event).code(), StatusCode::kFailedPrecondition);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(engine.get(), &graph), cudaSuccess) << "the capture is still good";
  if (graph != nullptr) cudaGraphDestroy(graph);
  EXPECT_TRUE(adopted->Record().ok());
}

TEST_F(GpuDeviceTest, BatchesOfEverySize) {
  const auto stream = *device_->MakeStream();
  std::mt19937_64 random(3);
  for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{100}, size_t{9000}}) {
    const size_t room = 2048;
    PinnedMemory pinned(device_, count * room + 4096);
    auto memory = *device_->Allocate(count * room + 1);
    std::vector<std::byte> noise(pinned.bytes().size());
    FillRandom(noise, random);
    std::memcpy(pinned.data(), noise.data(), noise.size());
    std::vector<CopyPiece> to_device, to_host;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t bytes = random() % 5 == 0 ? 0 : 1 + random() % room;
      to_device.push_back({memory.get() + i * room, pinned.data() + i * room, bytes});
    }
    ASSERT_TRUE(device_->CopyBatch(*stream, CopyDirection::kToDevice, to_device).ok());
    WaitFor(*stream);
    std::memset(pinned.data(), 0, pinned.bytes().size());
    for (const CopyPiece& piece : to_device) {
      to_host.push_back({const_cast<std::byte*>(piece.src), piece.dst, piece.bytes});
    }
    ASSERT_TRUE(device_->CopyBatch(*stream, CopyDirection::kToHost, to_host).ok());
    WaitFor(*stream);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(std::memcmp(pinned.data() + i * room, noise.data() + i * room, to_host[i].bytes), 0) << i;
      ASSERT_EQ(pinned.data()[i * room + to_host[i].bytes], std::byte{0}) << i;
    }
  }
}

TEST_F(GpuDeviceTest, RegisteredMemoryIsMappedAndUnregisteredIsNot) {
  HostMemory host(1 << 20);
  EXPECT_EQ(device_->MappedAddress(host.data()).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(device_->RegisterHost(host.bytes()).ok());
  const auto mapped = device_->MappedAddress(host.data() + 12345);
  ASSERT_TRUE(mapped.ok());
  const auto first = device_->MappedAddress(host.data());
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*mapped - *first, 12345);
  EXPECT_FALSE(device_->RegisterHost(host.bytes()).ok());
  device_->UnregisterHost(host.bytes());
  EXPECT_EQ(device_->MappedAddress(host.data()).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(device_->RegisterHost({host.data() + 1, 4096}).code(), StatusCode::kInvalidArgument);
}

TEST_F(GpuDeviceTest, MemoryThatIsRegisteredForAnotherDeviceIsShared) {
  const auto other = OpenDevice();
  HostMemory host(1 << 20);
  ASSERT_TRUE(device_->RegisterHost(host.bytes()).ok());
  ASSERT_TRUE(other->RegisterHost(host.bytes()).ok());
  EXPECT_TRUE(other->MappedAddress(host.data()).ok());
  other->UnregisterHost(host.bytes());
  EXPECT_TRUE(device_->MappedAddress(host.data()).ok()) << "the first one's registration stays";
  device_->UnregisterHost(host.bytes());
}

TEST_F(GpuDeviceTest, RegistersFromManyThreads) {
  std::vector<std::unique_ptr<HostMemory>> regions;
  for (int i = 0; i < 8; ++i) regions.push_back(std::make_unique<HostMemory>(8 << 20));
  std::vector<std::thread> threads;
  for (const auto& region : regions) {
    threads.emplace_back([&] { EXPECT_TRUE(device_->RegisterHost(region->bytes()).ok()); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& region : regions) device_->UnregisterHost(region->bytes());
}

TEST_F(GpuDeviceTest, AllocationsAreAlignedAndMoreThanThereIsIsRefused) {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{1000}, uint64_t{1} << 20}) {
    const auto memory = device_->Allocate(bytes);
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->get()) % 256, 0u);
  }
  const auto memory = device_->Allocate(2 * device_->properties().memory_bytes);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.status().message()), HasSubstr("cudaErrorMemoryAllocation (2)"));
}

TEST_F(GpuDeviceTest, OutlivesNothingThatItMade) {
  auto stream = *device_->MakeStream();
  auto memory = *device_->Allocate(4096);
  auto event = *stream->Record();
  device_.reset();
  EXPECT_TRUE(event->Wait(Soon()).ok());
  EXPECT_TRUE(stream->Record().ok()) << "a stream keeps its device";
  stream.reset();
  EXPECT_TRUE(event->Wait(Soon()).ok());
  memory.reset();
  event.reset();
}

TEST_F(GpuDeviceTest, AThreadWithoutContextIsLeftWithout) {
  // cudaFree on a thread would make one current; what a thread has is told by the driver alone.
  void* get_current = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  ASSERT_EQ(
      cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &get_current, 12000, cudaEnableDefault, &found),
      cudaSuccess);
  const auto current = [&] {
    void* context = nullptr;
    EXPECT_EQ(reinterpret_cast<int (*)(void**)>(get_current)(&context), 0);
    return context;
  };
  std::thread([&] {
    if (current() != nullptr) return;  // this driver gives threads one
    const auto stream = *device_->MakeStream();
    EXPECT_EQ(current(), nullptr);
    const auto memory = *device_->Allocate(4096);
    EXPECT_EQ(current(), nullptr);
    WaitFor(*stream);
    EXPECT_EQ(current(), nullptr);
  }).join();
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  void* const mine = current();
  ASSERT_NE(mine, nullptr);
  WaitFor(**device_->MakeStream());
  EXPECT_EQ(current(), mine);
}

TEST_F(GpuDeviceTest, CallsFromManyThreads) {
  const auto stream = *device_->MakeStream();
  PinnedMemory pinned(device_, 8 * 4096);
  auto memory = *device_->Allocate(8 * 4096);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 200; ++round) {
        const std::byte value{static_cast<uint8_t>(16 * t + round % 16)};
        std::memset(pinned.data() + t * 4096, static_cast<int>(value), 4096);
        ASSERT_TRUE(device_
                        ->Copy(*stream, CopyDirection::kToDevice,
                               {memory.get() + t * 4096, pinned.data() + t * 4096, 4096})
                        .ok());
        WaitFor(*stream);
        std::memset(pinned.data() + t * 4096, 0, 4096);
        ASSERT_TRUE(device_
                        ->Copy(*stream, CopyDirection::kToHost,
                               {pinned.data() + t * 4096, memory.get() + t * 4096, 4096})
                        .ok());
        WaitFor(*stream);
        ASSERT_EQ(pinned.data()[t * 4096 + 77], value);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace terrace
