// HostDevice: the process's memory as a device, for engines that compute on the CPU. Nothing is ever pending:
// what is enqueued is done when the call returns.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "kernels/host_launcher.h"
#include "terrace/device.h"

namespace terrace {
namespace {

constexpr std::align_val_t kAllocationAlignment{256};

class HostEvent final : public Event {
 public:
  Result<bool> Query() const override { return true; }
  void* native_handle() const override { return nullptr; }
};

class HostStream final : public Stream {
 public:
  explicit HostStream(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  const std::shared_ptr<Device>& device() const override { return device_; }
  Result<std::shared_ptr<Event>> Record() override {
    return std::shared_ptr<Event>(std::make_shared<HostEvent>());
  }
  Status WaitFor(const Event& event) override {
    if (dynamic_cast<const HostEvent*>(&event) != nullptr) return OkStatus();
    return InvalidArgumentError("event: of another kind of device, allowed: a HostDevice's");
  }
  void* native_handle() const override { return nullptr; }

 private:
  const std::shared_ptr<Device> device_;
};

class HostDevice final : public Device {
 public:
  HostDevice() {
    properties_.kind = DeviceKind::kHost;
    properties_.name = "host";
    properties_.has_kernels = true;
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long page_bytes = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page_bytes > 0) {
      properties_.memory_bytes = static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes);
    }
  }

  const DeviceProperties& properties() const override { return properties_; }

  Result<std::shared_ptr<Stream>> AdoptStream(void* native) override {
    if (native != nullptr)
      return InvalidArgumentError("stream: a HostDevice has none to adopt, allowed: null");
    return MakeStream();
  }
  Result<std::shared_ptr<Event>> AdoptEvent(void* native) override {
    if (native != nullptr)
      return InvalidArgumentError("event: a HostDevice has none to adopt, allowed: null");
    return std::shared_ptr<Event>(std::make_shared<HostEvent>());
  }
  Result<std::shared_ptr<Stream>> MakeStream() override {
    return std::shared_ptr<Stream>(std::make_shared<HostStream>(shared_from_this()));
  }

  Status RegisterHost(MutableBytes) override { return OkStatus(); }
  void UnregisterHost(MutableBytes) override {}
  Result<std::byte*> MappedAddress(std::byte* host) const override { return host; }
  Result<std::shared_ptr<std::byte>> Allocate(uint64_t bytes) override {
    void* memory = ::operator new(std::max<uint64_t>(bytes, 1), kAllocationAlignment, std::nothrow);
    if (memory == nullptr) {
      return ResourceExhaustedError("no " + std::to_string(bytes) + " bytes of host memory");
    }
    return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), [](std::byte* freed) {
      ::operator delete(freed, kAllocationAlignment);
    });
  }

  Status Copy(Stream& stream, CopyDirection direction, const CopyPiece& piece) override {
    return CopyBatch(stream, direction, {&piece, 1});
  }
  Status CopyBatch(Stream& stream, CopyDirection, std::span<const CopyPiece> pieces) override {
    if (Status status = CheckStream(stream); !status.ok()) return status;
    for (const CopyPiece& piece : pieces) {
      if (piece.bytes > 0) std::memcpy(piece.dst, piece.src, piece.bytes);
    }
    return OkStatus();
  }
  Status Run(Stream& stream, const PagedCopyArgs& args) override {
    if (Status status = CheckStream(stream); !status.ok()) return status;
    RunOnHost(args);
    return OkStatus();
  }

 private:
  // Any HostDevice's: they are all the same memory.
  static Status CheckStream(const Stream& stream) {
    if (dynamic_cast<const HostStream*>(&stream) != nullptr) return OkStatus();
    return InvalidArgumentError("stream: of another kind of device, allowed: a HostDevice's");
  }

  DeviceProperties properties_;
};

}  // namespace

std::shared_ptr<Device> MakeHostDevice() { return std::make_shared<HostDevice>(); }

}  // namespace terrace
