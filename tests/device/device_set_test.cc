#include "lib/device/device_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/device/copier_fixture.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string Text(const Status& status) { return std::string(status.message()); }

PagedKvView ViewOn(std::shared_ptr<Stream> stream) {
  PagedKvView view;
  view.stream = std::move(stream);
  return view;
}

TEST(DeviceSetTest, EachDeviceHasItsCopier) {
  PoolMemory pool(size_t{1} << 20);
  const std::vector<MutableBytes> regions = {pool.bytes()};
  const auto first = SimulatedDevice::Make({.seed = 1, .ordinal = 0});
  const auto second = SimulatedDevice::Make({.seed = 2, .ordinal = 1});
  const auto foreign = SimulatedDevice::Make({.seed = 3, .ordinal = 7});
  const auto host = MakeHostDevice();
  const std::vector<DeviceOptions> devices = {
      {first, 65536, CopyStrategy::kStaged, {}}, {host, 0, {}, {}}, {second, 0, {}, CopyStrategy::kMapped}};
  {
    auto set = DeviceSet::Open(devices, regions);
    ASSERT_TRUE(set.ok()) << set.status().ToString();
    ASSERT_EQ((*set)->copiers().size(), 2u);
    EXPECT_EQ(&(*set)->copiers()[0]->device(), first.get());
    EXPECT_EQ(&(*set)->copiers()[1]->device(), second.get());
    EXPECT_THAT((*set)->warnings(), IsEmpty());
    EXPECT_EQ((*set)->CopierOf(ViewOn(nullptr)).value(), nullptr);
    EXPECT_EQ((*set)->CopierOf(ViewOn(host->MakeStream().value())).value(), nullptr);
    EXPECT_EQ((*set)->CopierOf(ViewOn(MakeHostDevice()->MakeStream().value())).value(), nullptr);
    EXPECT_EQ((*set)->CopierOf(ViewOn(first->EngineStream())).value(), (*set)->copiers()[0].get());
    EXPECT_EQ((*set)->CopierOf(ViewOn(second->EngineStream())).value(), (*set)->copiers()[1].get());
    const auto unknown = (*set)->CopierOf(ViewOn(foreign->EngineStream()));
    EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(Text(unknown.status()), HasSubstr("seed 3 (7)"));

    // The poller tells when a copy is done.
    auto fence = (*set)->copiers()[1]->Fence(CopyDirection::kToHost);
    ASSERT_TRUE(fence.ok());
    std::promise<Status> done;
    (*set)->poller().Add(*fence, [&](const Status& status) { done.set_value(status); });
    auto answer = done.get_future();
    ASSERT_EQ(answer.wait_for(std::chrono::seconds(60)), std::future_status::ready);
    EXPECT_TRUE(answer.get().ok());
  }
  for (const auto& device : {first, second}) {
    EXPECT_EQ(device->counters().registered_bytes, 0u);
    EXPECT_EQ(device->counters().allocated_bytes, 0u);
    EXPECT_EQ(device->counters().copies + device->counters().kernels, 0u);  // simulated: not measured
  }
}

TEST(DeviceSetTest, WithoutDevices) {
  PoolMemory pool(size_t{1} << 20);
  const std::vector<MutableBytes> regions = {pool.bytes()};
  const std::vector<DeviceOptions> hosts = {{MakeHostDevice(), 0, {}, {}}};
  for (const std::span<const DeviceOptions> devices : {std::span<const DeviceOptions>(), std::span(hosts)}) {
    auto set = DeviceSet::Open(devices, regions);
    ASSERT_TRUE(set.ok());
    EXPECT_TRUE((*set)->copiers().empty());
    EXPECT_EQ((*set)->CopierOf(ViewOn(nullptr)).value(), nullptr);
  }
}

