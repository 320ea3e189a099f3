#include "lib/storage/device_use.h"

#include <string>
#include <utility>

#include "lib/base/status_macros.h"
#include "lib/base/wait_until.h"
#include "lib/storage/manager_core.h"

namespace terrace {
namespace {

const char* KindName(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kHost:
      return "host";
    case DeviceKind::kCuda:
      return "cuda";
    case DeviceKind::kSimulated:
      return "simulated";
  }
  return "unknown";
}

std::string NameOf(const Device& device) {
  const DeviceProperties& properties = device.properties();
  return std::string(KindName(properties.kind)) + ":" + std::to_string(properties.ordinal);
}

}  // namespace

DeviceMeters::DeviceMeters(MetricRegistry& metrics, const DeviceSet& devices)
    : in_flight_(metrics.GetGauge("terrace_device_copies_in_flight", "Copies that are enqueued on devices")) {
  for (const auto& copier : devices.copiers()) {
    const std::string name = NameOf(copier->device());
    for (const CopyDirection direction : {CopyDirection::kToHost, CopyDirection::kToDevice}) {
      const MetricLabels labels = {
          {"device", name}, {"direction", direction == CopyDirection::kToHost ? "to_host" : "to_device"}};
      ways_[{copier.get(), direction}] = {
          .copied_bytes = metrics.GetCounter("terrace_device_copied_bytes_total",
                                             "Bytes that copies of devices moved", labels),
          .errors = metrics.GetCounter("terrace_device_copy_errors_total",
                                       "Copies that a device refused or failed", labels)};
    }
    metrics
        .GetGauge("terrace_device_staging_bytes", "Device memory that Open took for staged copies",
                  {{"device", name}})
        ->Set(static_cast<int64_t>(copier->staging_bytes()));
  }
}

const DeviceMeters::Way& DeviceMeters::WayOf(const DeviceCopier& copier, CopyDirection direction) const {
  return ways_.at({&copier, direction});
}

Status ManagerCore::OpenDevices() {
  if (options_.devices.empty()) return OkStatus();
  std::vector<MutableBytes> regions;
  for (const MemoryRegion& region : pool_->regions()) regions.push_back(region.bytes);
  Result<std::unique_ptr<DeviceSet>> opened = DeviceSet::Open(options_.devices, regions);
  if (!opened.ok()) return opened.status().WithContext("StorageOptions.devices");
  device_set_ = *std::move(opened);
  for (const std::string& warning : device_set_->warnings()) LogWarning(warning);
  device_meters_ = std::make_unique<DeviceMeters>(*metrics_, *device_set_);
  return OkStatus();
}

Result<std::shared_ptr<DeviceUse>> ManagerCore::UseDevices() {
  TERRACE_RETURN_IF_ERROR(CheckNotForked());
  {
    std::lock_guard lock(mutex_);
    if (closed_) return FailedPreconditionError("the manager is closed");
    if (!device_set_) return InvalidArgumentError("a stream of a device; StorageOptions.devices has none");
    ++device_uses_;
  }
  return std::make_shared<DeviceUse>(shared_from_this());
}

Status ManagerCore::AwaitDevices(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  const auto are_unused = [&] { return device_uses_ == 0; };
  if (!WaitUntil(drained_, lock, deadline, are_unused)) {
    return DeadlineExceededError(std::to_string(device_uses_) +
                                 " stores and loads have copies on a device that did not end");
  }
  return OkStatus();
}

void ManagerCore::CloseDevices() {
  std::unique_ptr<DeviceSet> devices;  // ends with mutex_ free: what its thread still calls may want it
  std::lock_guard lock(mutex_);
  devices.swap(device_set_);
}

DeviceUse::DeviceUse(std::shared_ptr<ManagerCore> core) : core_(std::move(core)) {}

DeviceUse::~DeviceUse() {
  if (core_->IsForkedChild()) {
    new std::shared_ptr<ManagerCore>(core_);  // the parent's, with a lock that may have been held at the fork
    return;
  }
  std::lock_guard lock(core_->mutex_);
  --core_->device_uses_;
  core_->drained_.notify_all();
}

DeviceSet& DeviceUse::devices() const { return *core_->device_set_; }

void DeviceUse::Await(DeviceCopier& copier, CopyDirection direction, uint64_t bytes,
                      std::shared_ptr<Event> event, std::function<void(const Status&)> done) const {
  const DeviceMeters& meters = *core_->device_meters_;
  meters.in_flight().Add(1);
  devices().poller().Add(std::move(event),
                         [bytes, in_flight = &meters.in_flight(), way = meters.WayOf(copier, direction),
                          done = std::move(done)](const Status& status) {
                           in_flight->Add(-1);
                           if (status.ok()) {
                             way.copied_bytes->Add(bytes);
                           } else {
                             way.errors->Add();
                           }
                           done(status);
                         });
}

void DeviceUse::CountRefused(DeviceCopier& copier, CopyDirection direction) const {
  core_->device_meters_->WayOf(copier, direction).errors->Add();
}

}  // namespace terrace
