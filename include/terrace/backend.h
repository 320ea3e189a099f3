// Backend: the place behind a tier where frames lie. Checksum, codec and policy belong to the tier
// above; a backend moves whole frames and ranges of them, and never answers with a byte that it knows to
// be wrong. Public calls are non-virtual: they check arguments, measure, and pass to the protected Do*.
//
// Threads: every call is safe from every thread. An asynchronous call returns at once; `done` is called
// exactly once per batch, with one result per operation in the order of the operations, never under a
// lock of the backend. Where capabilities().completes_inline, it is called before the call returns, on the
// calling thread; else on a thread of the backend, which it must not block. What the checks of the public
// calls refuse as a whole (bad arguments, not attached, closed, nothing to do) completes inline everywhere.
// One id may stand several times in a batch: of equal ids one is stored, or erased, and the others are told
// kAlreadyExists, or kNotFound.
//
// Ownership: the backend owns the operations, and with them a reference to each buffer, from the call
// until the device has let go of the memory. At a deadline or a cancel the operation completes at once
// (kDeadlineExceeded, kCancelled) while the backend keeps its reference until the device is done: the
// buffer is orphaned, not reused. A destination whose Get did not succeed holds no defined bytes.
//
// Order: Erase of an object whose Put is in flight takes effect after it, Clear after every Put in flight,
// Flush covers every Put called before. An object is visible (Get, Borrow, Scan) once its Put succeeded, not
// before.
//
// A backend outside this tree needs include/terrace/ only. tests/conformance/ runs on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/bytes.h"
#include "terrace/export.h"
#include "terrace/kv_spec.h"
#include "terrace/log_sink.h"
#include "terrace/metrics.h"
#include "terrace/object_meta.h"
#include "terrace/status.h"

namespace terrace {

struct Capabilities {
  bool supports_borrow = false;   // Borrow hands out the published buffer itself
  bool supports_match = false;    // answers prefix queries for itself (a remote store)
  bool completes_inline = false;  // completions run before the call returns
  bool is_durable = false;        // objects outlive the process; Scan finds them after a reopen
  bool supports_expiry = false;
};

// Shared between a caller and its operations; setting it asks for an early kCancelled.
using CancelFlag = std::shared_ptr<std::atomic<bool>>;

// Bytes [frame_offset, frame_offset + length) of the frame, to land at dst_offset of the destination's
// frame(). All three are multiples of 4,096.
struct FrameRange {
  uint64_t frame_offset = 0;
  uint64_t length = 0;
  uint64_t dst_offset = 0;
};

struct GetOp {
  ObjectId id;
  std::vector<FrameRange> ranges;  // empty: the whole frame, to the same offsets of dst.frame()
  BufferRef dst;                   // nobody else reads or writes it until `done`
  TimePoint deadline = kNoDeadline;
  CancelFlag cancel;  // may be null
  // Bytes [offset, offset + n) of dst.frame() are in place, while the rest is in flight. Called on a
  // backend thread before `done`, in any order, each byte at most once, one call of an operation at a time;
  // may be null.
  std::function<void(uint64_t offset, uint64_t n)> on_bytes;
};

struct GetResult {
  Status status;             // kNotFound: a miss
  uint64_t frame_bytes = 0;  // of the object, when found
};
using GetDone = std::function<void(std::span<const GetResult>)>;

struct PutOp {
  ObjectId id;
  BufferRef frame;  // frame bytes [0, meta.frame_bytes) are final
  ObjectMeta meta;
  TimePoint deadline = kNoDeadline;
  CancelFlag cancel;
};
// Per operation: OK (stored), kAlreadyExists (the first published wins; nothing was written),
// kResourceExhausted (no room: evict and try again; nothing was written), or why it failed.
using PutDone = std::function<void(std::span<const Status>)>;

enum class EraseMode {
  kEvict,  // gives the space back; a crash may bring the object back (its identity protects)
  kErase,  // it never comes back: durable before `done`, whatever the durability option
};
// Per operation: OK (was there) or kNotFound.
using EraseDone = std::function<void(std::span<const Status>)>;
using StatusDone = std::function<void(const Status&)>;

// What a Scan gives of an object. kPlaces: all but tokens and items; `meta.content` is null where the backend
// would have to read it for that, so that a start sees many objects soon. kContents: these too; null where
// the backend does not keep them, or can no longer read them.
enum class ScanDetail : uint8_t { kPlaces, kContents };

struct ScannedObject {
  ObjectId id;
  ObjectMeta meta;
};
struct ScanPage {
  std::vector<ScannedObject> objects;
  std::string next_cursor;  // empty: the end
};

// A prefix as a store that answers for itself wants it: keys, tokens and items of the chunks beyond the
// caller's local match.
struct PrefixQuery {
  ChunkKey root;
  ChunkKey parent;  // of the first chunk asked for
  // The key of the first chunk of the run that it lies in, where that stands before it; else all zero: the
  // run begins with it.
  ChunkKey run_key;
  uint64_t first_token = 0;
  uint32_t tokens_per_chunk = 0;
  std::vector<ChunkKey> keys;  // of the full chunks
  ChunkContent content;        // tokens and items from first_token on
  std::vector<ObjectPart> parts;
  // KvSpec::DivisionTag of who asks: objects of another division into shards are no match. Null: of any.
  std::optional<uint32_t> division;
  TimePoint deadline = kNoDeadline;
  Duration lease{};
};
struct ChunkPresence {
  ChunkKey key;
  bool present = false;
  uint64_t frame_bytes = 0;
};
struct PrefixMatch {
  Status status;
  // Per chunk in prefix order, and of each chunk per part in the order of the query; the full chunks under
  // the query's keys, then at most one chunk that the match ends inside (or with).
  std::vector<ChunkPresence> chunks;
  uint64_t matched_tokens = 0;  // from the query's first_token on
  std::string lease_token;      // for Release; empty: none
};
using MatchDone = std::function<void(const PrefixMatch&)>;

// One populated range of pool memory, for io_uring or CUDA to register.
struct MemoryRegion {
  uint32_t id = 0;
  MutableBytes bytes;
};

// What a backend is given once, by the manager, before its first operation. All pointers outlive it.
struct BackendContext {
  Clock* clock = nullptr;
  MetricRegistry* metrics = nullptr;
  LogSink* log = nullptr;
  std::vector<MemoryRegion> regions;  // refusing to register one is a warning, never a failure
};

class TERRACE_API Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // "host", "nvme", ...: the metrics' label and the log's component.
  std::string_view name() const { return name_; }
  Capabilities capabilities() const { return DoCapabilities(); }
  uint64_t capacity_bytes() const { return DoCapacityBytes(); }
  // Physical bytes that count against the capacity.
  uint64_t used_bytes() const { return DoUsedBytes(); }

