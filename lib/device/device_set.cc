#include "lib/device/device_set.h"

#include <utility>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"

namespace terrace {
namespace {

std::string NameOf(const Device& device) {
  const DeviceProperties& properties = device.properties();
  return properties.name + " (" + std::to_string(properties.ordinal) + ")";
}

// Of CUDA two Device objects may stand for one and the same.
bool IsSameDevice(const Device& a, const Device& b) {
  return &a == &b || (a.properties().kind == DeviceKind::kCuda && b.properties().kind == DeviceKind::kCuda &&
                      a.properties().ordinal == b.properties().ordinal);
}

// Whether what was measured on one holds for the other, too.
bool IsSameModel(const DeviceOptions& a, const DeviceOptions& b) {
  const DeviceProperties& left = a.device->properties();
  const DeviceProperties& right = b.device->properties();
  return left.kind == right.kind && left.name == right.name && left.memory_bytes == right.memory_bytes &&
         left.compute_capability == right.compute_capability && a.staging_bytes == b.staging_bytes &&
         a.to_host == b.to_host && a.to_device == b.to_device;
}

}  // namespace

bool IsOnDevice(const PagedKvView& view) {
  return view.stream != nullptr && view.stream->device()->properties().kind != DeviceKind::kHost;
}

Status ValidateDevices(std::span<const DeviceOptions> devices) {
  for (size_t i = 0; i < devices.size(); ++i) {
    const std::string field = "devices[" + std::to_string(i) + "]";
    TERRACE_RETURN_IF_ERROR(ValidateDeviceOptions(devices[i]).WithContext(field));
    for (size_t j = 0; j < i; ++j) {
      if (!IsSameDevice(*devices[i].device, *devices[j].device)) continue;
      return InvalidArgumentError(field + ".device is " + NameOf(*devices[i].device) + ", which is devices[" +
                                  std::to_string(j) + "] already; allowed: each device once");
    }
  }
  return OkStatus();
}

Result<std::unique_ptr<DeviceSet>> DeviceSet::Open(std::span<const DeviceOptions> devices,
                                                   std::span<const MutableBytes> pool) {
  TERRACE_RETURN_IF_ERROR(ValidateDevices(devices));
  auto set = std::make_unique<DeviceSet>();
  std::vector<const DeviceOptions*> opened;  // beside copiers_
  for (const DeviceOptions& device : devices) {
    const DeviceKind kind = device.device->properties().kind;
    if (kind == DeviceKind::kHost) continue;
    CopierOptions options;
    options.device = device;
    options.pool.assign(pool.begin(), pool.end());
    // Simulated time says nothing of any device.
    if (kind == DeviceKind::kSimulated) options.calibration_budget = Duration::zero();
    for (size_t i = 0; i < opened.size() && options.calibration == nullptr; ++i) {
      const CopyCalibration& measured = set->copiers_[i]->calibration();
      if (IsSameModel(*opened[i], device) && !measured.points().empty()) options.calibration = &measured;
    }
    Result<std::unique_ptr<DeviceCopier>> copier = DeviceCopier::Open(std::move(options));
    if (!copier.ok()) return copier.status().WithContext(NameOf(*device.device));
    set->copiers_.push_back(*std::move(copier));
    opened.push_back(&device);
  }
  if (!set->copiers_.empty()) set->poller_ = std::make_unique<EventPoller>();
  return set;
}

Result<DeviceCopier*> DeviceSet::CopierOf(const PagedKvView& view) const {
  if (!IsOnDevice(view)) return nullptr;
  const Device& device = *view.stream->device();
  for (const std::unique_ptr<DeviceCopier>& copier : copiers_) {
    if (IsSameDevice(copier->device(), device)) return copier.get();
  }
  return InvalidArgumentError("PagedKvView.stream is of " + NameOf(device) +
                              "; allowed: null, or of a device of StorageOptions.devices");
}

Result<ViewPlaces::Place> ViewPlaces::PlaceOf(const PagedKvView& view) {
  Place place;
  if (!IsOnDevice(view)) return place;
  TERRACE_CHECK(devices_ != nullptr) << "a view of a device without devices";
  TERRACE_ASSIGN_OR_RETURN(place.copier, devices_->CopierOf(view));
  std::shared_ptr<Event>& event = enqueued_[view.stream.get()];
  if (!event) {
    TERRACE_ASSIGN_OR_RETURN(event, view.stream->Record());
  }
  place.enqueued = event;
  return place;
}

std::vector<std::string> DeviceSet::warnings() const {
  std::vector<std::string> all;
  for (const std::unique_ptr<DeviceCopier>& copier : copiers_) {
    for (const std::string& warning : copier->warnings()) {
      all.push_back(NameOf(copier->device()) + ": " + warning);
    }
  }
  return all;
}

}  // namespace terrace
