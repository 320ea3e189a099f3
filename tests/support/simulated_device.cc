// SeededDevice: the calls of a device in front of a StreamService (simulated_streams.cc; tests/parts.cmake
// names both as TERRACE_SIMULATED_DEVICE).
#include "tests/support/simulated_device.h"

#include <algorithm>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "lib/base/check.h"
#include "lib/base/status_macros.h"
#include "tests/support/simulated_queue.h"
#include "tests/support/simulated_streams.h"

namespace terrace {
namespace simulated {
namespace {

constexpr uint64_t kPageBytes = 4096;

class SimulatedEvent final : public Event {
 public:
  SimulatedEvent(std::weak_ptr<StreamService> service, std::shared_ptr<Mark> mark)
      : service_(std::move(service)), mark_(std::move(mark)) {}

  Result<bool> Query() const override { return mark_->Query(); }
  void* native_handle() const override {
    const std::shared_ptr<StreamService> service = service_.lock();
    return service == nullptr ? nullptr : service->HandOut(mark_);
  }
  const std::shared_ptr<Mark>& mark() const { return mark_; }
  bool IsOf(const StreamService* service) const { return service_.lock().get() == service; }

 private:
  const std::weak_ptr<StreamService> service_;
  const std::shared_ptr<Mark> mark_;
};

class SimulatedStream final : public Stream {
 public:
  SimulatedStream(std::shared_ptr<Device> device, std::shared_ptr<StreamService> service,
                  std::shared_ptr<Queue> queue)
      : device_(std::move(device)), service_(std::move(service)), queue_(std::move(queue)) {}

  const std::shared_ptr<Device>& device() const override { return device_; }
  Result<std::shared_ptr<Event>> Record() override {
    auto mark = std::make_shared<Mark>(queue_->lost);
    TERRACE_RETURN_IF_ERROR(service_->EnqueueRecord(*queue_, mark));
    return std::shared_ptr<Event>(std::make_shared<SimulatedEvent>(service_, std::move(mark)));
  }
  Status WaitFor(const Event& event) override {
    const auto* simulated = dynamic_cast<const SimulatedEvent*>(&event);
    if (simulated == nullptr) return InvalidArgumentError("event: of another kind of device");
    Operation operation;
    operation.kind = Kind::kWait;
    operation.mark = simulated->mark();
    service_->Enqueue(*queue_, std::move(operation));
    if (!simulated->IsOf(service_.get())) {
      simulated->mark()->WhenOver([weak = std::weak_ptr(service_)] {
        if (const auto service = weak.lock()) service->Wake();
      });
    }
    return OkStatus();
  }
  void* native_handle() const override { return queue_.get(); }

  const std::shared_ptr<StreamService>& service() const { return service_; }
  Queue& queue() const { return *queue_; }

 private:
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<StreamService> service_;
  const std::shared_ptr<Queue> queue_;
};

class SeededDevice final : public SimulatedDevice {
 public:
  explicit SeededDevice(const SimulatedDeviceOptions& options)
      : service_(std::make_shared<StreamService>(options)),
        default_queue_(service_->AddQueue(false)),
        thread_([service = service_] { service->Run(); }) {
    properties_.kind = DeviceKind::kSimulated;
    properties_.ordinal = options.ordinal;
    properties_.name = "simulated, seed " + std::to_string(options.seed);
    properties_.memory_bytes = options.memory_bytes;
    properties_.has_kernels = options.has_kernels;
    properties_.has_batched_copy = options.has_batched_copy;
  }
  // Streams hold the device: none of them is left. What was enqueued on them is still done.
  ~SeededDevice() override {
    service_->End();
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();  // work that held the last stream; the thread drains the queues and ends
    } else {
      thread_.join();
    }
  }

  const DeviceProperties& properties() const override { return properties_; }

  Result<std::shared_ptr<Stream>> AdoptStream(void* native) override {
    std::shared_ptr<Queue> queue = native == nullptr ? default_queue_ : service_->FindQueue(native);
    if (queue == nullptr) return InvalidArgumentError("stream: not a handle of this device");
    return MakeStreamOf(std::move(queue));
  }
  Result<std::shared_ptr<Event>> AdoptEvent(void* native) override {
    std::shared_ptr<Mark> mark = service_->FindMark(native);
    if (mark == nullptr) return InvalidArgumentError("event: not a handle of this device");
    return std::shared_ptr<Event>(std::make_shared<SimulatedEvent>(service_, std::move(mark)));
  }
  Result<std::shared_ptr<Stream>> MakeStream() override { return MakeStreamOf(service_->AddQueue(true)); }
  std::shared_ptr<Stream> EngineStream() override { return MakeStreamOf(service_->AddQueue(false)); }

  Status RegisterHost(MutableBytes memory) override;
  void UnregisterHost(MutableBytes memory) override;
  Result<std::byte*> MappedAddress(std::byte* host) const override;
  Result<std::shared_ptr<std::byte>> Allocate(uint64_t bytes) override;

  Status Copy(Stream& stream, CopyDirection direction, const CopyPiece& piece) override {
    return EnqueuePieces(stream, direction, {&piece, 1}, Kind::kCopy);
  }
  Status CopyBatch(Stream& stream, CopyDirection direction, std::span<const CopyPiece> pieces) override {
    return EnqueuePieces(stream, direction, pieces, Kind::kBatch);
  }
  Status Run(Stream& stream, const PagedCopyArgs& args) override;
  void Enqueue(Stream& stream, std::function<void()> work) override;