  // Once, before the first operation; kFailedPrecondition the second time.
  Status Attach(const BackendContext& context);

  void Get(std::vector<GetOp> ops, GetDone done);
  void Put(std::vector<PutOp> ops, PutDone done);
  void Erase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done);
  // Drops everything; durable before `done`.
  void Clear(StatusDone done);
  // Everything put before is as durable as the backend's option promises.
  void Flush(StatusDone done);

  // The published buffers themselves, per id, empty for a miss. Only with supports_borrow.
  std::vector<BufferRef> Borrow(std::span<const ObjectId> ids);

  // Up to `limit` objects from `cursor` (empty = the beginning) in an order of the backend's own. Objects put
  // or erased meanwhile may or may not be seen. A cursor is good for either detail.
  Result<ScanPage> Scan(std::string_view cursor, size_t limit, ScanDetail detail = ScanDetail::kContents);

  // The roots table: root -> spec, adapters, SHA-256(salt). Putting an equal record again is free.
  Status PutRoot(const RootRecord& record);
  Result<std::vector<RootRecord>> ScanRoots();

  // Only with supports_match. Release gives a lease token back.
  void Match(PrefixQuery query, MatchDone done);
  void Release(std::string_view lease_token);

  // Completes or cancels everything in flight, then frees. Waits until `deadline` for orphans and names
  // them if it passes (kDeadlineExceeded). Safe to call twice. Nothing else may be called after.
  Status Close(TimePoint deadline = kNoDeadline);

 protected:
  // Not `measured`: for what passes calls on to a backend that counts them under the same name.
  explicit Backend(std::string name, bool measured = true) : name_(std::move(name)), measured_(measured) {}
  const BackendContext& context() const { return context_; }

  virtual Capabilities DoCapabilities() const = 0;
  virtual uint64_t DoCapacityBytes() const = 0;
  virtual uint64_t DoUsedBytes() const = 0;
  virtual Status DoAttach(const BackendContext& context) = 0;
  virtual void DoGet(std::vector<GetOp> ops, GetDone done) = 0;
  virtual void DoPut(std::vector<PutOp> ops, PutDone done) = 0;
  virtual void DoErase(std::vector<ObjectId> ids, EraseMode mode, EraseDone done) = 0;
  virtual void DoClear(StatusDone done) = 0;
  virtual void DoFlush(StatusDone done) = 0;
  virtual std::vector<BufferRef> DoBorrow(std::span<const ObjectId> ids);
  virtual Result<ScanPage> DoScan(std::string_view cursor, size_t limit, ScanDetail detail) = 0;
  virtual Status DoPutRoot(const RootRecord& record) = 0;
  virtual Result<std::vector<RootRecord>> DoScanRoots() = 0;
  virtual void DoMatch(PrefixQuery query, MatchDone done);
  virtual void DoRelease(std::string_view lease_token);
  virtual Status DoClose(TimePoint deadline) = 0;

 private:
  struct Measures;       // the metrics of the public calls, made by Attach
  Status Ready() const;  // attached and not closed

  const std::string name_;
  const bool measured_;
  BackendContext context_;
  std::shared_ptr<Measures> measures_;
  std::atomic<bool> attaching_{false};
  std::atomic<bool> attached_{false};
  std::atomic<bool> closed_{false};
};

}  // namespace terrace
