// A suite that runs on a SimulatedDevice must notice when an edge of the order is gone: here each switch is
// shown to take away its edge, and no other; and errors are shown to be final.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "kernels/paged_copy_args.h"
#include "tests/support/simulated_device.h"

namespace terrace {
namespace {

constexpr auto kToHost = CopyDirection::kToHost;
constexpr auto kToDevice = CopyDirection::kToDevice;
constexpr size_t kBytes = 4096;
constexpr std::byte kOld{1}, kNew{2}, kLater{3};

struct alignas(4096) Page {
  explicit Page(std::byte value = std::byte{0}) { std::memset(bytes, std::to_integer<int>(value), kBytes); }
  bool IsAll(std::byte value) const {
    for (const std::byte byte : bytes) {
      if (byte != value) return false;
    }
    return true;
  }
  std::byte bytes[kBytes];
};

std::vector<CopyPiece> PiecesOf(Page& dst, const Page& src, size_t num_pieces) {
  std::vector<CopyPiece> pieces;
  const size_t bytes = kBytes / num_pieces;
  for (size_t i = 0; i < num_pieces; ++i) {
    pieces.push_back({dst.bytes + i * bytes, src.bytes + i * bytes, bytes});
  }
  return pieces;
}

struct Findings {
  bool reads_before_compute = false;
  bool reads_after_release = false;
  bool writes_before_ready = false;
  bool is_used_before_copy = false;
  bool slot_is_torn = false;
};

// The engine computes a page, which is stored, and then computes another one into it.
void Store(SimulatedDevice& device, Findings& findings) {
  Page page(kOld), payload;
  ASSERT_TRUE(device.RegisterHost(payload.bytes).ok());
  const auto engine = device.EngineStream();
  const auto copies = device.MakeStream().value();
  device.Enqueue(*engine, [&] { page = Page(kNew); });
  ASSERT_TRUE(copies->WaitFor(*engine->Record().value()).ok());  // before anything tells the direction
  ASSERT_TRUE(device.CopyBatch(*copies, kToHost, PiecesOf(payload, page, 4)).ok());
  ASSERT_TRUE(engine->WaitFor(*copies->Record().value()).ok());
  device.Enqueue(*engine, [&] { page = Page(kLater); });
  device.Resume();
  device.Synchronize();
  for (const std::byte byte : payload.bytes) {
    findings.reads_before_compute |= byte == kOld;
    findings.reads_after_release |= byte == kLater;
  }
  device.UnregisterHost(payload.bytes);
}

// A page that the engine still reads is loaded into, and then read.
void Load(SimulatedDevice& device, Findings& findings) {
  Page page(kOld), payload(kNew);
  ASSERT_TRUE(device.RegisterHost(payload.bytes).ok());
  const auto engine = device.EngineStream();
  const auto copies = device.MakeStream().value();
  device.Enqueue(*engine, [&] { findings.writes_before_ready |= !page.IsAll(kOld); });
  ASSERT_TRUE(copies->WaitFor(*engine->Record().value()).ok());
  ASSERT_TRUE(device.CopyBatch(*copies, kToDevice, PiecesOf(page, payload, 4)).ok());
  ASSERT_TRUE(engine->WaitFor(*copies->Record().value()).ok());
  device.Enqueue(*engine, [&] { findings.is_used_before_copy |= !page.IsAll(kNew); });
  device.Resume();
  device.Synchronize();
  device.UnregisterHost(payload.bytes);
}

// Two pages go through one staging slot: a kernel gathers into it, a copy takes it away.
void Stage(SimulatedDevice& device, Findings& findings) {
  Page first(kOld), second(kNew), slot;
  std::vector<Page> payloads(2);
  ASSERT_TRUE(device.RegisterHost({payloads[0].bytes, 2 * kBytes}).ok());
  ASSERT_TRUE(device.RegisterHost(slot.bytes).ok());
  const auto copies = device.MakeStream().value();
  for (size_t i = 0; i < 2; ++i) {
    PlaneArgs plane;
    plane.base = i == 0 ? first.bytes : second.bytes;
    plane.block_stride = kBytes;
    plane.token_stride = plane.head_stride = plane.run_bytes = kBytes;
    const int64_t block = 0;
    PagedCopyArgs args;
    args.payload = slot.bytes;
    args.planes = &plane;
    args.num_planes = 1;
    args.blocks = &block;
    args.num_tokens = 1;
    ASSERT_TRUE(device.Run(*copies, args).ok());
    ASSERT_TRUE(device.Copy(*copies, kToHost, {payloads[i].bytes, slot.bytes, kBytes}).ok());
  }
  device.Resume();
  device.Synchronize();
  findings.slot_is_torn |= !payloads[0].IsAll(kOld) || !payloads[1].IsAll(kNew);
}

// What is found wrong over all seeds.
Findings FindingsOf(SimulatedDeviceOptions options) {
  Findings findings;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    for (const auto scenario : {Store, Load, Stage}) {
      options.seed = seed;
      options.delay_of_256 = seed % 3 == 0 ? 0 : 128;
      const auto device = SimulatedDevice::Make(options);
      device->Pause();
      scenario(*device, findings);
      EXPECT_EQ(device->counters().unregistered, 0u);
    }
  }
  return findings;
}

struct EdgeCase {
  const char* name;
  bool SimulatedDeviceOptions::*edge;  // null = all edges are there
  bool Findings::*finding;
};

class SimulatedEdgesTest : public testing::TestWithParam<EdgeCase> {};

TEST_P(SimulatedEdgesTest, ASwitchTakesAwayItsEdgeAlone) {
  SimulatedDeviceOptions options;
  if (GetParam().edge != nullptr) options.*GetParam().edge = true;
  const Findings findings = FindingsOf(options);
  for (const auto finding :
       {&Findings::reads_before_compute, &Findings::reads_after_release, &Findings::writes_before_ready,
        &Findings::is_used_before_copy, &Findings::slot_is_torn}) {
    EXPECT_EQ(findings.*finding, finding == GetParam().finding);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Edges, SimulatedEdgesTest,
    testing::Values(EdgeCase{"None", nullptr, nullptr},
                    EdgeCase{"IgnoreWaitsToHost", &SimulatedDeviceOptions::ignore_waits_to_host,
                             &Findings::reads_before_compute},
                    EdgeCase{"EventsLieToHost", &SimulatedDeviceOptions::events_lie_to_host,
                             &Findings::reads_after_release},
                    EdgeCase{"IgnoreWaitsToDevice", &SimulatedDeviceOptions::ignore_waits_to_device,
                             &Findings::writes_before_ready},
                    EdgeCase{"EventsLieToDevice", &SimulatedDeviceOptions::events_lie_to_device,
                             &Findings::is_used_before_copy},
                    EdgeCase{"StreamsAreUnordered", &SimulatedDeviceOptions::streams_are_unordered,
                             &Findings::slot_is_torn}),
    [](const auto& edge) { return edge.param.name; });

TEST(SimulatedSwitchTest, AnEventThatLiesIsDoneBeforeItsCopyBegins) {
  SimulatedDeviceOptions options;
  options.events_lie_to_device = true;
  const auto device = SimulatedDevice::Make(options);
  device->Pause();
  Page page, payload(kNew);
  ASSERT_TRUE(device->RegisterHost(payload.bytes).ok());
  const auto loads = device->MakeStream().value();
  const auto stores = device->MakeStream().value();
  const std::shared_ptr<Event> before = loads->Record().value();
  EXPECT_FALSE(before->Query().value());  // the stream has no direction yet
  ASSERT_TRUE(device->Copy(*loads, kToDevice, {page.bytes, payload.bytes, kBytes}).ok());
  ASSERT_TRUE(device->Copy(*stores, kToHost, {payload.bytes, page.bytes, kBytes}).ok());
  EXPECT_TRUE(before->Query().value());
  EXPECT_TRUE(loads->Record().value()->Wait(TimePoint::min()).ok());
  EXPECT_FALSE(stores->Record().value()->Query().value());
  EXPECT_TRUE(page.IsAll(std::byte{0}));
  device->Resume();
  device->Synchronize();
}

// One operation that moves `src` to `dst`, of the kind `kind`.
enum class FailingKind { kCopy, kBatch, kKernel };

Status EnqueueOne(SimulatedDevice& device, Stream& stream, FailingKind kind, Page& dst, Page& src) {
  if (kind == FailingKind::kCopy) return device.Copy(stream, kToHost, {dst.bytes, src.bytes, kBytes});
  if (kind == FailingKind::kBatch) return device.CopyBatch(stream, kToHost, PiecesOf(dst, src, 8));
  PlaneArgs plane;
  plane.base = src.bytes;
  plane.block_stride = plane.token_stride = plane.head_stride = plane.run_bytes = 512;
  const std::vector<int64_t> blocks = {7, 3, 5, 1, 0, 2, 4, 6};
  PagedCopyArgs args;
  args.payload = dst.bytes;
  args.planes = &plane;
  args.num_planes = 1;
  args.blocks = blocks.data();
  args.num_tokens = 8;
  return device.Run(stream, args);
}

class SimulatedErrorTest : public testing::TestWithParam<FailingKind> {};

TEST_P(SimulatedErrorTest, AnErrorEndsItsStreamAndNothingElse) {
  std::set<std::string> left;  // what the failing operation leaves behind differs
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimulatedDeviceOptions options;
    options.seed = seed;
    const auto device = SimulatedDevice::Make(options);
    device->Pause();
    Page src(kNew);
    std::vector<Page> host(4, Page(kOld));
    ASSERT_TRUE(device->RegisterHost({host[0].bytes, 4 * kBytes}).ok());
    const auto stream = device->MakeStream().value();
    const auto other = device->MakeStream().value();
    auto held = std::make_shared<bool>(false);

    device->FailAfter(2);
    ASSERT_TRUE(EnqueueOne(*device, *stream, GetParam(), host[0], src).ok());
    const std::shared_ptr<Event> before = stream->Record().value();
    ASSERT_TRUE(EnqueueOne(*device, *stream, GetParam(), host[1], src).ok());
    const std::shared_ptr<Event> after = stream->Record().value();
    ASSERT_TRUE(EnqueueOne(*device, *stream, GetParam(), host[2], src).ok());
    device->Enqueue(*stream, [held] { *held = true; });
    const std::shared_ptr<Event> last = stream->Record().value();
    ASSERT_TRUE(other->WaitFor(*last).ok());
    ASSERT_TRUE(EnqueueOne(*device, *other, GetParam(), host[3], src).ok());
    device->Resume();

    EXPECT_TRUE(before->Wait().ok());
    EXPECT_EQ(last->Wait().code(), StatusCode::kInternal);
    EXPECT_EQ(after->Wait().code(), StatusCode::kInternal);
    left.insert(std::string(reinterpret_cast<const char*>(host[1].bytes), kBytes));
    const std::shared_ptr<Event> later = stream->Record().value();
    EXPECT_EQ(later->Query().status().code(), StatusCode::kInternal);
    ASSERT_TRUE(EnqueueOne(*device, *stream, GetParam(), host[2], src).ok());
    device->Enqueue(*stream, [held] { *held = true; });
    device->Synchronize();
    EXPECT_TRUE(host[0].IsAll(kNew));
    EXPECT_TRUE(host[2].IsAll(kOld));
    EXPECT_TRUE(host[3].IsAll(kNew));
    EXPECT_FALSE(*held);
    EXPECT_EQ(held.use_count(), 1);
    EXPECT_TRUE(before->Query().value());
  }
  EXPECT_GT(left.size(), 20u);
}

INSTANTIATE_TEST_SUITE_P(Kinds, SimulatedErrorTest,
                         testing::Values(FailingKind::kCopy, FailingKind::kBatch, FailingKind::kKernel),
                         [](const auto& kind) {
                           return kind.param == FailingKind::kCopy    ? "Copy"
                                  : kind.param == FailingKind::kBatch ? "Batch"
                                                                      : "Kernel";
                         });

TEST(SimulatedSwitchTest, RefusedEventsAreNotRecorded) {
  const auto device = SimulatedDevice::Make();
  const auto stream = device->MakeStream().value();
  device->RefuseRecords(2);
  EXPECT_EQ(stream->Record().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(stream->Record().status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(stream->Record().value()->Wait().ok());
}

// The thread sanitizer must leave suites alone that show what they would notice.
TEST(SimulatedSwitchTest, WhatAnEventThatLiesAllowsIsNotReported) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SimulatedDeviceOptions options;
    options.seed = seed;
    options.events_lie_to_host = true;
    const auto device = SimulatedDevice::Make(options);
    Page src(kNew), host(kOld);
    ASSERT_TRUE(device->RegisterHost(host.bytes).ok());
    const auto stream = device->MakeStream().value();
    for (const FailingKind kind : {FailingKind::kCopy, FailingKind::kBatch, FailingKind::kKernel}) {
      ASSERT_TRUE(EnqueueOne(*device, *stream, kind, host, src).ok());
      ASSERT_TRUE(stream->Record().value()->Wait().ok());
      for (const std::byte byte : host.bytes) EXPECT_TRUE(byte == kOld || byte == kNew);
    }
    device->Synchronize();
    EXPECT_TRUE(host.IsAll(kNew));
  }
}

TEST(SimulatedSwitchTest, RefusedCallsEnqueueNothing) {
  const auto device = SimulatedDevice::Make();
  Page src(kNew), host(kOld);
  ASSERT_TRUE(device->RegisterHost(host.bytes).ok());
  const auto stream = device->MakeStream().value();
  const auto copy = [&](FailingKind kind) { return EnqueueOne(*device, *stream, kind, host, src).code(); };
  device->RefuseAfter(2);
  EXPECT_EQ(copy(FailingKind::kCopy), StatusCode::kOk);
  device->Synchronize();
  host = Page(kOld);
  for (const FailingKind kind : {FailingKind::kCopy, FailingKind::kBatch, FailingKind::kKernel}) {
    EXPECT_EQ(copy(kind), StatusCode::kUnavailable);
  }
  EXPECT_TRUE(stream->Record().value()->Wait().ok());
  EXPECT_TRUE(host.IsAll(kOld));
  device->RefuseAfter(0);
  EXPECT_EQ(copy(FailingKind::kBatch), StatusCode::kOk);
  EXPECT_TRUE(stream->Record().value()->Wait().ok());
  EXPECT_TRUE(host.IsAll(kNew));
  device->FailAfter(1);
  device->FailAfter(0);
  EXPECT_EQ(copy(FailingKind::kCopy), StatusCode::kOk);
  EXPECT_TRUE(stream->Record().value()->Wait().ok());
}

}  // namespace
}  // namespace terrace
