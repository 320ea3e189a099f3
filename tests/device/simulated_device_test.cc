// What a test may rely on in a SimulatedDevice: the orders that it keeps and those that it does not, its
// errors, its memory. Between Pause and Resume everything is enqueued before the first step: a seed is a
// schedule.
#include "tests/support/simulated_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/host_launcher.h"
#include "kernels/paged_copy_args.h"
#include "tests/device/flag_event.h"
#include "tests/support/eventually.h"

namespace terrace {
namespace {

constexpr auto kToHost = CopyDirection::kToHost;
constexpr auto kToDevice = CopyDirection::kToDevice;

std::shared_ptr<SimulatedDevice> MakePaused(uint64_t seed, uint32_t delay = 64) {
  SimulatedDeviceOptions options;
  options.seed = seed;
  options.delay_of_256 = delay;
  auto device = SimulatedDevice::Make(options);
  device->Pause();
  return device;
}

void RunAll(SimulatedDevice& device) {
  device.Resume();
  device.Synchronize();
}

std::vector<std::byte> Filled(size_t size, int value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

struct alignas(4096) Page {
  std::byte bytes[4096] = {};
};

// Three streams with five pieces of work each; what ran, in order.
std::string OrderOf(uint64_t seed) {
  const auto device = MakePaused(seed);
  std::string order;
  std::vector<std::shared_ptr<Stream>> streams = {device->EngineStream(), device->EngineStream(),
                                                  device->MakeStream().value()};
  for (char i = 0; i < 5; ++i) {
    for (size_t s = 0; s < streams.size(); ++s) {
      device->Enqueue(*streams[s], [&order, s, i] { order += static_cast<char>("aAn"[s] + i); });
    }
  }
  RunAll(*device);
  return order;
}

std::string Only(const std::string& order, const std::string& letters) {
  std::string only;
  for (const char letter : order) {
    if (letters.find(letter) != std::string::npos) only += letter;
  }
  return only;
}

TEST(SimulatedDeviceTest, StreamsKeepTheirOrderAndRunAheadOfEachOther) {
  std::set<std::string> orders;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const std::string order = OrderOf(seed);
    EXPECT_EQ(order.size(), 15u);
    for (const char* stream : {"abcde", "ABCDE", "nopqr"}) EXPECT_EQ(Only(order, stream), stream) << order;
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 290u);
}

TEST(SimulatedDeviceTest, ASeedIsAnOrder) {
  for (uint64_t seed = 1; seed <= 20; ++seed) EXPECT_EQ(OrderOf(seed), OrderOf(seed));
}

TEST(SimulatedDeviceTest, EventsOrderStreams) {
  int num_unordered = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    for (const bool waits : {true, false}) {
      const auto device = MakePaused(seed, seed % 2 == 0 ? 0 : 250);
      const auto first = device->EngineStream();
      const auto second = device->MakeStream().value();
      std::string order;
      device->Enqueue(*first, [&order] { order += 'a'; });
      const std::shared_ptr<Event> event = first->Record().value();
      device->Enqueue(*first, [&order] { order += 'x'; });
      const Status status = waits ? second->WaitFor(*event) : OkStatus();
      ASSERT_TRUE(status.ok());
      device->Enqueue(*second, [&order] { order += 'b'; });
      EXPECT_FALSE(event->Query().value());
      RunAll(*device);
      EXPECT_TRUE(event->Query().value());
      const bool is_ordered = Only(order, "ab") == "ab";
      EXPECT_TRUE(is_ordered || !waits) << "seed " << seed;
      num_unordered += is_ordered ? 0 : 1;
    }
  }
  EXPECT_GT(num_unordered, 20);
}

TEST(SimulatedDeviceTest, EventsOrderDevices) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto slow = MakePaused(seed);
    const auto quick = MakePaused(seed + 1000);
    std::atomic<bool> is_computed{false};
    bool was_computed = false;
    const auto first = slow->EngineStream();
    const auto second = quick->MakeStream().value();
    slow->Enqueue(*first, [&] { is_computed = true; });
    const std::shared_ptr<Event> event = first->Record().value();
    ASSERT_TRUE(second->WaitFor(*event).ok());
    quick->Enqueue(*second, [&] { was_computed = is_computed; });
    const std::shared_ptr<Event> end = second->Record().value();
    quick->Resume();
    EXPECT_FALSE(end->Query().value());
    slow->Resume();
    ASSERT_TRUE(end->Wait().ok());
    EXPECT_TRUE(was_computed);
  }
}

