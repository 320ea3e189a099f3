// Device, Stream, Event: the memory that an engine computes in, and the order of work on it. Null streams and
// HostDevice serve engines that compute on the CPU; CudaDevice is there where the library was built with CUDA
// and a driver and a device are found. No type of CUDA is named here: native handles are opaque.
//
// Ownership: streams and events of the engine are adopted, never created or destroyed; the engine keeps them
// until the last Stream or Event that adopted them is gone. Terrace makes streams of its own for its copies.
// Threads: a Device and an Event from every thread; a Stream from one thread at a time, but for streams that
// the device made itself (MakeStream), which take calls from every thread. No callback is ever installed on a
// stream: completion is polled (Event::Query).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "terrace/bytes.h"
#include "terrace/export.h"
#include "terrace/status.h"
#include "terrace/time.h"

namespace terrace {

class Device;
struct PagedCopyArgs;  // internal

// A point in a stream's work.
class TERRACE_API Event {
 public:
  virtual ~Event();
  // Whether everything that was enqueued before it is done. An error is the device's, and final: what became
  // of the work is unknown, and nothing of it is running any more. Never blocks.
  virtual Result<bool> Query() const = 0;
  virtual void* native_handle() const = 0;  // cudaEvent_t; null where there is none
  // Polls: some microseconds without a break, then with pauses of up to 50 us. kDeadlineExceeded, or Query's.
  Status Wait(TimePoint deadline = kNoDeadline) const;
};

// An ordered queue of work on one device.
class TERRACE_API Stream {
 public:
  virtual ~Stream();
  virtual const std::shared_ptr<Device>& device() const = 0;
  // Behind everything that was enqueued so far.
  virtual Result<std::shared_ptr<Event>> Record() = 0;
  // What is enqueued from now on begins when `event` is done; the calling thread does not wait. An event of
  // the same kind of device. kInvalidArgument otherwise.
  virtual Status WaitFor(const Event& event) = 0;
  virtual void* native_handle() const = 0;  // cudaStream_t; null where there is none
};

enum class DeviceKind : uint8_t { kHost = 1, kCuda = 2, kSimulated = 3 };

// Store: from the engine's memory to the host. Load: back.
enum class CopyDirection : uint8_t { kToHost = 1, kToDevice = 2 };

// How pages and a payload in pinned host memory are copied into each other.
enum class CopyStrategy : uint8_t {
  kPlain = 1,    // one copy per contiguous piece
  kBatched = 2,  // all pieces in one call of the batched copy engine
  kStaged = 3,   // a kernel between pages and a staging chunk in device memory, one copy over the bus
  kMapped = 4,   // a kernel that reads or writes the pinned memory itself
};
TERRACE_API const char* CopyStrategyName(CopyStrategy strategy);  // "plain", "batched", "staged", "mapped"

struct DeviceProperties {
  DeviceKind kind = DeviceKind::kHost;
  int ordinal = 0;
  std::string name;
  int numa_node = -1;  // -1 = unknown
  uint64_t memory_bytes = 0;
  uint32_t compute_capability = 0;  // 90 = sm_90
  bool has_kernels = false;         // Run works: staged and mapped copies
  bool has_batched_copy = false;    // CopyBatch is one call of the copy engine
};

// Contiguous bytes. One side is device memory, the other registered host memory or device memory.
struct CopyPiece {
  std::byte* dst = nullptr;
  const std::byte* src = nullptr;
  uint64_t bytes = 0;
};

// The calls below MakeStream are Terrace's; an engine needs none of them.
class TERRACE_API Device : public std::enable_shared_from_this<Device> {
 public:
  virtual ~Device();
  virtual const DeviceProperties& properties() const = 0;

  // The engine's stream (cudaStream_t; null = the legacy default stream) and event, as they are.
  virtual Result<std::shared_ptr<Stream>> AdoptStream(void* native) = 0;
  virtual Result<std::shared_ptr<Event>> AdoptEvent(void* native) = 0;
  // One of Terrace's own. CUDA: non-blocking, with the lowest priority.
  virtual Result<std::shared_ptr<Stream>> MakeStream() = 0;

  // Pins host memory for copies; whole pages; until UnregisterHost. kUnavailable: the system refuses, copies
  // from there are slower or (mapped) not possible.
  virtual Status RegisterHost(MutableBytes memory) = 0;
  virtual void UnregisterHost(MutableBytes memory) = 0;
  // Where the device sees a byte of registered host memory. kFailedPrecondition: not registered.
  virtual Result<std::byte*> MappedAddress(std::byte* host) const = 0;
  // Device memory, 256-aligned, freed with the last reference. kResourceExhausted.
  virtual Result<std::shared_ptr<std::byte>> Allocate(uint64_t bytes) = 0;

  // Enqueued on a stream of this device; the arguments may go when the call returns, the memory that they
  // name stays until an event recorded afterwards is done. Pieces of one batch are copied in any order.
  virtual Status Copy(Stream& stream, CopyDirection direction, const CopyPiece& piece) = 0;
  virtual Status CopyBatch(Stream& stream, CopyDirection direction, std::span<const CopyPiece> pieces) = 0;
  // Gather or scatter by a kernel. `args.payload` is an address that the device sees.
  virtual Status Run(Stream& stream, const PagedCopyArgs& args) = 0;
};

// Memory of this process as a device: every call is done when it returns, every event is done.
TERRACE_API std::shared_ptr<Device> MakeHostDevice();

// How many CUDA devices there are: 0 also without a driver, without a device (cudaErrorInsufficientDriver,
// 35; cudaErrorNoDevice, 100), or where the library was built without CUDA.
TERRACE_API int CountCudaDevices();
// kUnavailable: no such device; the text says whether the build, the driver or the device is missing.
TERRACE_API Result<std::shared_ptr<Device>> MakeCudaDevice(int ordinal);

// A device whose pages a manager copies (StorageOptions::devices). Open registers the pool with it, measures
// which strategy is the fastest for which pieces (below 100 ms) and makes its streams.
struct DeviceOptions {
  std::shared_ptr<Device> device;
  // Device memory for staged copies, taken at Open; Terrace takes no other. 0 = no staged copies.
  uint64_t staging_bytes = 0;
  // Instead of what the calibration says; kInvalidArgument where the device cannot do it.
  std::optional<CopyStrategy> to_host;
  std::optional<CopyStrategy> to_device;
};

}  // namespace terrace
