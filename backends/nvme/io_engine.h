// IoEngine: starts reads and writes on files and hands their completions back. What bounds, splits, continues
// and retries them is TransferQueue. UringEngine is an io_uring; ThreadsEngine has threads with preadv and
// pwritev, for systems that forbid one; tests have engines with faults.
//
// Threads: all calls from the one thread that owns the engine, but for Wake, which any may call.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "terrace/backend.h"
#include "terrace/status.h"
#include "terrace/time.h"

namespace terrace {

enum class IoDirection : uint8_t { kRead, kWrite };

// One transfer between a file and up to two runs of memory. The address is its identity: a completion names
// the request itself. It and its memory stay until the completion has been handed back.
struct IoRequest {
  IoDirection direction = IoDirection::kRead;
  int fd = -1;
  uint64_t offset = 0;
  std::array<iovec, 2> memory{};
  uint32_t num_memory = 0;
};

struct IoCompletion {
  IoRequest* request = nullptr;
  int64_t result = 0;  // bytes, or -errno
};

// How an engine works, for log and metric.
struct IoEngineMode {
  std::string engine;  // "io_uring", "threads", ...
  bool registered_buffers = false;
  bool registered_files = false;
  std::string fallback;  // why it is not the faster one; empty: it is
};

class IoEngine {
 public:
  virtual ~IoEngine() = default;
  virtual IoEngineMode mode() const = 0;

  // Both make requests cheaper and change nothing else; what is refused goes without. RegisterMemory comes at
  // most once; the memory stays mapped as long as the engine lives. A file is taken out before it is closed,
  // when no request names it.
  virtual void RegisterMemory(std::span<const MemoryRegion> regions) { (void)regions; }
  virtual void AddFile(int fd) { (void)fd; }
  virtual void RemoveFile(int fd) { (void)fd; }

  // At most the `depth` given to the factory are outstanding. An error is the request's completion.
  virtual void Start(IoRequest* request) = 0;
  // What was started is on its way to the device, also without a Wait. A hint: an engine may do it at Start.
  virtual void Submit() {}
  // Appends completions; returns when there is one, after Wake, or after `timeout` (nullopt: never by time).
  virtual void Wait(std::optional<Duration> timeout, std::vector<IoCompletion>* completions) = 0;
  // The current or the next Wait returns at once.
  virtual void Wake() = 0;
};

using IoEngineFactory = std::function<Result<std::unique_ptr<IoEngine>>(uint32_t depth)>;

// kUnavailable where the system has no io_uring or forbids it.
Result<std::unique_ptr<IoEngine>> MakeUringEngine(uint32_t depth);
// Works everywhere. `fallback`: why it was taken, for mode().
Result<std::unique_ptr<IoEngine>> MakeThreadsEngine(uint32_t depth, std::string fallback);

}  // namespace terrace