// All pieces of a batch go to one byte: the last one that was copied is seen in it.
TEST(SimulatedDeviceTest, PiecesOfABatchComeInAnyOrderWithOtherWorkBetween) {
  std::set<int> last_pieces, seen_between;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const auto device = MakePaused(seed);
    Page host;
    ASSERT_TRUE(device->RegisterHost(host.bytes).ok());
    const std::vector<std::byte> src = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
    std::vector<CopyPiece> pieces;
    for (size_t i = 0; i < 4; ++i) {
      pieces.push_back({host.bytes, &src[i], 1});
      pieces.push_back({host.bytes + 1 + i, &src[i], 1});
    }
    const auto stream = device->MakeStream().value();
    ASSERT_TRUE(device->CopyBatch(*stream, kToHost, pieces).ok());
    pieces.clear();  // the arguments may go
    int num_between = 0;
    device->Enqueue(*device->EngineStream(), [&] {
      for (size_t i = 1; i <= 4; ++i) num_between += host.bytes[i] != std::byte{0};
    });
    RunAll(*device);
    EXPECT_EQ(std::memcmp(host.bytes + 1, src.data(), 4), 0);
    last_pieces.insert(std::to_integer<int>(host.bytes[0]));
    seen_between.insert(num_between);
    const SimulatedDevice::Counters counters = device->counters();
    EXPECT_EQ(counters.batches, 1u);
    EXPECT_EQ(counters.pieces, 8u);
    EXPECT_EQ(counters.copied_bytes, 8u);
  }
  EXPECT_EQ(last_pieces, (std::set<int>{1, 2, 3, 4}));
  EXPECT_EQ(seen_between, (std::set<int>{0, 1, 2, 3, 4}));
}

// 4 blocks of 4 tokens with 2 heads of 24 bytes.
struct PagedMemory {
  PagedMemory() : pages(4 * 4 * 48), payload(9 * 48) {
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::byte>(i % 251 + 1);
    plane.base = pages.data();
    plane.block_stride = 4 * 48;
    plane.token_stride = 24;
    plane.head_stride = 4 * 24;
    plane.num_heads = 2;
    plane.run_bytes = 24;
  }
  PagedCopyArgs Args(CopyDirection direction) {
    PagedCopyArgs args;
    args.direction = direction;
    args.payload = payload.data();
    args.planes = &plane;
    args.num_planes = 1;
    args.tokens_per_block = 4;
    args.blocks = blocks.data();
    args.first_slot = 1;
    args.num_tokens = 9;
    return args;
  }
  std::vector<std::byte> pages, payload;
  std::vector<int64_t> blocks = {2, 0, 3};
  PlaneArgs plane;
};

TEST(SimulatedDeviceTest, KernelsDoWhatTheHostDoes) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    for (const CopyDirection direction : {kToHost, kToDevice}) {
      PagedMemory expected, actual;
      for (PagedMemory* memory : {&expected, &actual}) memory->payload = Filled(9 * 48, 77);
      RunOnHost(expected.Args(direction));
      const auto device = MakePaused(seed);
      const auto stream = device->MakeStream().value();
      const PlaneArgs plane = actual.plane;
      ASSERT_TRUE(device->Run(*stream, actual.Args(direction)).ok());
      actual.plane = {};  // the arguments may go
      actual.blocks.assign(3, -5);
      RunAll(*device);
      actual.plane = plane;
      EXPECT_EQ(actual.pages, expected.pages);
      EXPECT_EQ(actual.payload, expected.payload);
      EXPECT_EQ(device->counters().kernels, 1u);
      EXPECT_EQ(device->counters().copied_bytes, 9u * 48);
    }
  }
}

