// IoEngine: starts reads and writes on files and hands their completions back. What bounds, splits, continues
// and retries them is TransferQueue; a sibling of UringEngine (threads with preadv and pwritev, or one with
// faults for tests) implements these four calls.
//
// Threads: all calls from the one thread that owns the engine, but for Wake, which any may call.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

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

class IoEngine {
 public:
  virtual ~IoEngine() = default;
  // At most the `depth` given to the factory are outstanding. An error is the request's completion.
  virtual void Start(IoRequest* request) = 0;
  // Appends completions; returns when there is one, after Wake, or after `timeout` (nullopt: never by time).
  virtual void Wait(std::optional<Duration> timeout, std::vector<IoCompletion>* completions) = 0;
  // The current or the next Wait returns at once.
  virtual void Wake() = 0;
};

using IoEngineFactory = std::function<Result<std::unique_ptr<IoEngine>>(uint32_t depth)>;

// kUnavailable where the system has no io_uring or forbids it.
Result<std::unique_ptr<IoEngine>> MakeUringEngine(uint32_t depth);

}  // namespace terrace