TEST(DeviceSetTest, RefusesWhatIsWrong) {
  PoolMemory pool(size_t{1} << 20);
  const std::vector<MutableBytes> regions = {pool.bytes()};
  const auto device = SimulatedDevice::Make();
  const auto open = [&](const std::vector<DeviceOptions>& devices) {
    return DeviceSet::Open(devices, regions).status();
  };
  EXPECT_THAT(Text(open({{device, 0, {}, {}}, {nullptr, 0, {}, {}}})), HasSubstr("devices[1]"));
  EXPECT_THAT(Text(open({{device, 0, {}, {}}, {device, 65536, {}, {}}})),
              AllOf(HasSubstr("devices[1]"), HasSubstr("devices[0] already")));
  EXPECT_THAT(Text(open({{device, 0, {}, CopyStrategy::kStaged}})),
              AllOf(HasSubstr("devices[0]"), HasSubstr("to_device is staged")));
  for (const auto& devices : {std::vector<DeviceOptions>{{nullptr, 0, {}, {}}},
                              std::vector<DeviceOptions>{{device, 0, {}, {}}, {device, 0, {}, {}}}}) {
    EXPECT_EQ(open(devices).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(device->counters().registered_bytes, 0u);
}

TEST(DeviceSetTest, WarningsNameTheDevice) {
  PoolMemory pool(size_t{1} << 20);
  const std::vector<MutableBytes> regions = {pool.bytes()};
  SimulatedDeviceOptions refusing{.seed = 9, .ordinal = 4, .refuses_registration = true};
  const std::vector<DeviceOptions> devices = {{SimulatedDevice::Make(refusing), 0, {}, {}}};
  auto set = DeviceSet::Open(devices, regions);
  ASSERT_TRUE(set.ok());
  EXPECT_THAT((*set)->warnings(), ElementsAre(AllOf(HasSubstr("seed 9 (4)"), HasSubstr("not registered"))));
}

// A simulated device that says it is a CUDA device of some model.
class RenamedDevice : public Device {
 public:
  RenamedDevice(int ordinal, const std::string& name) : properties_(simulated_->properties()) {
    properties_.kind = DeviceKind::kCuda;
    properties_.ordinal = ordinal;
    properties_.name = name;
  }
  const DeviceProperties& properties() const override { return properties_; }
  Result<std::shared_ptr<Stream>> AdoptStream(void* native) override {
    return simulated_->AdoptStream(native);
  }
  Result<std::shared_ptr<Event>> AdoptEvent(void* native) override { return simulated_->AdoptEvent(native); }
  Result<std::shared_ptr<Stream>> MakeStream() override { return simulated_->MakeStream(); }
  Status RegisterHost(MutableBytes memory) override { return simulated_->RegisterHost(memory); }
  void UnregisterHost(MutableBytes memory) override { simulated_->UnregisterHost(memory); }
  Result<std::byte*> MappedAddress(std::byte* host) const override { return simulated_->MappedAddress(host); }
  Result<std::shared_ptr<std::byte>> Allocate(uint64_t bytes) override { return simulated_->Allocate(bytes); }
  Status Copy(Stream& stream, CopyDirection direction, const CopyPiece& piece) override {
    return simulated_->Copy(stream, direction, piece);
  }
  Status CopyBatch(Stream& stream, CopyDirection direction, std::span<const CopyPiece> pieces) override {
    return simulated_->CopyBatch(stream, direction, pieces);
  }
  Status Run(Stream& stream, const PagedCopyArgs& args) override { return simulated_->Run(stream, args); }

 private:
  const std::shared_ptr<SimulatedDevice> simulated_ = SimulatedDevice::Make({.delay_of_256 = 0});
  DeviceProperties properties_;
};

std::vector<double> Speeds(const DeviceCopier& copier) {
  std::vector<double> speeds;
  for (const CalibrationPoint& point : copier.calibration().points())
    speeds.push_back(point.bytes_per_second);
  return speeds;
}

TEST(DeviceSetTest, AModelIsMeasuredOnce) {
  PoolMemory pool(64 << 10);
  const std::vector<MutableBytes> regions = {pool.bytes()};
  const std::vector<DeviceOptions> devices = {{std::make_shared<RenamedDevice>(0, "model A"), 0, {}, {}},
                                              {std::make_shared<RenamedDevice>(1, "model B"), 0, {}, {}},
                                              {std::make_shared<RenamedDevice>(2, "model A"), 0, {}, {}}};
  auto set = DeviceSet::Open(devices, regions);
  ASSERT_TRUE(set.ok()) << set.status().ToString();
  const std::vector<double> first = Speeds(*(*set)->copiers()[0]);
  // On a machine that is busy beyond measure there is nothing to share.
  if (first.empty()) GTEST_SKIP() << "no copy was measured in time";
  EXPECT_EQ(Speeds(*(*set)->copiers()[2]), first);
  EXPECT_NE(Speeds(*(*set)->copiers()[1]), first);
}

TEST(DeviceSetTest, OneDeviceByTwoNamesIsThereTwice) {
  PoolMemory pool(64 << 10);
  const std::vector<MutableBytes> regions = {pool.bytes()};
  const std::vector<DeviceOptions> devices = {{std::make_shared<RenamedDevice>(3, "model A"), 0, {}, {}},
                                              {std::make_shared<RenamedDevice>(3, "model A"), 0, {}, {}}};
  EXPECT_EQ(DeviceSet::Open(devices, regions).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace terrace