  void FailAfter(uint64_t operations) override { service_->FailAfter(operations); }
  void RefuseAfter(uint64_t operations) override { service_->RefuseAfter(operations); }
  void RefuseRecords(uint64_t records) override { service_->RefuseRecords(records); }
  void Pause() override { service_->Pause(); }
  void Resume() override { service_->Resume(); }
  void Synchronize() override { service_->Synchronize(); }
  Counters counters() const override { return service_->counters(); }

 private:
  std::shared_ptr<Stream> MakeStreamOf(std::shared_ptr<Queue> queue) {
    return std::make_shared<SimulatedStream>(shared_from_this(), service_, std::move(queue));
  }
  Result<Queue*> QueueOf(const Stream& stream) const {
    const auto* simulated = dynamic_cast<const SimulatedStream*>(&stream);
    if (simulated == nullptr || simulated->service() != service_) {
      return InvalidArgumentError("stream: of another device");
    }
    return &simulated->queue();
  }
  Status EnqueuePieces(Stream& stream, CopyDirection direction, std::span<const CopyPiece> pieces, Kind kind);

  DeviceProperties properties_;
  const std::shared_ptr<StreamService> service_;
  const std::shared_ptr<Queue> default_queue_;
  std::thread thread_;
};

Status SeededDevice::RegisterHost(MutableBytes memory) {
  if (service_->options().refuses_registration) return UnavailableError("simulated: registration is refused");
  if (memory.empty() || reinterpret_cast<uintptr_t>(memory.data()) % kPageBytes != 0 ||
      memory.size() % kPageBytes != 0) {
    return InvalidArgumentError("memory: " + std::to_string(memory.size()) + " bytes, allowed: whole pages");
  }
  if (service_->registered().AddRange(memory.data(), memory.size())) return OkStatus();
  return Status(StatusCode::kAlreadyExists, "memory: a part of it is registered");
}

void SeededDevice::UnregisterHost(MutableBytes memory) {
  if (service_->options().refuses_registration) return;
  const uint64_t bytes = service_->registered().RemoveRange(memory.data());
  TERRACE_CHECK(bytes == memory.size()) << "unregistered " << memory.size() << " bytes of " << bytes;
}

Result<std::byte*> SeededDevice::MappedAddress(std::byte* host) const {
  if (service_->registered().Contains(host, 1)) return host;
  return FailedPreconditionError("host memory is not registered");
}

Result<std::shared_ptr<std::byte>> SeededDevice::Allocate(uint64_t bytes) {
  constexpr std::align_val_t kAlignment{256};
  const uint64_t used = service_->allocated().total_bytes();
  if (bytes > properties_.memory_bytes || used > properties_.memory_bytes - bytes) {
    return ResourceExhaustedError("simulated: " + std::to_string(used) + " bytes are allocated already");
  }
  auto* memory = static_cast<std::byte*>(::operator new(std::max<uint64_t>(bytes, 1), kAlignment));
  TERRACE_CHECK(service_->allocated().AddRange(memory, bytes)) << "memory that is in use";
  return std::shared_ptr<std::byte>(memory, [service = service_](std::byte* freed) {
    service->allocated().RemoveRange(freed);
    ::operator delete(freed, kAlignment);
  });
}

Status SeededDevice::EnqueuePieces(Stream& stream, CopyDirection direction, std::span<const CopyPiece> pieces,
                                   Kind kind) {
  TERRACE_ASSIGN_OR_RETURN(Queue * queue, QueueOf(stream));
  for (const CopyPiece& piece : pieces) {
    if (piece.bytes > 0 && (piece.dst == nullptr || piece.src == nullptr)) {
      return InvalidArgumentError("piece: a null address");
    }
  }
  Operation operation;
  operation.kind = kind;
  operation.direction = direction;
  operation.pieces.assign(pieces.begin(), pieces.end());
  return service_->EnqueueCopy(*queue, std::move(operation));
}

Status SeededDevice::Run(Stream& stream, const PagedCopyArgs& args) {
  TERRACE_ASSIGN_OR_RETURN(Queue * queue, QueueOf(stream));
  if (!properties_.has_kernels) return UnimplementedError("simulated: without kernels");
  Operation operation;
  operation.kind = Kind::kKernel;
  operation.direction = args.direction;
  operation.kernel = args;
  operation.planes.assign(args.planes, args.planes + args.num_planes);
  if (args.num_tokens > 0) {
    const uint64_t num_slots = args.first_slot + args.num_tokens;
    const uint64_t num_blocks = (num_slots + args.tokens_per_block - 1) / args.tokens_per_block;
    operation.blocks.assign(args.blocks, args.blocks + num_blocks);
  }
  return service_->EnqueueCopy(*queue, std::move(operation));
}

void SeededDevice::Enqueue(Stream& stream, std::function<void()> work) {
  Operation operation;
  operation.work = std::move(work);
  service_->Enqueue(*QueueOf(stream).value(), std::move(operation));
}

}  // namespace
}  // namespace simulated

std::shared_ptr<SimulatedDevice> SimulatedDevice::Make(const SimulatedDeviceOptions& options) {
  return std::make_shared<simulated::SeededDevice>(options);
}

}  // namespace terrace
