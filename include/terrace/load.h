// Load: the objects of a lease on their way to the engine. LoadHandle hands them out (LeasedChunk) or fills
// memory that the caller named (LoadSink). A handle is used by one thread at a time, but for Cancel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "terrace/bytes.h"
#include "terrace/device.h"
#include "terrace/export.h"
#include "terrace/object_id.h"
#include "terrace/paged_kv_view.h"
#include "terrace/status.h"
#include "terrace/time.h"
#include "terrace/tokens.h"

namespace terrace {

// One object of a load, verified, its payload in place while this is held.
class TERRACE_API LeasedChunk {
 public:
  struct State;  // internal
  LeasedChunk();
  ~LeasedChunk();
  LeasedChunk(LeasedChunk&&) noexcept;
  LeasedChunk& operator=(LeasedChunk&&) noexcept;
  explicit LeasedChunk(std::unique_ptr<State> state);

  ObjectId id() const;
  uint64_t chunk_index() const;
  // Tokens of the prompt that the payload holds, and those of them that the match covers. They differ
  // where a match ends inside a chunk.
  TokenRange payload_tokens() const;
  TokenRange matched_tokens() const;
  // Where the bytes came from: the place of that tier among those that Open was given.
  size_t tier() const;
  Bytes payload() const;

 private:
  std::unique_ptr<State> state_;
};

enum class LoadOrder {
  kChunkMajor = 1,  // whole frames in prefix order, and of each chunk the parts in the order asked for
  kLayerMajor = 2,  // each layer of all chunks before the next one, in reads of 1 MiB and more where frames
                    // allow it. Canonical payloads and a sink of views or memory only.
};

// Where a load puts the payloads. Nothing set: LeasedChunks, taken with Next. Copies are made on Terrace's
// threads, after the bytes were verified. What is named here is kept alive by the caller until Wait,
// WaitLayer (of the last layer) or Cancel returned, or the handle's end: nothing touches it afterwards.
struct LoadSink {
  // One destination per object, in the load's order, each as large as LeasedChunk::payload() would be.
  std::span<const MutableBytes> memory;
  // One view per part asked for in the lookup, in any order. Tokens outside a view are not copied: a window's
  // view need hold only what the engine still reads, a state's the match's last token. Canonical payloads
  // only; a token range may begin and end inside a chunk.
  std::span<const PagedKvView> views;
};

struct LoadReport {
  uint64_t loaded_tokens = 0;   // whole and right from the begin of the load's range to here
  uint64_t recompute_from = 0;  // the token from which the engine must compute
  uint64_t loaded_objects = 0;
  uint64_t loaded_bytes = 0;  // of payload
  // Layer-major: layers [0, loaded_layers) are whole for the whole range, whatever became of the rest.
  uint32_t loaded_layers = 0;
  Status status;  // why it ended early; OK when everything was loaded
};

class TERRACE_API LoadHandle {
 public:
  struct State;  // internal
  LoadHandle();
  ~LoadHandle();  // cancels
  LoadHandle(LoadHandle&&) noexcept;
  LoadHandle& operator=(LoadHandle&&) noexcept;
  explicit LoadHandle(std::shared_ptr<State> state);

  // The next object in order; nothing at the end or after a failure (see report()). Waits until
  // `deadline`: kDeadlineExceeded then, and the load goes on. LeasedChunk sink only.
  Result<std::optional<LeasedChunk>> Next(TimePoint deadline = kNoDeadline);
  // Until everything is loaded (sinks of memory and views), failed, or `deadline`, which cancels. The copies
  // need the executor: not to be called on its only thread.
  LoadReport Wait(TimePoint deadline = kNoDeadline);
  // Layer-major: until layers [0, layer] of the whole range are in the sink. kDeadlineExceeded, and the load
  // goes on; else the load's error, once it is over, with what is valid in report().
  Status WaitLayer(uint32_t layer, TimePoint deadline = kNoDeadline);
  // The same for an engine that computes on a device: waits until the copies of layers [0, layer] are
  // enqueued and makes what is enqueued on `stream` from now on (the layer's attention) begin when they are
  // done. An error of the device afterwards is in Wait's report. Host memory: as WaitLayer.
  Status WaitLayerOn(uint32_t layer, Stream& stream, TimePoint deadline = kNoDeadline);
  // The same for the whole load, in any order. The load's error where it ended early: what report() says is
  // valid is so for work on `stream`.
  Status WaitOn(Stream& stream, TimePoint deadline = kNoDeadline);
  // The caller's part ends at once, but for copies into the sink that are running, or enqueued on the sink's
  // device: they are waited for; a disk or a peer never is. Buffers that one of those still touches are let
  // go of when it is done.
  void Cancel();
  // So far.
  LoadReport report() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace terrace
