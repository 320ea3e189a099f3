// Store: chunks on their way into the tiers, filled in place (WritableChunk) or copied out of an engine's
// pages (StoreHandle). Used by one thread at a time each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "terrace/bytes.h"
#include "terrace/device.h"
#include "terrace/export.h"
#include "terrace/object_id.h"
#include "terrace/status.h"
#include "terrace/time.h"
#include "terrace/tokens.h"

namespace terrace {

// A chunk that is being filled. Destruction without Commit abandons it.
class TERRACE_API WritableChunk {
 public:
  struct State;  // internal
  WritableChunk();
  ~WritableChunk();
  WritableChunk(WritableChunk&&) noexcept;
  WritableChunk& operator=(WritableChunk&&) noexcept;
  explicit WritableChunk(std::unique_ptr<State> state);

  ObjectId id() const;
  TokenRange tokens() const;
  MutableBytes payload();  // exactly the size asked for; empty after Commit

  std::unique_ptr<State>& state() { return state_; }

 private:
  std::unique_ptr<State> state_;
};

// One object of a Prepare, in the order of chunks, then parts.
struct PreparedChunk {
  ObjectId id;
  TokenRange tokens;
  bool present = false;                   // stored, or being stored: nothing to do
  std::optional<WritableChunk> writable;  // else: fill and commit
};

struct PrepareResult {
  std::vector<PreparedChunk> chunks;
  // Why the list ends before the range does (kResourceExhausted: pool full; kFailedPrecondition: the
  // chunk before is neither stored nor being stored). OK: the whole range.
  Status status;
};

// Payload bytes of an object of `tokens`; called on the caller's thread, for absent objects only. An error
// ends the Prepare with it.
using PayloadSizes = std::function<Result<uint64_t>(TokenRange tokens, ObjectPart part)>;

// What became of a Store of views.
struct StoreReport {
  uint64_t stored_objects = 0;   // copied and committed; Flush says when they are published
  uint64_t present_objects = 0;  // were stored, or being stored, already: not copied
  uint64_t stored_tokens = 0;    // from the begin of the range, present ones included
  Status status;                 // why it ended before the range does; see PrepareResult::status
};

struct StoreOptions {
  // Same id as the request's lookups: their hashes are used again. 0 is anonymous.
  uint64_t request_id = 0;
  // Called once, on the executor, when the views' memory may be reused (of a device's: its copies are done)
  // or has been let go of. May be null.
  std::function<void(const StoreReport&)> on_source_free;
};

// Destruction does not end the store: the views' memory must stay until it is free (Wait, or on_source_free).
class TERRACE_API StoreHandle {
 public:
  struct State;  // internal
  StoreHandle();
  ~StoreHandle();
  StoreHandle(StoreHandle&&) noexcept;
  StoreHandle& operator=(StoreHandle&&) noexcept;
  explicit StoreHandle(std::shared_ptr<State> state);

  // Until the views' memory may be reused. kDeadlineExceeded in the report's status otherwise: it may not
  // yet.
  StoreReport Wait(TimePoint deadline = kNoDeadline);
  // Whether it may. Never blocks.
  bool IsSourceFree() const;
  // Makes what is enqueued on `stream` from now on (computing into the same blocks) begin when the views'
  // memory may be reused. Waits until the copies are enqueued on the device, not until they are done.
  // kDeadlineExceeded: nothing was enqueued on `stream`.
  Status ReleaseTo(Stream& stream, TimePoint deadline = kNoDeadline);
  // Asks for an early end: chunks whose copy has not begun are not stored. Wait says when the memory is free.
  void Cancel();

 private:
  std::shared_ptr<State> state_;
};

}  // namespace terrace
