// ServerLink: one cache server as this client sees it: its channel, the session, the breaker. Calls go
// through ServerCall (server_call.h), transfers through GetBatch and PutBatch.
//
//   no session --first operation--> opening --OpenSession, path connected, roots sent--> open
//        ^------- failed; forgotten by the server; path lost; breaker opened --------------'
//
// Operations that come while it opens wait for it, each until its own deadline. Everything is in the
// background: no call of this class waits.
//
// Threads: every call from every thread. Callbacks run on threads of gRPC or of the environment, without a
// lock, or inside the call where it says so.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/remote/buffer_ledger.h"
#include "backends/remote/circuit_breaker.h"
#include "backends/remote/known_roots.h"
#include "backends/remote/link_metrics.h"
#include "backends/remote/link_session.h"
#include "backends/remote/operation_registry.h"
#include "backends/remote/server_address.h"
#include "backends/remote/timer_queue.h"
#include "lib/wire/bulk_connection.h"
#include "proto/terrace/v1/cache.grpc.pb.h"
#include "terrace/executor.h"
#include "terrace/log_sink.h"
#include "terrace/remote_backend.h"

namespace terrace::remote {

// Whether anything was heard of the servers yet: what a link's first answer, or first failure, tells.
struct FirstNews {
  std::mutex mutex;
  std::condition_variable came;
  uint64_t count = 0;

  void Tell() {
    std::lock_guard lock(mutex);
    ++count;
    came.notify_all();
  }
};

// What all links of a backend share.
struct LinkEnvironment {
  RemoteOptions options;
  Clock* clock = nullptr;
  MetricRegistry* metrics = nullptr;
  LogSink* log = nullptr;
  std::shared_ptr<TimerQueue> timers;
  std::shared_ptr<Executor> connector;   // for what blocks: connecting, TLS, names, files
  std::shared_ptr<BulkReactor> reactor;  // null where no path needs it
  std::shared_ptr<BufferLedger> ledger;
  std::shared_ptr<KnownRoots> roots;
  std::shared_ptr<OperationRegistry> operations;
  std::shared_ptr<FirstNews> news;

  TimePoint DeadlineOf(TimePoint asked) const {
    return std::min(asked, clock->Now() + options.operation_deadline);
  }
};

// Channel and stubs; kept by calls in flight, whose callbacks may be the last to let go.
struct LinkChannel {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Cache::Stub> stub;
  std::unique_ptr<grpc::GenericStub> generic;
  std::string authorization;  // "Bearer ...", or empty

  std::unique_ptr<grpc::ClientContext> MakeContext(Duration limit) const;
};

class ServerLink : public std::enable_shared_from_this<ServerLink> {
 public:
  ServerLink(ServerAddress address, uint64_t serial, std::shared_ptr<LinkEnvironment> environment);

  const std::string& name() const { return address_.text; }
  const ServerAddress& address() const { return address_; }
  uint64_t serial() const { return serial_; }  // of this process; in lease tokens
  LinkEnvironment& environment() const { return *environment_; }
  const std::shared_ptr<LinkEnvironment>& shared_environment() const { return environment_; }
  const LinkMetrics& metrics() const { return metrics_; }

  // Given up for now: everything answers kUnavailable at once.
  bool is_down() const { return breaker_.is_open(); }
  Status DownStatus() const { return UnavailableError(address_.text + " is given up for now"); }

  // The open session, or the one that is opened now. `done` once: inside the call where it is open or the
  // server is given up; else later, at the latest at the deadline (kDeadlineExceeded).
  using SessionDone = std::function<void(const Status&, const SessionRef&)>;
  void WithSession(TimePoint deadline, SessionDone done);
  // The server does not know it any more, or its path is lost: the next operation opens another.
  void Forget(const SessionRef& session);
  std::shared_ptr<LinkChannel> channel() const { return channel_; }
  // How a call went that had `given` time.
  void Record(const Status& status, Duration given);
  // Sends the roots that this server was not sent yet; then `done`, inside the call where there are none.
  void SendRoots(const SessionRef& session, TimePoint deadline, StatusDone done);
  // Opens a session, in the background.
  void Connect();
  // Sends them soon, where a session is open.
  void SendRootsSoon();
  // Objects that one call may name.
  size_t max_batch() const { return max_batch_; }
  uint64_t NextTransfer() { return next_transfer_.fetch_add(1); }

  // Gives a lease back, some time soon.
  void Release(std::string lease);
  void ReleasePlaces(std::vector<uint64_t> places);  // of shared memory; at once

  // As the server said last, and what was put since.
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }
  void AddUsed(uint64_t bytes) { used_bytes_ += bytes; }
  // Asks the server.
  void RefreshStats(TimePoint deadline, StatusDone done);

  // No new session; the open one ends.
  void Close();

 private:
  enum class State : uint8_t { kIdle, kOpening, kOpen, kClosed };
  struct Waiter {
    uint64_t number;
    SessionDone done;
  };
  struct OpenCall;

  void StartOpening();  // state_ is kOpening
  void OnOpenAnswer(const std::shared_ptr<OpenCall>& call, const Status& status);
  void ChoosePath(std::shared_ptr<LinkSession> session, const v1::OpenSessionResponse& response);
  void FinishOpening(const Status& status, SessionRef session);
  void ExpireWaiter(uint64_t number);
  void OnPathLost(const Status& why);
  void SayPath(const std::string& path, const std::string& why_not);
  void OnFailedOpening(const Status& why);
  void OnFailure(std::optional<Duration> opened_for, const Status& why);
  void OnRootsAnswer(const SessionRef& session, size_t sent, const v1::PutRootsResponse& response);
  void StartRelease(v1::ReleaseRequest request);
  void ProbeAfter(Duration pause);
  void Probe();
  void Suspect();  // a call was short of time: asks the server whether it is there
  void Renew();
  void SendReleases();
  void TellFirstNews();
  void TakeStats(const v1::StatsResponse& stats);
  void Log(LogLevel level, const std::string& message) const;

  const ServerAddress address_;
  const uint64_t serial_;
  const std::shared_ptr<LinkEnvironment> environment_;
  const LinkMetrics metrics_;
  const std::shared_ptr<LinkChannel> channel_;
  CircuitBreaker breaker_;
  std::atomic<uint64_t> next_transfer_;
  std::atomic<uint64_t> capacity_bytes_{0};
  std::atomic<uint64_t> used_bytes_{0};
  std::atomic<bool> has_told_{false};    // its first news
  std::atomic<uint32_t> max_batch_{64};  // before a server said how many
  std::atomic<bool> is_suspected_{false};
  std::atomic<bool> is_probe_due_{false};  // one chain of probes at a time

  std::mutex mutex_;
  State state_ = State::kIdle;
  SessionRef session_;
  std::list<Waiter> waiters_;
  uint64_t next_waiter_ = 1;
  bool is_renewing_ = false;
  std::string last_path_;     // said in the log
  std::string roots_server_;  // server_id that roots_sent_ counts for
  size_t roots_sent_ = 0;
  std::vector<std::string> releases_;
};

// backends/remote/link_channel.cc: TLS, token, chunk sizes, keepalive.
std::shared_ptr<LinkChannel> MakeLinkChannel(const ServerAddress& address,
                                             const LinkEnvironment& environment);

// Before a call is sent again: 10 ms, doubled each time, and up to as much again.
Duration RetryPause(uint32_t tries);

}  // namespace terrace::remote
