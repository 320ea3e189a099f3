// FakeCuda: the calls of CUDA that CudaDevice makes, on the process's memory, for machines without a device.
// It is linked in the run-time's place. What is enqueued is done at once; a stream can be held, and then its
// events are not ready. Every call checks that the context of its device is current.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace terrace {

struct FakeCuda {
  static FakeCuda& Get();
  // As after the start of a process.
  void Reset();
  // Of this thread, as the driver tells: 0 = none, else the device's number + 1.
  static uintptr_t CurrentContext();
  static void SetCurrentContext(uintptr_t context);

  int num_devices = 2;
  int driver_version = 13000;
  int compute_capability = 90;
  uint64_t device_bytes = uint64_t{1} << 30;
  // What a call answers instead of working, by its name.
  std::map<std::string, cudaError_t> failures;

  std::map<std::string, uint64_t> calls;
  std::vector<std::pair<const void*, size_t>> copies;      // of cudaMemcpyAsync: source, bytes
  std::vector<size_t> batches;                             // numbers of pieces
  std::vector<int> kernel_kinds;                           // PagedCopyKernelKind of each launch
  std::map<std::byte*, size_t> registered;                 // begin, bytes
  std::map<const void*, size_t> allocated;                 // device memory
  std::set<void*> streams, events;                         // alive
  std::set<const void*> held, captured;                    // streams
  std::map<const void*, const void*> recorded_on;          // event: stream
  std::vector<std::pair<const void*, const void*>> waits;  // stream, event
  unsigned int stream_flags = 0;
  int stream_priority = 0;
  unsigned int event_flags = 0;
  uint64_t wrong_contexts = 0;
  bool is_captured_globally = false;  // a thread captures a graph: others may not ask about events
  std::mutex mutex;
};

}  // namespace terrace