TEST(SimulatedDeviceTest, NothingRunsWhilePaused) {
  const auto device = SimulatedDevice::Make();
  const auto stream = device->EngineStream();
  int num_done = 0;
  device->Enqueue(*stream, [&] { ++num_done; });
  device->Synchronize();
  EXPECT_EQ(num_done, 1);
  device->Pause();
  device->Enqueue(*stream, [&] { ++num_done; });
  const std::shared_ptr<Event> event = stream->Record().value();
  EXPECT_FALSE(event->Query().value());
  EXPECT_EQ(event->Wait(TimePoint::min()).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(num_done, 1);
  device->Resume();
  EXPECT_TRUE(event->Wait().ok());
  EXPECT_EQ(num_done, 2);
}

TEST(SimulatedDeviceTest, PropertiesAreTheOptions) {
  SimulatedDeviceOptions options;
  options.ordinal = 3;
  options.has_kernels = false;
  options.has_batched_copy = false;
  const auto device = SimulatedDevice::Make(options);
  EXPECT_EQ(device->properties().kind, DeviceKind::kSimulated);
  EXPECT_EQ(device->properties().ordinal, 3);
  EXPECT_FALSE(device->properties().has_kernels);
  EXPECT_FALSE(device->properties().has_batched_copy);
  PagedMemory memory;
  const Status status = device->Run(*device->MakeStream().value(), memory.Args(kToHost));
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
}

TEST(SimulatedDeviceTest, AdoptedStreamsAreTheEnginesOwn) {
  const auto device = MakePaused(5);
  const auto engine = device->EngineStream();
  const std::shared_ptr<Stream> adopted = device->AdoptStream(engine->native_handle()).value();
  EXPECT_EQ(adopted->native_handle(), engine->native_handle());
  EXPECT_EQ(adopted->device(), device);
  std::string order;
  for (int i = 0; i < 6; ++i) {
    device->Enqueue(i % 2 == 0 ? *engine : *adopted, [&order, i] { order += std::to_string(i); });
  }
  RunAll(*device);
  EXPECT_EQ(order, "012345");

  const auto null_stream = device->AdoptStream(nullptr).value();
  EXPECT_EQ(null_stream->native_handle(), device->AdoptStream(nullptr).value()->native_handle());
  int foreign = 0;
  EXPECT_EQ(device->AdoptStream(&foreign).status().code(), StatusCode::kInvalidArgument);
  const auto other = SimulatedDevice::Make();
  EXPECT_EQ(other->AdoptStream(engine->native_handle()).status().code(), StatusCode::kInvalidArgument);
}

TEST(SimulatedDeviceTest, AdoptedEventsAreTheEnginesOwn) {
  const auto device = MakePaused(6);
  std::shared_ptr<Event> event = device->EngineStream()->Record().value();
  const std::shared_ptr<Event> adopted = device->AdoptEvent(event->native_handle()).value();
  EXPECT_FALSE(adopted->Query().value());
  RunAll(*device);
  EXPECT_TRUE(adopted->Query().value());
  EXPECT_EQ(adopted->native_handle(), event->native_handle());
  int foreign = 0;
  EXPECT_EQ(device->AdoptEvent(&foreign).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(device->AdoptEvent(nullptr).status().code(), StatusCode::kInvalidArgument);
}

TEST(SimulatedDeviceTest, StreamsAndEventsOfOthersAreRefused) {
  const auto device = SimulatedDevice::Make();
  const auto other = SimulatedDevice::Make();
  const auto stream = other->MakeStream().value();
  std::byte bytes[2] = {};
  PagedMemory memory;
  EXPECT_EQ(device->Copy(*stream, kToHost, {bytes, bytes + 1, 1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(device->CopyBatch(*stream, kToHost, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(device->Run(*stream, memory.Args(kToHost)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(stream->WaitFor(FlagEvent()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(other->Copy(*stream, kToHost, {nullptr, bytes, 1}).code(), StatusCode::kInvalidArgument);
}

TEST(SimulatedDeviceTest, HostMemoryIsRegisteredByWholePagesOnce) {
  const auto device = SimulatedDevice::Make();
  std::vector<Page> pages(4);
  const MutableBytes memory(pages[0].bytes, 4 * 4096);
  EXPECT_EQ(device->RegisterHost(memory.subspan(1, 4096)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(device->RegisterHost(memory.first(100)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(device->MappedAddress(memory.data()).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(device->RegisterHost(memory.subspan(4096, 4096)).ok());
  EXPECT_EQ(device->RegisterHost(memory).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(device->RegisterHost(memory.subspan(4096)).code(), StatusCode::kAlreadyExists);
  EXPECT_TRUE(device->RegisterHost(memory.first(4096)).ok());
  EXPECT_EQ(device->counters().registered_bytes, 8192u);
  EXPECT_EQ(device->MappedAddress(memory.data() + 8191).value(), memory.data() + 8191);
  EXPECT_FALSE(device->MappedAddress(memory.data() + 8192).ok());
  device->UnregisterHost(memory.subspan(4096, 4096));
  EXPECT_EQ(device->counters().registered_bytes, 4096u);
  EXPECT_FALSE(device->MappedAddress(memory.data() + 4096).ok());

  SimulatedDeviceOptions refusing;
  refusing.refuses_registration = true;
  EXPECT_EQ(SimulatedDevice::Make(refusing)->RegisterHost(memory).code(), StatusCode::kUnavailable);
}

TEST(SimulatedDeviceTest, CopiesOfUnregisteredMemoryAreCounted) {
  const auto device = SimulatedDevice::Make();
  std::vector<Page> pages(2);
  const auto stream = device->MakeStream().value();
  std::byte engine[100] = {};
  const auto num_wrong = [&](CopyDirection direction, const CopyPiece& piece) {
    const uint64_t before = device->counters().unregistered;
    EXPECT_TRUE(device->Copy(*stream, direction, piece).ok());
    device->Synchronize();
    return device->counters().unregistered - before;
  };
  ASSERT_TRUE(device->RegisterHost(pages[0].bytes).ok());
  ASSERT_TRUE(device->RegisterHost(pages[1].bytes).ok());
  EXPECT_EQ(num_wrong(kToHost, {pages[0].bytes + 4000, engine, 96}), 0u);
  EXPECT_EQ(num_wrong(kToHost, {pages[0].bytes + 4000, engine, 97}), 1u);  // across two registrations
  EXPECT_EQ(num_wrong(kToDevice, {engine, pages[1].bytes, 100}), 0u);
  device->UnregisterHost(pages[1].bytes);
  EXPECT_EQ(num_wrong(kToDevice, {engine, pages[1].bytes, 100}), 1u);
  const std::shared_ptr<std::byte> staging = device->Allocate(100).value();
  EXPECT_EQ(num_wrong(kToHost, {staging.get(), engine, 100}), 0u);
}

TEST(SimulatedDeviceTest, AllocationsAreAlignedAndBounded) {
  SimulatedDeviceOptions options;
  options.memory_bytes = 1000;
  const auto device = SimulatedDevice::Make(options);
  std::shared_ptr<std::byte> first = device->Allocate(600).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.get()) % 256, 0u);
  EXPECT_EQ(device->counters().allocated_bytes, 600u);
  EXPECT_EQ(device->Allocate(401).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(device->Allocate(UINT64_MAX).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(device->Allocate(400).ok());
  first.reset();
  EXPECT_EQ(device->counters().allocated_bytes, 0u);
  EXPECT_TRUE(device->Allocate(1000).ok());
}

TEST(SimulatedDeviceTest, WhatWasEnqueuedIsDoneWhenTheDeviceGoes) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    int num_done = 0;
    std::shared_ptr<Event> event;
    {
      const auto device = MakePaused(seed);
      const auto stream = device->MakeStream().value();
      for (int i = 0; i < 10; ++i) device->Enqueue(*stream, [&] { ++num_done; });
      event = stream->Record().value();
    }
    EXPECT_EQ(num_done, 10);
    EXPECT_TRUE(event->Query().value());
    EXPECT_EQ(event->native_handle(), nullptr);
  }
}

TEST(SimulatedDeviceTest, WorkMayHoldItsDevicesLastReference) {
  std::atomic<int> num_done{0};
  std::shared_ptr<Event> event;
  {
    const auto device = MakePaused(9);
    const std::shared_ptr<Stream> stream = device->EngineStream();
    device->Enqueue(*stream, [&num_done, stream] { ++num_done; });
    device->Enqueue(*device->EngineStream(), [&num_done] { ++num_done; });
    event = stream->Record().value();
    device->Resume();
  }
  EXPECT_TRUE(event->Wait().ok());
  EXPECT_TRUE(Eventually([&] { return num_done == 2; }));
}

}  // namespace
}  // namespace terrace
