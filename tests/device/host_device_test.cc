// HostDevice: everything is done when a call returns; and Event::Wait, which all devices share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/paged_copy_args.h"
#include "terrace/device.h"
#include "tests/device/flag_event.h"

namespace terrace {
namespace {

std::vector<std::byte> Numbers(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

TEST(EventTest, WaitOfADoneEventIsOkEvenAfterItsDeadline) {
  FlagEvent event;
  event.is_done = true;
  EXPECT_TRUE(event.Wait(TimePoint::min()).ok());
  EXPECT_TRUE(event.Wait().ok());
  EXPECT_EQ(event.num_queries, 2u);
}

TEST(EventTest, WaitEndsAtItsDeadlineAndNotBefore) {
  FlagEvent event;
  EXPECT_EQ(event.Wait(TimePoint::min()).code(), StatusCode::kDeadlineExceeded);
  const TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
  EXPECT_EQ(event.Wait(deadline).code(), StatusCode::kDeadlineExceeded);
  EXPECT_GE(std::chrono::steady_clock::now(), deadline);
}

TEST(EventTest, WaitSeesWhatAnotherThreadDoes) {
  for (const bool fails : {false, true}) {
    FlagEvent event;
    std::thread other([&] {
      while (event.num_queries < 3) std::this_thread::yield();
      (fails ? event.fails : event.is_done) = true;
    });
    const Status status = event.Wait();
    other.join();
    EXPECT_EQ(status.code(), fails ? StatusCode::kInternal : StatusCode::kOk);
    EXPECT_GE(event.num_queries, 3u);
  }
}

TEST(CopyStrategyTest, HasNames) {
  EXPECT_STREQ(CopyStrategyName(CopyStrategy::kPlain), "plain");
  EXPECT_STREQ(CopyStrategyName(CopyStrategy::kBatched), "batched");
  EXPECT_STREQ(CopyStrategyName(CopyStrategy::kStaged), "staged");
  EXPECT_STREQ(CopyStrategyName(CopyStrategy::kMapped), "mapped");
}

TEST(HostDeviceTest, CopiesAreDoneWhenTheCallsReturn) {
  const std::shared_ptr<Device> device = MakeHostDevice();
  EXPECT_EQ(device->properties().kind, DeviceKind::kHost);
  EXPECT_TRUE(device->properties().has_kernels);
  EXPECT_GT(device->properties().memory_bytes, 0u);
  const std::shared_ptr<Stream> stream = device->MakeStream().value();
  EXPECT_EQ(stream->device(), device);
  EXPECT_EQ(stream->native_handle(), nullptr);

  const std::vector<std::byte> src = Numbers(1000);
  std::vector<std::byte> dst(1000);
  ASSERT_TRUE(device->Copy(*stream, CopyDirection::kToHost, {dst.data(), src.data(), 400}).ok());
  EXPECT_EQ(std::memcmp(dst.data(), src.data(), 400), 0);
  EXPECT_EQ(dst[400], std::byte{0});
  const std::vector<CopyPiece> pieces = {{dst.data() + 700, src.data() + 700, 300},
                                         {nullptr, nullptr, 0},
                                         {dst.data() + 400, src.data() + 400, 300}};
  ASSERT_TRUE(device->CopyBatch(*stream, CopyDirection::kToDevice, pieces).ok());
  EXPECT_EQ(dst, src);
}

TEST(HostDeviceTest, RunsKernels) {
  const std::shared_ptr<Device> device = MakeHostDevice();
  const std::shared_ptr<Stream> stream = device->MakeStream().value();
  std::vector<std::byte> pages = Numbers(4 * 2 * 16);  // 4 blocks of 2 tokens of 16 bytes
  std::vector<std::byte> payload(3 * 16);
  PlaneArgs plane;
  plane.base = pages.data();
  plane.block_stride = 32;
  plane.token_stride = 16;
  plane.head_stride = 16;
  plane.run_bytes = 16;
  const std::vector<int64_t> blocks = {3, 1};
  PagedCopyArgs args;
  args.payload = payload.data();
  args.planes = &plane;
  args.num_planes = 1;
  args.tokens_per_block = 2;
  args.blocks = blocks.data();
  args.first_slot = 1;
  args.num_tokens = 3;
  ASSERT_TRUE(device->Run(*stream, args).ok());
  EXPECT_EQ(std::memcmp(payload.data(), pages.data() + 3 * 32 + 16, 16), 0);
  EXPECT_EQ(std::memcmp(payload.data() + 16, pages.data() + 32, 32), 0);
}

TEST(HostDeviceTest, EventsAreDone) {
  const std::shared_ptr<Stream> stream = MakeHostDevice()->MakeStream().value();
  const std::shared_ptr<Event> event = stream->Record().value();
  EXPECT_TRUE(event->Query().value());
  EXPECT_TRUE(event->Wait(TimePoint::min()).ok());
  EXPECT_EQ(event->native_handle(), nullptr);
  const std::shared_ptr<Stream> other = MakeHostDevice()->MakeStream().value();
  EXPECT_TRUE(other->WaitFor(*event).ok());
  EXPECT_EQ(other->WaitFor(FlagEvent()).code(), StatusCode::kInvalidArgument);
}

TEST(HostDeviceTest, AdoptsNullHandlesAlone) {
  const std::shared_ptr<Device> device = MakeHostDevice();
  EXPECT_TRUE(device->AdoptStream(nullptr).ok());
  EXPECT_TRUE(device->AdoptEvent(nullptr).value()->Query().value());
  int foreign = 0;
  EXPECT_EQ(device->AdoptStream(&foreign).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(device->AdoptEvent(&foreign).status().code(), StatusCode::kInvalidArgument);
}

TEST(HostDeviceTest, MemoryIsMappedAlignedAndBounded) {
  const std::shared_ptr<Device> device = MakeHostDevice();
  std::vector<std::byte> host(4096);
  EXPECT_TRUE(device->RegisterHost(host).ok());
  EXPECT_EQ(device->MappedAddress(host.data() + 5).value(), host.data() + 5);
  device->UnregisterHost(host);
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{100'000}}) {
    const std::shared_ptr<std::byte> memory = device->Allocate(bytes).value();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 256, 0u);
    std::memset(memory.get(), 1, bytes);
  }
}

}  // namespace
}  // namespace terrace
