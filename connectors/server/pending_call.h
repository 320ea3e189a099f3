// PendingCall: a unary call from its admission to its one answer. Who drops the last reference without End
// has answered INTERNAL: no request stays without a reply.
//
// Threads: every call from every thread; End once (later ones are ignored).
#pragma once

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "connectors/server/call_guard.h"
#include "connectors/server/service_context.h"
#include "terrace/backend.h"

namespace terrace::server {

// Calls without a deadline of their own get this.
inline constexpr Duration kMaxCallTime = std::chrono::minutes(2);

grpc::Status GrpcStatusOf(const Status& status);
TimePoint DeadlineOf(const grpc::CallbackServerContext& context);

class PendingCall {
 public:
  class Reactor;

  PendingCall(ServiceContext& service, grpc::CallbackServerContext* context, std::string method);
  ~PendingCall();
  // Takes the rights, the limits and (where `session_id` is given) the session; false: it was answered.
  bool Admit(Right right, const std::string* session_id);
  void End(const Status& status);
  // Runs once when the caller has gone or its deadline has passed; at once where that was before. Set before
  // anybody may End the call.
  void OnCancelled(std::function<void()> callback);
  // Runs `step`; where it throws, answers INTERNAL with a line in the log, and returns false.
  bool Guarded(const std::function<void()>& step);

  const TenantRef& tenant() const { return admitted_->tenant; }
  const SessionRef& session() const { return admitted_->session; }
  TimePoint deadline() const { return deadline_; }
  const CancelFlag& cancel() const { return cancel_; }
  grpc::ServerUnaryReactor* reactor() const;

 private:
  ServiceContext& service_;
  const std::string method_;
  const grpc::CallbackServerContext* const context_;
  const TimePoint deadline_;
  const CancelFlag cancel_ = std::make_shared<std::atomic<bool>>(false);
  std::unique_ptr<AdmittedCall> admitted_;
  std::atomic<bool> ended_{false};
  Reactor* const reactor_;  // deletes itself after the answer
};
using CallRef = std::shared_ptr<PendingCall>;

// A call with its messages, which live until End.
template <typename RequestType, typename ResponseType>
struct Exchange {
  ServiceContext& service;
  const RequestType& request;
  ResponseType& response;
  CallRef call;
};

}  // namespace terrace::server
