// Session: what one client holds on this server: transfers on their way in, leases, places in shared memory,
// sockets of its data path. Ends by CloseSession, by silence, or with its shared-memory socket; then
// everything in it is given back.
//
// Threads: every call from every thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "connectors/server/deadline_queue.h"
#include "connectors/server/namespace_map.h"
#include "connectors/server/tenant_table.h"
#include "connectors/server/tenant_use.h"
#include "lib/wire/bulk_connection.h"
#include "lib/wire/bulk_message.h"
#include "lib/wire/landing_table.h"
#include "terrace/frame_store.h"
#include "terrace/status.h"
#include "terrace/time.h"

namespace terrace::server {

// A put between BeginPut and CommitPut.
struct PutTransfer {
  ObjectId id;
  ObjectMeta meta;
  std::shared_ptr<ArrivingFrame> frame;
  std::optional<uint64_t> staging_offset;  // shm
  TimePoint drop_at;                       // not committed by then: dropped
  // Filled by AddTransfer: gives bytes and staging back when the last who holds it lets go.
  std::shared_ptr<void> charge;
  uint64_t streamed_bytes = 0;  // of those that arrived, on gRPC streams
};

// The session's part of shared memory; made by the listener that passed the descriptors.
class ShmArea {
 public:
  virtual ~ShmArea() = default;
  // Room in the staging area; kResourceExhausted. Given back by FreeStaging, or with the session.
  virtual Result<uint64_t> AllocateStaging(uint64_t bytes) = 0;
  virtual void FreeStaging(uint64_t offset) = 0;
  // Copies [offset, offset + frame->bytes().size()) into the frame and hashes the copy.
  virtual Status CopyOut(uint64_t offset, ArrivingFrame& frame) = 0;
  // Keeps the frame where it is until Release, or the lease's end. The number for Release; 0: the session
  // holds as many as it may, and nothing is kept.
  virtual uint64_t AddPlace(BufferRef frame, Duration lease) = 0;
  virtual void ReleasePlace(uint64_t place) = 0;
};

// What a session has of its table; a session that is made without one has its own.
struct SessionSupport {
  std::shared_ptr<TenantUse> use;
  std::shared_ptr<DeadlineQueue> deadlines;
  Clock* clock = Clock::Real();
  Duration transfer_ttl = std::chrono::seconds(30);
};

class Session {
 public:
  static constexpr size_t kMaxTransfers = 4096;
  static constexpr size_t kMaxLeases = 1024;

  Session(SessionId session_id, TenantRef session_tenant, NamespaceRef session_store,
          SessionSupport support = {});
  ~Session();

  const SessionId id;
  const TenantRef tenant;
  const NamespaceRef name_space;
  // Bytes of puts land here, whatever path they come on; filled by AddTransfer.
  const std::shared_ptr<LandingTable> landings;

  // --- Puts. The transfer's number; 0: the session has ended, or holds too many. Takes over the
  // meta.frame_bytes that TakeBytes granted, and staging, whatever the answer.
  uint64_t AddTransfer(PutTransfer transfer);
  // `bytes` of the transfer came on a gRPC stream.
  void NoteStreamed(uint64_t transfer, uint64_t bytes);
  // Once, when every transfer named is whole, dropped or failed, or at the deadline, with one status each:
  // OK: whole, and taken out of the table into `taken` (at the same place, empty elsewhere), ready for
  // Publish. kNotFound: no such transfer. What is not whole at the deadline is dropped.
  using CommitDone = std::function<void(std::vector<Status> arrived, std::vector<PutTransfer> taken)>;
  void TakeWhole(std::vector<uint64_t> transfers, TimePoint deadline, CommitDone done);
  void DropTransfer(uint64_t transfer);

  // --- Leases of Match.
  // The oldest is given back where there are too many.
  void AddLease(std::string lease);
  // Ignores what is not the session's.
  void ReleaseLease(const std::string& lease);

  // --- Data paths.
  // A connection is about to be welcomed, so that a client which sees the welcome may ask for bytes at once:
  // sends wait for AddBulk, or for BulkFailed. One of the two follows.
  void ExpectBulk();
  void BulkFailed();
  // Closes it where the session has ended.
  void AddBulk(std::shared_ptr<BulkConnection> connection);
  void RemoveBulk(const BulkConnection* connection);
  bool has_bulk() const;  // or expects one
  // On the connection that has the least to send. kFailedPrecondition: there is none.
  Status SendBulk(uint64_t transfer, BufferRef frame, std::vector<FrameRange> ranges,
                  std::function<void(const Status&)> sent);
  // What has not been sent of it is not sent any more.
  void CancelBulk(uint64_t transfer);
  void SetShm(std::shared_ptr<ShmArea> area);
  std::shared_ptr<ShmArea> shm() const;

  // Against the tenant's and the session's limit; false: over it.
  bool TakeBytes(uint64_t bytes);
  void GiveBytes(uint64_t bytes);
  size_t num_transfers() const;

  void Touch();
  TimePoint last_use() const;
  // Drops everything; later calls find nothing. Called by the table.
  void End();
  bool ended() const;
  // Drops the transfers that were not committed in time.
  void DropLate(TimePoint now);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};
using SessionRef = std::shared_ptr<Session>;

class SessionTable {
 public:
  struct Options {
    Duration session_ttl = std::chrono::seconds(60);
    Duration token_ttl = std::chrono::seconds(10);
    Duration transfer_ttl = std::chrono::seconds(30);
    size_t max_sessions = 4096;
    Clock* clock = Clock::Real();
  };
  explicit SessionTable(const Options& options);
  ~SessionTable();

  // kResourceExhausted: the table or the tenant is full.
  Result<SessionRef> Open(TenantRef tenant, NamespaceRef name_space);
  // Null: no such session, or another tenant's: not told apart.
  SessionRef Find(const SessionId& id, const TenantRef& tenant) const;
  void Close(const SessionId& id);
  // One-time tokens of a session, for one purpose. Redeeming takes the token out, whatever comes of it.
  enum class Purpose : uint8_t { kBulk, kShm };
  OneTimeToken MakeToken(const SessionId& id, Purpose purpose);
  SessionRef Redeem(const SessionId& id, const OneTimeToken& token, Purpose purpose);
  // Ends what is silent or late, and the sessions of tenants that may not go on (null: all may), with their
  // sockets, memory and watches; called every second by the server.
  void Reap(const std::function<bool(const Tenant&)>& may_go_on = nullptr);
  // Ends waits whose deadline has come; called every few milliseconds by the server.
  void Tick();
  // Ends every session.
  void Clear();
  std::shared_ptr<TenantUse> UseOf(const Tenant& tenant);
  const std::shared_ptr<DeadlineQueue>& deadlines() const;
  size_t size() const;
  size_t CountOf(const Tenant& tenant) const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace terrace::server
